package guestbpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// A device is a network device as the kernel tells of it.
type device struct {
	name    string
	ifindex int
	mtu     int
	mac     [6]byte
	flags   uint32
	xdp     uint32 // id of the program that is attached; 0 if none
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
	xdp := attributes(attrs[attrXDP])
	if a := xdp[xdpAttached]; len(a) > 0 && a[0] != 0 {
		d.xdp = readNumber(xdp[xdpProgID])
	}
	return d, nil
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
