// Package mix compares the plain bridge and the fast path under real TCP and UDP, with
// real stacks on both ends: bulk streams, requests and answers, small datagrams, many
// acknowledgements, and all at once.
//
// Each way has a lab of its own, and all stand side by side, so that the ways can
// take turns within a second. Everything runs on the same CPUs: a figure like
// goodput contains what wire and guest cost, the same by every way, and so hides
// part of the difference between the ways. The host's own CPU time is told apart by
// package account.
package mix
