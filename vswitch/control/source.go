package control

import "context"

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
	// Stats gives the frames by port and verdict, verdicts without frames too.
	Stats(context.Context) ([]Stats, error)
}
