package policy

import (
	"errors"
	"io/fs"
	"testing"
)

func TestCalls(t *testing.T) {
	h := newHost(t, 0)
	var c calls
	read := func() {
		t.Helper()
		if err := h.Do(func() (err error) { c, err = readCalls(); return err }); err != nil {
			t.Fatal(err)
		}
	}
	set := func(name, value string) {
		t.Helper()
		if err := h.SetSysctl("net/bridge/bridge-nf-call-"+name, value); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.Sysctl("net/bridge/bridge-nf-call-iptables"); errors.Is(err, fs.ErrNotExist) {
		if read(); c != (calls{}) {
			t.Errorf("a kernel without br_netfilter calls %+v", c)
		}
		t.Skip("this kernel has no br_netfilter")
	}
	for name, want := range map[string]calls{"iptables": {ip4: true}, "ip6tables": {ip6: true}, "arptables": {arp: true}} {
		for _, other := range []string{"iptables", "ip6tables", "arptables"} {
			set(other, "0")
		}
		set(name, "1")
		if read(); c != want {
			t.Errorf("with %s on, br_netfilter calls %+v, want %+v", name, c, want)
		}
	}
	var ifindex int
	for ifindex = range h.bridges {
	}
	h.bridges[ifindex+1000] = h.bridges[ifindex] // one that has just gone
	for name, want := range map[string]calls{"iptables": {ip4: true}, "ip6tables": {ip6: true}, "arptables": {arp: true}} {
		for _, value := range []string{"1", "0"} {
			if out, err := h.Command(t.Context(), "ip", "link", "set", "br0", "type", "bridge", "nf_call_"+name, value).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			var found map[int]calls
			if err := h.Do(func() (err error) { found, err = readBridgeCalls(h.bridges); return err }); err != nil {
				t.Fatal(err)
			}
			if value == "0" {
				want = calls{}
			}
			if len(found) != 1 || found[ifindex] != want {
				t.Errorf("with nf_call_%s %s, bridges call %+v, want %+v", name, value, found, want)
			}
		}
	}
}
