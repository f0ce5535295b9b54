package libvirt

import (
	"cmp"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/digitalocean/go-libvirt"
)

// DefaultSockets are where a libvirt daemon with the QEMU driver listens: virtqemud,
// and libvirtd (or virtproxyd in its place).
var DefaultSockets = []string{"/run/libvirt/virtqemud-sock", "/run/libvirt/libvirt-sock"}

// A Target is a daemon to watch. The zero value is the system's QEMU driver.
type Target struct {
	uri     libvirt.ConnectURI // "": QEMUSystem
	sockets []string           // the first that answers; nil: DefaultSockets
}

// ParseTarget reads where a daemon is: the path of its socket, or a libvirt URI over
// a socket of this host like qemu:///system, test:///default or
// qemu:///system?socket=/run/other-sock. Empty stands for the system's QEMU driver.
func ParseTarget(s string) (Target, error) {
	switch {
	case s == "":
		return Target{}, nil
	case filepath.IsAbs(s):
		return Target{sockets: []string{s}}, nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme == "" || u.Path == "" {
		return Target{}, fmt.Errorf("reading %q: want a socket's path or a URI, like \"/run/libvirt/libvirt-sock\" or \"qemu:///system\"", s)
	}
	if _, transport, ok := strings.Cut(u.Scheme, "+"); u.Host != "" || ok && transport != "unix" {
		return Target{}, fmt.Errorf("reading %q: the daemon must be this host's, reached by its socket, like \"qemu:///system\"", s)
	}
	t := Target{uri: libvirt.RemoteURI(u)}
	if socket := u.Query().Get("socket"); socket != "" {
		t.sockets = []string{socket}
	}
	return t, nil
}

// where gives the driver, and the sockets to try in turn.
func (t Target) where() (libvirt.ConnectURI, []string) {
	sockets := t.sockets
	if sockets == nil {
		sockets = DefaultSockets
	}
	return cmp.Or(t.uri, libvirt.QEMUSystem), sockets
}
