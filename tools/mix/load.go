package mix

import "time"

// A load is traffic that is running between stations.
type load interface {
	// begin and end mark the time that counts.
	begin()
	end()
	// report adds what the load saw between the two. It may wait for what is still
	// on its way.
	report(Figures)
	// close ends the traffic.
	close() error
}

// A window is the time between begin and end.
type window struct {
	began time.Time
	took  time.Duration
}

func (w *window) begin() { w.began = time.Now() }
func (w *window) end()   { w.took = time.Since(w.began) }

// perSecond gives the rate of n in the window.
func (w *window) perSecond(n uint64) float64 { return float64(n) / w.took.Seconds() }
