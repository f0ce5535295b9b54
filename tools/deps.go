//go:build deps

package tools

import (
	_ "github.com/BurntSushi/toml"
	_ "github.com/cilium/ebpf"
	_ "github.com/cilium/ebpf/cmd/bpf2go"
	_ "github.com/coreos/go-systemd/v22/daemon"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/gopacket/gopacket"
	_ "github.com/gopacket/gopacket/layers"
	_ "github.com/mdlayher/genetlink"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/songgao/water"
	_ "github.com/spf13/cobra"
	_ "github.com/spf13/cobra/doc"
	_ "github.com/vishvananda/netlink"
	_ "github.com/vishvananda/netns"
	_ "go.uber.org/goleak"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sys/unix"
)
