package uplink

import (
	"errors"
	"fmt"
	"os"
)

// brNetfilter are the sysctls by which br_netfilter sends bridged frames through
// the host's IP rules. The kernel's default is 1 for all.
var brNetfilter = []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables", "bridge-nf-call-arptables"}

// hasBrNetfilter says whether the kernel has br_netfilter, loaded.
func hasBrNetfilter() bool {
	_, err := os.Stat("/proc/sys/net/bridge/" + brNetfilter[0])
	return err == nil
}

// setBrNetfilter switches it on or off in this network namespace. Where the
// kernel doesn't have it, it is off.
func setBrNetfilter(on bool) error {
	value := []byte("0")
	if on {
		value = []byte("1")
	}
	for _, name := range brNetfilter {
		err := os.WriteFile("/proc/sys/net/bridge/"+name, value, 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("setting net.bridge.%s: %w", name, err)
		}
	}
	return nil
}
