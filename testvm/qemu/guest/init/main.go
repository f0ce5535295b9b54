// Command init is a guest's first process.
package main

import (
	"fmt"
	"os"

	"github.com/tapswitch/tapswitch/testvm/qemu/guest"
)

func main() {
	guest.Main()
	fmt.Fprintln(os.Stderr, "init: this is the first process of a test's virtual machine and of no use elsewhere")
	os.Exit(1)
}
