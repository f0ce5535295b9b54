package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// A testPackage is what the tests of a package are called: its functions, and the
// texts in them, which cases have as names.
type testPackage struct {
	functions map[string]bool
	texts     map[string]bool
}

// TestParityNamesTests holds the tests that parity.md names against those that
// there are. The last cell of each row must name one, if its heading is "shown by".
func TestParityNamesTests(t *testing.T) {
	text, err := os.ReadFile("parity.md")
	if err != nil {
		t.Fatal(err)
	}
	var (
		packages = readTests(t)
		shown    bool // in a table whose last column names tests
		rows     int
	)
	for i, line := range strings.Split(string(text), "\n") {
		if !strings.HasPrefix(line, "|") {
			shown = false
			continue
		}
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		last := cells[len(cells)-1]
		names := nameOfTest.FindAllStringSubmatch(line, -1)
		switch {
		case last == "shown by":
			shown = true
			continue
		case strings.HasPrefix(last, "---"):
			continue
		case shown && !nameOfTest.MatchString(last):
			t.Errorf("parity.md:%d: the row names no test", i+1)
		}
		for _, n := range names {
			rows++
			p := packages[n[1]]
			switch {
			case !p.functions[n[2]]:
				t.Errorf("parity.md:%d: there is no %s in %s", i+1, n[2], n[1])
			case n[3] != "" && !p.texts[n[3]]:
				t.Errorf("parity.md:%d: %s of %s has no case %q", i+1, n[2], n[1], n[3])
			}
		}
	}
	if rows == 0 {
		t.Error("parity.md names no test")
	}
}

// nameOfTest is `package.Test` or `package.Test/case`.
var nameOfTest = regexp.MustCompile("`([a-z0-9/]+)\\.((?:Test|Fuzz)\\w+)(?:/([^`]+))?`")

// readTests reads the tests of the whole tree, by the directory of their package.
func readTests(t *testing.T) map[string]testPackage {
	t.Helper()
	packages := map[string]testPackage{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel("..", filepath.Dir(path))
		if err != nil {
			return err
		}
		p, ok := packages[dir]
		if !ok {
			p = testPackage{functions: map[string]bool{}, texts: map[string]bool{}}
			packages[dir] = p
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				p.functions[n.Name.Name] = n.Recv == nil
			case *ast.BasicLit:
				if s, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
					p.texts[s] = true
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return packages
}
