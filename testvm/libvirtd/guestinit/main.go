// Guestinit is the first process of a Linux guest of package libvirtd. It brings up
// eth0 with the address that the kernel's command line names by addr=, and answers
// datagrams to it; one that says "mac ADDRESS" makes it take another Ethernet address
// first, and one that says "from ADDRESS" is answered from that IP address. One that says
// "reboot" it does not answer, but reboots.
package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func main() {
	if err := run(); err != nil {
		fmt.Println("guestinit:", err)
	}
	select {} // the end of the first process would be the guest's
}

func run() error {
	for _, dir := range []string{"/proc", "/sys"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	modules, err := filepath.Glob("/modules/*") // in order of their names
	if err != nil {
		return err
	}
	for _, path := range modules {
		if err := load(path); err != nil {
			return fmt.Errorf("loading %s: %w", path, err)
		}
	}
	text, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	for word := range strings.FieldsSeq(string(text)) {
		if addr, ok := strings.CutPrefix(word, "addr="); ok {
			return answer(addr)
		}
	}
	return nil
}

func load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

func answer(addr string) error {
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("looking for eth0: %w", err)
	}
	a, err := netlink.ParseAddr(addr)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(eth0, a); err != nil {
		return fmt.Errorf("adding %s: %w", addr, err)
	}
	if err := netlink.LinkSetUp(eth0); err != nil {
		return fmt.Errorf("bringing eth0 up: %w", err)
	}
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: a.IP, Port: 9})
	if err != nil {
		return err
	}
	b := make([]byte, 2048)
	for {
		n, from, err := c.ReadFromUDP(b)
		if err != nil {
			return err
		}
		if string(b[:n]) == "reboot" {
			return unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
		}
		if text, ok := strings.CutPrefix(string(b[:n]), "mac "); ok {
			mac, err := net.ParseMAC(text)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetHardwareAddr(eth0, mac); err != nil {
				return fmt.Errorf("taking the address %s: %w", mac, err)
			}
		}
		if text, ok := strings.CutPrefix(string(b[:n]), "from "); ok {
			err = answerAs(eth0, text, b[:n], from)
		} else {
			_, err = c.WriteToUDP(b[:n], from)
		}
		if err != nil {
			return err
		}
	}
}

// answerAs answers from another address, which becomes one of the guest's.
func answerAs(eth0 netlink.Link, address string, b []byte, to *net.UDPAddr) error {
	a, err := netlink.ParseAddr(address + "/32")
	if err != nil {
		return err
	}
	if err := netlink.AddrReplace(eth0, a); err != nil {
		return fmt.Errorf("adding %s: %w", address, err)
	}
	c, err := net.DialUDP("udp4", &net.UDPAddr{IP: a.IP, Port: 9}, to)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write(b)
	return err
}
