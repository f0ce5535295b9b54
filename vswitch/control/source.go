package control

import (
	"context"
	"time"
)

// A Source is what the API shows: the daemon itself, or, for its users, a Client.
// Its methods are called by several goroutines at once. What they give is the
// caller's to keep.
type Source interface {
	// Status gives the switch as a whole.
	Status(context.Context) (Status, error)
	// Ports gives every port of every bridge that the switch serves, by bridge
	// and name.
	Ports(context.Context) ([]Port, error)
	// FDB gives the forwarding entries that the filter lets through, by bridge,
	// VLAN and address.
	FDB(context.Context, FDBFilter) ([]FDBEntry, error)
	// Drops gives the frames lost after the datapath had sent them on, by port
	// and reason.
	Drops(context.Context) ([]Drop, error)
	// Stats gives the frames by port and verdict, verdicts without frames too, and
	// last NoPort's.
	Stats(context.Context) ([]Stats, error)
}

// A Switch is what the API shows and can change: the daemon itself, or, for its
// users, a Client.
type Switch interface {
	Source
	// Pause sends all frames of a port, or of a bridge's ports, by the bridge for
	// the given time from now on, also if they are paused already. A name that the
	// switch does not have is os.ErrNotExist.
	Pause(ctx context.Context, name string, d time.Duration) (Pause, error)
	// Resume ends the pause of a port, or of a bridge and each of its ports. One
	// that is not paused is no error.
	Resume(ctx context.Context, name string) (Pause, error)
	// Hook takes what libvirt has told its hook script. It returns at once: with
	// strict a guest's start waits for it. Without, hooks that libvirt calls one
	// shortly after the other may come in another order.
	Hook(context.Context, Hook) error
}
