package hostbpf

import (
	"errors"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tapswitch/tapswitch/vswitch"
)

// A device may go at any moment, also between the kernel's word of it and its
// first use.
func TestSetPortOfVanishedDevice(t *testing.T) {
	d := openFresh(t)
	for name, c := range map[string]vswitch.PortConfig{
		"tap": config(tap(t, "gone0"), vswitch.RoleGuest), "uplink": config(veth(t, "gone1"), vswitch.RoleUplink),
	} {
		l, err := netlink.LinkByIndex(c.Ifindex)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkDel(l); err != nil {
			t.Fatal(err)
		}
		if err := d.SetPort(c); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: got %v, want not-exist", name, err)
		}
		c.Attach, c.XDP = false, false
		if err := d.SetPort(c); c.Role == vswitch.RoleGuest && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s, without hooks: got %v, want not-exist", name, err)
		}
		if err := d.DeletePort(c.Ifindex); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(d.Ports()); n != 0 {
		t.Errorf("the datapath holds %d ports", n)
	}
}
