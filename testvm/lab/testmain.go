package lab

import (
	"fmt"
	"os"
)

// Main runs a package's privileged tests in private namespaces (see
// Isolate). Without root it skips the package loudly, or fails it where CI=true,
// so that a skipped test is never taken for a passed one. Use it as
//
//	func TestMain(m *testing.M) { lab.Main(m) }
func Main(m interface{ Run() int }) {
	if os.Geteuid() != 0 {
		fmt.Println("SKIPPED: these tests need root, none of them ran")
		if os.Getenv("CI") == "true" {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if err := Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
