package initramfs

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestAddTool(t *testing.T) {
	files := map[string]string{}
	if err := AddTool(files, "sh"); err != nil {
		t.Fatal(err)
	}
	path, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	if files[path] != path {
		t.Errorf("%s is not there: %v", path, files)
	}
	loader := false
	for _, source := range files {
		if _, err := os.Stat(source); err != nil {
			t.Error(err)
		}
		loader = loader || strings.Contains(source, "ld-linux")
	}
	if !loader {
		t.Errorf("what loads the libraries is not there: %v", files)
	}
	if err := AddTool(files, "no-such-tool"); err == nil {
		t.Error("a tool that is not there is added")
	}
}
