package guestbpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A device is a network device as the kernel tells of it.
type device struct {
	name    string
	ifindex int
	mtu     int
	mac     [6]byte
	flags   uint32
	xdp     uint32 // id of the program that is attached; 0 if none

	up, running bool // running: it has a carrier too
	master      int  // the bridge, bond or VRF that it belongs to; 0 if none
	carrier     int  // the device below a VLAN device; 0 if it is none, or not of 802.1Q
	vid         int  // of a VLAN device

	ipv4, ipv6 protocol
}

// A protocol is IPv4 or IPv6 on a device.
type protocol struct {
	on         bool
	forwarding bool
	mtu        int
}

// deviceByName finds a device. The error is os.ErrNotExist if there is none.
func deviceByName(name string) (*device, error) {
	if name == "" || len(name) >= syscall.IFNAMSIZ {
		return nil, fmt.Errorf("looking for device %q: %w", name, os.ErrNotExist)
	}
	d, err := findDevice(append(ifinfo(0), attribute(syscall.IFLA_IFNAME, append([]byte(name), 0))...))
	if err != nil {
		return nil, fmt.Errorf("looking for device %s: %w", name, err)
	}
	return d, nil
}

// deviceByIndex finds a device. The error is os.ErrNotExist if there is none.
func deviceByIndex(ifindex int) (*device, error) {
	d, err := findDevice(ifinfo(ifindex))
	if err != nil {
		return nil, fmt.Errorf("looking for device %d: %w", ifindex, err)
	}
	return d, nil
}

func findDevice(ask []byte) (*device, error) {
	reply, err := request(syscall.RTM_GETLINK, 0, ask)
	if errors.Is(err, syscall.ENODEV) {
		return nil, os.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	return readDevice(reply)
}

func readDevice(reply []byte) (*device, error) {
	if len(reply) < sizeofIfinfo {
		return nil, errors.New("the kernel's reply is cut off")
	}
	d := &device{ifindex: int(binary.NativeEndian.Uint32(reply[4:])), flags: binary.NativeEndian.Uint32(reply[8:])}
	attrs := attributes(reply[sizeofIfinfo:])
	d.name = strings.TrimRight(string(attrs[syscall.IFLA_IFNAME]), "\x00")
	d.mtu = int(readNumber(attrs[syscall.IFLA_MTU]))
	copy(d.mac[:], attrs[syscall.IFLA_ADDRESS])
	flags := binary.NativeEndian.Uint32(reply[8:])
	d.up, d.running = flags&syscall.IFF_UP != 0, flags&unix.IFF_LOWER_UP != 0
	d.master = int(readNumber(attrs[unix.IFLA_MASTER]))
	d.readVLAN(attrs)
	d.readProtocols(attributes(attrs[unix.IFLA_AF_SPEC]))
	xdp := attributes(attrs[attrXDP])
	if a := xdp[xdpAttached]; len(a) > 0 && a[0] != 0 {
		d.xdp = readNumber(xdp[xdpProgID])
	}
	return d, nil
}

func (d *device) readVLAN(attrs map[uint16][]byte) {
	info := attributes(attrs[unix.IFLA_LINKINFO])
	if kind := strings.TrimRight(string(info[unix.IFLA_INFO_KIND]), "\x00"); kind != "vlan" {
		return
	}
	if _, elsewhere := attrs[unix.IFLA_LINK_NETNSID]; elsewhere {
		return
	}
	data := attributes(info[unix.IFLA_INFO_DATA])
	vid, proto := data[unix.IFLA_VLAN_ID], data[unix.IFLA_VLAN_PROTOCOL]
	if len(vid) < 2 || len(proto) < 2 || binary.BigEndian.Uint16(proto) != unix.ETH_P_8021Q {
		return
	}
	d.carrier, d.vid = int(readNumber(attrs[unix.IFLA_LINK])), int(binary.NativeEndian.Uint16(vid))
}

// Where the kernel's arrays of settings have what routing asks for.
const (
	confForwarding4 = 0  // IPV4_DEVCONF_FORWARDING, of which the first is 1
	confForwarding6 = 0  // DEVCONF_FORWARDING
	confMTU6        = 2  // DEVCONF_MTU6
	confDisabled6   = 26 // DEVCONF_DISABLE_IPV6
)

func (d *device) readProtocols(families map[uint16][]byte) {
	setting := func(conf []byte, n int) int { return int(int32(readNumber(conf[min(4*n, len(conf)):]))) }
	if conf, ok := attributes(families[syscall.AF_INET])[unix.IFLA_INET_CONF]; ok {
		d.ipv4 = protocol{on: true, forwarding: setting(conf, confForwarding4) != 0, mtu: d.mtu}
	}
	if conf, ok := attributes(families[syscall.AF_INET6])[unix.IFLA_INET6_CONF]; ok {
		d.ipv6 = protocol{
			on: setting(conf, confDisabled6) == 0, forwarding: setting(conf, confForwarding6) != 0,
			mtu: min(d.mtu, setting(conf, confMTU6)),
		}
	}
}

// listDevices gives all devices by index.
func listDevices() (map[int]*device, error) {
	var (
		all  map[int]*device
		fail error
	)
	err := dump(syscall.RTM_GETLINK, ifinfo(0), func() { all = map[int]*device{} }, func(m syscall.NetlinkMessage) {
		d, err := readDevice(m.Data)
		if err != nil {
			fail = err
			return
		}
		all[d.ifindex] = d
	})
	if err := errors.Join(err, fail); err != nil {
		return nil, fmt.Errorf("listing devices: %w", err)
	}
	return all, nil
}

func readNumber(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

// refusal gives why the driver takes no program, in its own words: a BPF link, by
// which programs are attached, has an errno alone. It is nil if the driver takes it
// this time.
func (d *device) refusal(program int) error {
	attach := []byte{}
	attach = append(attach, attribute(xdpFD, number(uint32(program)))...)
	attach = append(attach, attribute(xdpFlags, number(xdpDriverMode|xdpIfNoExist))...)
	_, err := request(syscall.RTM_SETLINK, syscall.NLM_F_ACK, append(ifinfo(d.ifindex), attribute(attrXDP|attrNested, attach)...))
	if err != nil {
		return err
	}
	none := int32(-1)
	detach := []byte{}
	detach = append(detach, attribute(xdpFD, number(uint32(none)))...)
	detach = append(detach, attribute(xdpExpectedFD, number(uint32(program)))...)
	detach = append(detach, attribute(xdpFlags, number(xdpDriverMode|xdpReplace))...)
	_, err = request(syscall.RTM_SETLINK, syscall.NLM_F_ACK, append(ifinfo(d.ifindex), attribute(attrXDP|attrNested, detach)...))
	if err != nil {
		return fmt.Errorf("taking off a program that was to try %s only: %w", d.name, err)
	}
	return nil
}
