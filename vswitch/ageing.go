package vswitch

import "time"

// RefreshEvery gives how often addresses in use on the fast path are to be
// refreshed in a bridge with the given ageing time; 0 if the bridge keeps
// addresses for ever or not at all.
//
// The fast path hides frames from the bridge's learning. An address that it saw
// since the last round is refreshed, so it lives on, and once silent it goes at
// the bridge's own ageing time, late by one round at most: a thirty-second of
// the ageing time, but 10 s at most, and 250 ms at least so that a bridge with
// a very short time does not keep the daemon busy.
func RefreshEvery(ageing time.Duration) time.Duration {
	if ageing <= 0 {
		return 0
	}
	return min(max(ageing/32, 250*time.Millisecond), 10*time.Second)
}
