package libvirt

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

const networkHook = `<hookData>
  <network connections='1'>
    <name>front</name>
    <uuid>3e3fce45-4f53-4fa7-bb32-11f34168b82b</uuid>
    <forward/>
    <bridge name='virbr7' stp='on' delay='0' macTableManager='libvirt'/>
    <virtualport type='802.1Qbh'><parameters profileid='p'/></virtualport>
    <portgroup name='slow' default='yes'/>
    <portgroup name='ovs'><virtualport type='openvswitch'/></portgroup>
  </network>
  <networkport><uuid>11111111-2222-3333-4444-555555555555</uuid></networkport>
</hookData>`

func TestParseHook(t *testing.T) {
	front := &Network{
		Name: "front", Forward: "nat", Bridge: "virbr7", VirtualPort: "802.1Qbh", MACTableManager: "libvirt",
		Groups: []PortGroup{{Name: "slow", Default: true}, {Name: "ovs", VirtualPort: "openvswitch"}},
	}
	for _, tt := range []struct {
		driver, text string
		want         HookSubject
		err          string
	}{
		{driver: HookQEMU, text: "<domain id='-1'><name>d</name></domain>", want: HookSubject{Domain: &Domain{Name: "d", Running: true, VCPUs: 1}}},
		{driver: HookNetwork, text: networkHook, want: HookSubject{Network: front}},
		{driver: HookQEMU, text: "", err: "reading domain XML: EOF"},
		{driver: HookNetwork, text: "<hookData/>", err: "reading a network hook's XML: there is no network in it"},
		{driver: HookNetwork, text: "<network/>", err: "reading a network hook's XML: expected element type <hookData> but have <network>"},
		{driver: HookNetwork, text: string(make([]byte, MaxXML+1)), err: "reading a network hook's XML: has 1048577 bytes, want at most 1048576"},
		{driver: "lxc", text: "<domain/>", err: `reading a hook's XML: unknown driver "lxc"`},
	} {
		got, err := HookCall{Driver: tt.driver}.ParseHook([]byte(tt.text))
		if (err != nil || tt.err != "") && (err == nil || err.Error() != tt.err) {
			t.Errorf("%s: error %v, want %s", tt.driver, err, tt.err)
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.driver, d)
		}
	}
}
