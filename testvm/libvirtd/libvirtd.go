// Package libvirtd runs a libvirtd of its own beside a lab, with real QEMU guests
// whose taps are in one of the lab's nodes.
package libvirtd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"
	"golang.org/x/sys/unix"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

// notifyName is the socket on which libvirtd tells that it is ready, as it tells
// systemd.
const notifyName = "notify.sock"

// What the first process of the namespaces can be told.
const (
	orderStart   = "start"
	orderKill    = "kill"
	orderStop    = "stop"
	orderSuspend = "suspend"
	orderResume  = "resume"
	answerOK     = "ok"
)

// Options say how a Daemon runs. The zero value is the default.
type Options struct {
	// Log receives what libvirtd logs from warnings on.
	Log io.Writer
}

// A Daemon is a libvirtd in PID, mount and UTS namespaces of its own and in a
// node's network namespace. It shares no file with the machine's own libvirtd, and
// no process of it outlives it.
type Daemon struct {
	// Socket is where it listens.
	Socket string

	dir     string
	cmd     *lab.Cmd
	orders  io.WriteCloser
	answers *bufio.Scanner
	notify  *net.UnixConn
}

// Start starts a libvirtd whose taps and networks are the node's, and waits until
// it is ready. The caller is isolated (see lab.Isolate): its files are below /run.
// It needs Debian's packages libvirt-daemon, libvirt-daemon-driver-qemu and
// qemu-system-x86, for filters libvirt-daemon-config-nwfilter and iptables, or others that have the same, and overlayfs.
func Start(ctx context.Context, n *lab.Node, o Options) (*Daemon, error) {
	dir, err := os.MkdirTemp("/run", "libvirtd")
	if err != nil {
		return nil, fmt.Errorf("making libvirtd's directory: %w", err)
	}
	d := &Daemon{dir: dir, Socket: filepath.Join(dir, "run", "libvirt-sock")}
	if err := d.begin(ctx, n, o); err != nil {
		return nil, errors.Join(fmt.Errorf("starting libvirtd: %w", err), d.Close())
	}
	return d, nil
}

func (d *Daemon) begin(ctx context.Context, n *lab.Node, o Options) error {
	if err := os.Mkdir(filepath.Join(d.dir, "run"), 0o755); err != nil {
		return err
	}
	var err error
	d.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(d.dir, "run", notifyName), Net: "unixgram"})
	if err != nil {
		return err
	}
	cmd := n.Command(context.WithoutCancel(ctx), "/proc/self/exe", d.dir)
	cmd.Args[0] = initName
	cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS
	cmd.Stderr = o.Log
	if d.orders, err = cmd.StdinPipe(); err != nil {
		return err
	}
	answers, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	d.answers = bufio.NewScanner(answers)
	if err := cmd.Start(); err != nil {
		return err
	}
	d.cmd = cmd
	return d.Run(ctx)
}

// Run starts libvirtd again, after Kill or Stop, and waits until it is ready.
func (d *Daemon) Run(ctx context.Context) error {
	if err := d.order(orderStart); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { d.notify.SetReadDeadline(time.Unix(1, 0)) })()
	b := make([]byte, 4096)
	for {
		n, err := d.notify.Read(b)
		if err != nil {
			return fmt.Errorf("waiting for libvirtd to be ready: %w", errors.Join(ctx.Err(), err))
		}
		if strings.Contains(string(b[:n]), "READY=1") {
			return nil
		}
	}
}

// Kill ends libvirtd by SIGKILL. Its guests go on.
func (d *Daemon) Kill() error { return d.order(orderKill) }

// Stop ends libvirtd by SIGTERM. Its guests go on.
func (d *Daemon) Stop() error { return d.order(orderStop) }

// Suspend lets libvirtd do nothing any more, until Resume.
func (d *Daemon) Suspend() error { return d.order(orderSuspend) }

// Resume lets a suspended libvirtd go on.
func (d *Daemon) Resume() error { return d.order(orderResume) }

func (d *Daemon) order(order string) error {
	if _, err := fmt.Fprintln(d.orders, order); err != nil {
		return fmt.Errorf("telling libvirtd's init to %s: %w", order, err)
	}
	if !d.answers.Scan() {
		return fmt.Errorf("telling libvirtd's init to %s: it has ended: %w", order, errors.Join(d.answers.Err(), io.ErrUnexpectedEOF))
	}
	if answer := d.answers.Text(); answer != answerOK {
		return fmt.Errorf("telling libvirtd's init to %s: %s", order, answer)
	}
	return nil
}

// Dir gives a directory for files that guests use, which goes with the daemon.
func (d *Daemon) Dir() string { return d.dir }

// Connect opens a connection to a driver of the daemon, like libvirt.QEMUSystem.
func (d *Daemon) Connect(uri libvirt.ConnectURI) (*libvirt.Libvirt, error) {
	c := libvirt.NewWithDialer(dialers.NewLocal(dialers.WithSocket(d.Socket)))
	if err := c.ConnectToURI(uri); err != nil {
		return nil, fmt.Errorf("connecting to %s by %s: %w", uri, d.Socket, err)
	}
	return c, nil
}

// Close ends libvirtd and its guests, and removes all that they have left.
func (d *Daemon) Close() error {
	var errs []error
	if d.cmd != nil {
		d.orders.Close() // its init ends, and the kernel all others with it
		var exit interface{ Sys() any }
		if err := d.cmd.Wait(); err != nil {
			if !errors.As(err, &exit) || !exit.Sys().(syscall.WaitStatus).Signaled() {
				errs = append(errs, fmt.Errorf("ending libvirtd: %w", err))
			}
		}
	}
	if d.notify != nil {
		errs = append(errs, d.notify.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(d.dir))...)
}
