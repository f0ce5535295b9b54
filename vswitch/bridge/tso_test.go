package bridge

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/vswitch"
)

// What a guest's driver asks for is known as soon as it changes.
func TestTSO(t *testing.T) {
	newNetns(t)
	f := follow(t, Options{})
	br, guest := addBridge(t, "br0"), addTap(t, "vnet0")
	enslave(t, guest.index, br)
	for _, tt := range []struct {
		offloads int
		noTSO    bool
	}{
		{0, true},
		{unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6, false},
		{unix.TUN_F_CSUM, true},
		{unix.TUN_F_CSUM | unix.TUN_F_TSO6, false},
		{0, true},
		{unix.TUN_F_CSUM | unix.TUN_F_TSO4, false},
	} {
		must(t, unix.IoctlSetInt(guest.fd, unix.TUNSETOFFLOAD, tt.offloads))
		f.wantPort("the tap's offloads are known", guest.index, func(p vswitch.Port) bool { return p.NoTSO == tt.noTSO })
	}
	f.wantFresh()
}
