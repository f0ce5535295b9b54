package mix

import (
	"errors"
	"fmt"

	"github.com/tapswitch/tapswitch/testvm/lab"
)

// The classes of load.
const (
	Bulk     = "bulk"
	Requests = "rr"
	UDP      = "udp"
	Acks     = "ack"
	Mix      = "mix"
	Flood    = "flood"
)

// Classes are all of them, in the order of the tables.
var Classes = []string{Bulk, Requests, UDP, Acks, Mix, Flood}

// A cell is a load that is measured by every way.
type cell struct {
	class, name string
	v6          bool
	start       func(h *host, v6 bool) ([]load, error)
}

func (c cell) family() string {
	if c.v6 {
		return "ipv6"
	}
	return "ipv4"
}

// Directions of bulk streams.
const (
	intoGuest   = "into a guest"
	outOfGuest  = "out of a guest"
	acrossGuest = "guest to guest"
)

// ackFlows is how many flows acknowledge beside the bulk stream.
const ackFlows = 1000

// The load of the mix: what fits beside a bulk stream on two CPUs.
const (
	mixRequests  = 8
	mixDatagrams = 20_000
)

// floodRate is how many frames per second a guest sends, each from another address.
const floodRate = 20_000

// cells gives all loads of a class, or of all classes if it is empty.
func cells(class string) (list []cell) {
	for _, v6 := range []bool{false, true} {
		for _, c := range allCells() {
			if class == "" || c.class == class {
				c.v6 = v6
				list = append(list, c)
			}
		}
	}
	return list
}

func allCells() (list []cell) {
	add := func(class, name string, start func(h *host, v6 bool) ([]load, error)) {
		list = append(list, cell{class: class, name: name, start: start})
	}
	for _, direction := range []string{intoGuest, outOfGuest, acrossGuest} {
		for _, n := range []int{1, 8} {
			add(Bulk, fmt.Sprintf("%s %s", count(n, "stream"), direction), func(h *host, v6 bool) ([]load, error) {
				from, to := h.ends(direction)
				return loads(func() (load, error) { return startBulk(from, to, v6, n) })
			})
		}
	}
	for _, n := range []int{1, 8, 64} {
		add(Requests, fmt.Sprintf("%d in flight", n), func(h *host, v6 bool) ([]load, error) {
			return loads(func() (load, error) { return startRequests(h.Wire, h.Guests[0].Node, v6, n) })
		})
	}
	for _, rate := range []int{50_000, 100_000, 200_000} {
		add(UDP, fmt.Sprintf("%d datagrams/s", rate), func(h *host, v6 bool) ([]load, error) {
			return loads(func() (load, error) { return startDatagrams(h.Wire, h.Guests[0].Node, v6, rate) })
		})
	}
	add(Acks, fmt.Sprintf("download beside %d flows", ackFlows), func(h *host, v6 bool) ([]load, error) {
		return loads(
			func() (load, error) { return startAcks(h.Guests[0].Node, h.Wire, v6, ackFlows) },
			func() (load, error) { return startBulk(h.Wire, h.Guests[0].Node, v6, 1) })
	})
	add(Mix, "bulk, requests and datagrams", func(h *host, v6 bool) ([]load, error) {
		return loads(
			func() (load, error) { return startRequests(h.Wire, h.Guests[0].Node, v6, mixRequests) },
			func() (load, error) { return startDatagrams(h.Wire, h.Guests[0].Node, v6, mixDatagrams) },
			func() (load, error) { return startBulk(h.Wire, h.Guests[0].Node, v6, 1) })
	})
	// Last, because the bridges keep the addresses for a while.
	add(Flood, "8 in flight beside a flood", func(h *host, v6 bool) ([]load, error) {
		return loads(
			func() (load, error) { return startRequests(h.Wire, h.Guests[0].Node, v6, mixRequests) },
			func() (load, error) { return startFlood(h.Guests[1], floodRate) })
	})
	return list
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (h *host) ends(direction string) (from, to *lab.Node) {
	switch direction {
	case outOfGuest:
		return h.Guests[0].Node, h.Wire
	case acrossGuest:
		return h.Guests[1].Node, h.Guests[0].Node
	}
	return h.Wire, h.Guests[0].Node
}

// loads starts all, or none.
func loads(starts ...func() (load, error)) (list []load, err error) {
	for _, start := range starts {
		l, err := start()
		if err != nil {
			return nil, errors.Join(err, closeAll(list))
		}
		list = append(list, l)
	}
	return list, nil
}

func closeAll(list []load) error {
	var errs []error
	for _, l := range list {
		errs = append(errs, l.close())
	}
	return errors.Join(errs...)
}
