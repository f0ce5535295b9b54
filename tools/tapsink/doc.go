// Package tapsink stands in for guests when frames are to be counted, not
// understood: taps with one reader for all of them, on a CPU of its own.
package tapsink
