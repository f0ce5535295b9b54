package libvirt

import "testing"

func TestOn(t *testing.T) {
	for _, tt := range []struct {
		name, network     string
		group             string
		kind, bridge, why string
	}{
		{"isolated", "<network><name>n</name><bridge name='virbr1'/></network>", "", "network", "virbr1", ""},
		{"NAT", "<network><forward mode='nat'/><bridge name='virbr1'/></network>", "", "network", "virbr1", ""},
		{"routed", "<network><forward mode='route'/><bridge name='virbr1'/></network>", "", "network", "virbr1", ""},
		{"open", "<network><forward mode='open'/><bridge name='virbr1'/></network>", "", "network", "virbr1", ""},
		{"bridge", "<network><forward mode='bridge'/><bridge name='br0'/></network>", "", "network", "br0", ""},
		{"Open vSwitch", "<network><forward mode='bridge'/><bridge name='ovs'/><virtualport type='openvswitch'/></network>", "", "network", "ovs", "<virtualport type='openvswitch'> is no port of a Linux bridge, but of a switch of another kind"},
		{"Open vSwitch by a port group", "<network><bridge name='ovs'/><portgroup name='a'/><portgroup name='b'><virtualport type='openvswitch'/></portgroup></network>", "b", "network", "ovs", "<virtualport type='openvswitch'> is no port of a Linux bridge, but of a switch of another kind"},
		{"macvtap", "<network><forward mode='bridge'><interface dev='eth0'/></forward></network>", "", "direct", "", "a macvtap sits on its NIC itself, past any bridge; <interface type='bridge'> is what the fast path serves"},
		{"private macvtap", "<network><forward mode='private' dev='eth0'/></network>", "", "direct", "", "a macvtap sits on its NIC itself, past any bridge; <interface type='bridge'> is what the fast path serves"},
		{"VEPA macvtap", "<network><forward mode='vepa' dev='eth0'/></network>", "", "direct", "", "a macvtap sits on its NIC itself, past any bridge; <interface type='bridge'> is what the fast path serves"},
		{"passthrough macvtap", "<network><forward mode='passthrough'><interface dev='eth0'/></forward></network>", "", "direct", "", "a macvtap sits on its NIC itself, past any bridge; <interface type='bridge'> is what the fast path serves"},
		{"hostdev", "<network><forward mode='hostdev' managed='yes'><pf dev='eth0'/></forward></network>", "", "hostdev", "", "the guest has the NIC's own function, and the host sees none of its frames"},
	} {
		w, err := ParseNetwork([]byte(tt.network))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		n := Interface{Type: "network", Network: "n", PortGroup: tt.group}.On(w)
		if n.Type != tt.kind || n.Bridge != tt.bridge || n.apart() != tt.why {
			t.Errorf("%s: %s on %q, apart because %q", tt.name, n.Type, n.Bridge, n.apart())
		}
	}
	for _, text := range []string{"", "<domain/>", "<network>", string(make([]byte, MaxXML+1))} {
		if w, err := ParseNetwork([]byte(text)); err == nil {
			t.Errorf("%.20q is a network: %+v", text, w)
		}
	}
}
