package guestbpf

import (
	"os"
	"slices"
	"testing"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

func TestMain(m *testing.M) {
	// A fuzzer's worker hears what to do from descriptors, which isolation closes. Its
	// tests make their own network namespaces.
	if slices.Contains(os.Args, "-test.fuzzworker") {
		os.Exit(m.Run())
	}
	lab.Main(m)
}
