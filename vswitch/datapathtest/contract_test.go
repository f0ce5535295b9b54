package datapathtest

import "testing"

func TestFakeKeepsContract(t *testing.T) {
	Contract(t, func(*testing.T) Bed {
		return Bed{Datapath: &Fake{}, Uplink: 1, Guest: 2, Other: 3}
	})
}
