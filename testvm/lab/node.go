package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Node is a network namespace of its own: one machine of a lab. Nothing names
// it; it lives as long as the Node does, and the kernel takes its devices away
// with it. Its loopback is up, duplicate address detection is off, so that IPv6
// addresses are usable within milliseconds (those of AddAddr at once), and it
// sends no router solicitations.
//
// All methods may be called from several goroutines.
type Node struct {
	name    string
	ns      netns.NsHandle
	netlink *netlink.Handle

	tasks   chan func()   // run by the node's own thread, which starts its commands
	ended   chan struct{} // closed when that thread's work is over
	closing sync.Once
	closed  chan struct{}
}

// NewNode makes a network namespace. Its name appears in errors only.
func NewNode(name string) (*Node, error) {
	n := &Node{
		name:   name,
		ns:     netns.None(),
		tasks:  make(chan func()),
		ended:  make(chan struct{}),
		closed: make(chan struct{}),
	}
	made := make(chan error)
	goThread(func() { n.serve(made) })
	if err := <-made; err != nil {
		return nil, fmt.Errorf("making the namespace of %s: %w", name, err)
	}
	if err := n.prepare(); err != nil {
		n.Close()
		return nil, fmt.Errorf("preparing the namespace of %s: %w", name, err)
	}
	return n, nil
}

// serve makes the namespace and runs the node's tasks in it. It leaves its
// goroutine locked, so the thread ends when the node is closed, and the kernel
// kills the commands which it started (see Command).
func (n *Node) serve(made chan<- error) {
	defer close(n.ended)
	ns, err := netns.New()
	if err != nil {
		made <- err
		return
	}
	n.ns = ns
	made <- nil
	for {
		select {
		case task := <-n.tasks:
			task()
		case <-n.closed:
			return
		}
	}
}

func (n *Node) prepare() error {
	var err error
	if n.netlink, err = netlink.NewHandleAt(n.ns, unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("opening a netlink socket: %w", err)
	}
	// The kernel takes the larger of "all" and a device's own value, and a new
	// device's own value is the default's.
	for _, conf := range []string{"all", "default"} {
		for name, value := range map[string]string{
			"accept_dad":           "0",
			"dad_transmits":        "0",
			"accept_ra":            "0",
			"router_solicitations": "0",
		} {
			err := n.SetSysctl("net/ipv6/conf/"+conf+"/"+name, value)
			if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
				return err
			}
		}
	}
	return n.SetUp("lo")
}

// Name gives the name that the node was made with.
func (n *Node) Name() string { return n.name }

// NetNS gives the namespace's file descriptor, which belongs to the node.
func (n *Node) NetNS() int { return int(n.ns) }

// Netlink gives a route netlink handle of the node's namespace. It belongs to
// the node and is gone after Close.
func (n *Node) Netlink() *netlink.Handle { return n.netlink }

// Do runs f on a thread inside the node's namespace and gives its error. f runs
// in a goroutine of its own; goroutines that f starts are outside the namespace,
// but what it opens (sockets, taps) stays inside. A panic in f is raised again
// in the caller, and so is runtime.Goexit, so testing.T's FailNow works.
func (n *Node) Do(f func() error) error {
	var (
		err      error
		panicked any
		returned bool
		done     = make(chan struct{})
	)
	goThread(func() {
		defer close(done)
		before, nsErr := netns.Get()
		if nsErr != nil {
			err, returned = fmt.Errorf("remembering the namespace before %s: %w", n.name, nsErr), true
			runtime.UnlockOSThread()
			return
		}
		defer before.Close()
		if nsErr := netns.Set(n.ns); nsErr != nil {
			err, returned = fmt.Errorf("entering %s: %w", n.name, nsErr), true
			runtime.UnlockOSThread()
			return
		}
		defer func() {
			if !returned {
				panicked = recover()
			}
			// A thread that can't go back must not be used again: it stays locked
			// and ends with this goroutine.
			if nsErr := netns.Set(before); nsErr != nil {
				err = errors.Join(err, fmt.Errorf("leaving %s: %w", n.name, nsErr))
				return
			}
			runtime.UnlockOSThread()
		}()
		err = f()
		returned = true
	})
	<-done
	switch {
	case panicked != nil:
		panic(panicked)
	case !returned:
		runtime.Goexit()
	}
	return err
}

// Listen announces on a TCP or UNIX stream address inside the node.
func (n *Node) Listen(network, address string) (net.Listener, error) {
	var (
		l  net.Listener
		lc net.ListenConfig
	)
	lc.SetMultipathTCP(false)
	err := n.Do(func() (err error) {
		l, err = lc.Listen(context.Background(), network, address)
		return err
	})
	return l, err
}

// ListenPacket announces on a UDP, IP or UNIX datagram address inside the node.
func (n *Node) ListenPacket(network, address string) (net.PacketConn, error) {
	var c net.PacketConn
	err := n.Do(func() (err error) {
		c, err = net.ListenPacket(network, address)
		return err
	})
	return c, err
}

// Dial connects from inside the node. The address must be numeric: there is no
// name service in a lab.
func (n *Node) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if !strings.HasPrefix(network, "unix") {
		if _, err := netip.ParseAddrPort(address); err != nil {
			return nil, fmt.Errorf("dialing from %s: %w", n.name, err)
		}
	}
	var c net.Conn
	err := n.Do(func() (err error) {
		c, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// SetSysctl writes a sysctl of the node, named as below /proc/sys
// ("net/ipv4/ip_forward"). The error is os.ErrNotExist where the kernel has none
// of this name.
func (n *Node) SetSysctl(name, value string) error {
	return n.Do(func() error {
		// Opened by the thread inside the namespace, which decides whose it is.
		f, err := os.OpenFile(filepath.Join("/proc/sys", name), os.O_WRONLY, 0)
		if err != nil {
			return fmt.Errorf("setting sysctl %s: %w", name, err)
		}
		defer f.Close()
		if _, err := f.WriteString(value); err != nil {
			return fmt.Errorf("setting sysctl %s to %q: %w", name, value, err)
		}
		return nil
	})
}

// Sysctl reads a sysctl of the node; see SetSysctl.
func (n *Node) Sysctl(name string) (string, error) {
	var value string
	err := n.Do(func() error {
		b, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if err != nil {
			return fmt.Errorf("reading sysctl %s: %w", name, err)
		}
		value = strings.TrimSpace(string(b))
		return nil
	})
	return value, err
}

// Close ends the node: the commands that Command started are killed, and the
// kernel removes the namespace with its devices as soon as nothing else (a
// socket, a tap, a process) is in it. Closing again does nothing.
func (n *Node) Close() error {
	var err error
	n.closing.Do(func() {
		close(n.closed)
		<-n.ended
		if n.netlink != nil {
			n.netlink.Close()
		}
		err = n.ns.Close()
	})
	if err != nil {
		return fmt.Errorf("closing %s: %w", n.name, err)
	}
	return nil
}
