package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"
)

const digestTrailer = "X-Sha256"

// FetchReport says how a transfer went.
type FetchReport struct {
	Bytes   int64
	SHA256  [sha256.Size]byte // the same on both ends
	Elapsed time.Duration     // from the request to the last byte, hashing included
}

// MbPerSecond gives the rate of the payload, in 10⁶ bit/s.
func (r FetchReport) MbPerSecond() float64 {
	return float64(r.Bytes) * 8 / 1e6 / r.Elapsed.Seconds()
}

// Fetch fetches size bytes by HTTP over TCP, from addr, which is the server's,
// into the client. The bytes are pseudo-random, and both ends hash them; it
// fails if the hashes differ or ctx ends before the transfer does. It is a check of
// bytes, no benchmark: making and hashing them is part of the time.
func Fetch(ctx context.Context, client, server *Node, addr netip.Addr, size int64) (FetchReport, error) {
	report, err := fetch(ctx, client, server, addr, size)
	if err != nil {
		return report, fmt.Errorf("fetching %d bytes from %s into %s: %w", size, server.name, client.name, err)
	}
	return report, nil
}

func fetch(ctx context.Context, client, server *Node, addr netip.Addr, size int64) (report FetchReport, err error) {
	l, err := server.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		return report, err
	}
	httpServer := &http.Server{Handler: http.HandlerFunc(serveRandom)}
	served := make(chan error, 1)
	go func() { served <- httpServer.Serve(l) }()
	defer func() {
		closeErr := httpServer.Close()
		if serveErr := <-served; !errors.Is(serveErr, http.ErrServerClosed) {
			closeErr = errors.Join(closeErr, serveErr)
		}
		if err == nil {
			err = closeErr
		}
	}()

	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return client.Dial(ctx, network, address)
		},
		DisableCompression: true,
		DisableKeepAlives:  true,
	}
	defer transport.CloseIdleConnections()

	url := fmt.Sprintf("http://%v/?size=%d&seed=%d", l.Addr(), size, rand.Uint64())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return report, err
	}
	begin := time.Now()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return report, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return report, fmt.Errorf("the server says %s", resp.Status)
	}
	hash := sha256.New()
	report.Bytes, err = io.CopyBuffer(hash, resp.Body, make([]byte, 256<<10))
	report.Elapsed = time.Since(begin)
	if err != nil {
		return report, fmt.Errorf("after %d bytes: %w", report.Bytes, err)
	}
	hash.Sum(report.SHA256[:0])
	if got, sent := hex.EncodeToString(report.SHA256[:]), resp.Trailer.Get(digestTrailer); report.Bytes != size || got != sent {
		return report, fmt.Errorf("%d bytes came with hash %s, but %s was sent", report.Bytes, got, sent)
	}
	return report, nil
}

// serveRandom sends as many pseudo-random bytes as the request says, and their
// hash in a trailer.
func serveRandom(w http.ResponseWriter, r *http.Request) {
	size, err := strconv.ParseInt(r.FormValue("size"), 10, 64)
	if err != nil || size < 0 {
		http.Error(w, "bad size", http.StatusBadRequest)
		return
	}
	source := rand.NewChaCha8(sha256.Sum256([]byte(r.FormValue("seed"))))
	w.Header().Set("Trailer", digestTrailer)
	w.Header().Set("Content-Type", "application/octet-stream")
	hash := sha256.New()
	block := make([]byte, 256<<10)
	for size > 0 {
		b := block[:min(size, int64(len(block)))]
		_, _ = source.Read(b) // never fails
		hash.Write(b)
		n, err := w.Write(b)
		if err != nil {
			return // the client finds the trailer missing
		}
		size -= int64(n)
	}
	w.Header().Set(digestTrailer, hex.EncodeToString(hash.Sum(nil)))
}
