package main

import (
	"bytes"
	"fmt"
	"net"
	"testing"
)

// stationMAC gives the address of station number n, of whom there are no real ones.
func stationMAC(n int) net.HardwareAddr {
	return net.HardwareAddr{0x02, 0x42, 0, byte(n >> 16), byte(n >> 8), byte(n)}
}

// addEntries tells the kernel that the stations from first on are behind ports of
// a bridge, each port having the same number of them.
func (h *host) addEntries(t *testing.T, first, n int, ports ...string) {
	t.Helper()
	var batch bytes.Buffer
	for i := first; i < first+n; i++ {
		fmt.Fprintf(&batch, "fdb replace %s dev %s master static\n", stationMAC(i), ports[i%len(ports)])
	}
	cmd := h.Host.Command(t.Context(), "bridge", "-batch", "-")
	cmd.Stdin = &batch
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("adding %d entries: %v\n%s", n, err, out)
	}
}
