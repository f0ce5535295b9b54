package policy

import (
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
)

func TestQdiscs(t *testing.T) {
	maxRate := func(rate uint32) func(*netlink.AttributeEncoder) error {
		return func(ae *netlink.AttributeEncoder) error { ae.Uint32(nl.TCA_FQ_FLOW_MAX_RATE, rate); return nil }
	}
	for _, tt := range []struct {
		name, kind string
		handle     uint32
		options    func(*netlink.AttributeEncoder) error
		want       bool
	}{
		{name: "htb", kind: "htb", handle: 1 << 16, want: true},
		{name: "netem", kind: "netem", handle: 0x8001 << 16, want: true},
		{name: "the future", kind: "holdback", handle: 1 << 16, want: true},
		{name: "the kernel's default", kind: "cake", handle: 0},
		{name: "an operator's fq_codel", kind: "fq_codel", handle: 1 << 16},
		{name: "mq", kind: "mq", handle: 1 << 16},
		{name: "clsact", kind: "clsact", handle: 0xffff << 16},
		{name: "fq", kind: "fq", handle: 1 << 16, options: maxRate(^uint32(0))},
		{name: "fq with a rate", kind: "fq", handle: 1 << 16, options: maxRate(125000), want: true},
	} {
		ae := netlink.NewAttributeEncoder()
		ae.String(nl.TCA_KIND, tt.kind)
		if tt.options != nil {
			ae.Nested(nl.TCA_OPTIONS, tt.options)
		}
		b, err := ae.Encode()
		if err != nil {
			t.Fatal(err)
		}
		q, limits, err := parseQdisc(nl.TcMsg{Ifindex: 7, Handle: tt.handle}, b)
		if err != nil || limits != tt.want || q.kind != tt.kind || q.ifindex != 7 {
			t.Errorf("%s is %+v, limits %v (%v), want %v", tt.name, q, limits, err, tt.want)
		}
	}
}
