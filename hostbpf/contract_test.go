package hostbpf

import (
	"path/filepath"
	"testing"

	"github.com/tapswitch/tapswitch/vswitch"
	"github.com/tapswitch/tapswitch/vswitch/datapathtest"
)

func TestDatapathKeepsContract(t *testing.T) {
	datapathtest.Contract(t, func(t *testing.T) datapathtest.Bed {
		dir := filepath.Join("/sys/fs/bpf", filepath.Base(t.Name()))
		d := open(t, dir)
		t.Cleanup(func() {
			if err := d.Close(false); err != nil {
				t.Error(err)
			}
		})
		return datapathtest.Bed{
			Datapath: d, Uplink: veth(t, "up0"), Guest: tap(t, "guest0"), Other: tap(t, "guest1"),
			Reopen: func(t *testing.T) vswitch.Datapath {
				if err := d.Close(true); err != nil {
					t.Fatal(err)
				}
				d = open(t, dir)
				if !d.Adopted() {
					t.Error("the datapath was not adopted")
				}
				return d
			},
		}
	})
}
