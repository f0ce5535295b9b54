package control

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/tapswitch/tapswitch/vswitch/control/handover"
)

// answerTimeout is how long a client waits for a whole answer.
const answerTimeout = 10 * time.Second

// A Client asks a running daemon by its socket.
type Client struct {
	socket string
	http   http.Client
}

var _ Switch = (*Client)(nil)

// Dial makes a client for the daemon at socket. It connects at the first
// request; the error is then an *UnreachableError if nobody answers.
func Dial(socket string) *Client {
	var d net.Dialer
	return &Client{
		socket: socket,
		http: http.Client{
			Timeout: answerTimeout,
			Transport: &http.Transport{
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return d.DialContext(ctx, "unix", socket)
				},
				MaxIdleConns: 1,
			},
		},
	}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status gives the switch as a whole.
func (c *Client) Status(ctx context.Context) (s Status, err error) {
	err = c.get(ctx, "/v1/status", nil, &s)
	return s, err
}

// Ports gives the ports of all bridges that the switch serves.
func (c *Client) Ports(ctx context.Context) (ports []Port, err error) {
	err = c.get(ctx, "/v1/ports", nil, &ports)
	return ports, err
}

// FDB gives the forwarding entries that the filter lets through. A filter by a
// bridge or port that the switch does not have is os.ErrNotExist.
func (c *Client) FDB(ctx context.Context, f FDBFilter) (entries []FDBEntry, err error) {
	query := url.Values{}
	if f.Bridge != "" {
		query.Set("bridge", f.Bridge)
	}
	if f.MAC != (FDBFilter{}).MAC {
		query.Set("mac", f.MAC.String())
	}
	if f.Port != "" {
		query.Set("port", f.Port)
	}
	err = c.get(ctx, "/v1/fdb", query, &entries)
	return entries, err
}

// Drops gives the frames lost after the datapath had sent them on.
func (c *Client) Drops(ctx context.Context) (drops []Drop, err error) {
	err = c.get(ctx, "/v1/drops", nil, &drops)
	return drops, err
}

// Stats gives the frames by port and verdict.
func (c *Client) Stats(ctx context.Context) (stats []Stats, err error) {
	err = c.get(ctx, "/v1/stats", nil, &stats)
	return stats, err
}

// Pause sends all frames of a port, or of a bridge's ports, by the bridge for the
// given time, MinPause to MaxPause. A name that the switch does not have is
// os.ErrNotExist.
func (c *Client) Pause(ctx context.Context, name string, d time.Duration) (p Pause, err error) {
	err = c.ask(ctx, http.MethodPost, "/v1/pause", url.Values{"name": {name}, "for": {d.String()}}, nil, &p)
	return p, err
}

// Resume ends the pause of a port, or of a bridge and each of its ports.
func (c *Client) Resume(ctx context.Context, name string) (p Pause, err error) {
	err = c.ask(ctx, http.MethodPost, "/v1/resume", url.Values{"name": {name}}, nil, &p)
	return p, err
}

func (c *Client) get(ctx context.Context, path string, query url.Values, answer any) error {
	return c.ask(ctx, http.MethodGet, path, query, nil, answer)
}

// ask makes a request; a nil answer stands for one without content.
func (c *Client) ask(ctx context.Context, method, path string, query url.Values, body []byte, answer any) error {
	u := url.URL{Scheme: "http", Host: "tapswitchd", Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("asking tapswitchd: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.unreachable(ctx, err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNoContent && answer == nil:
		return nil
	case resp.StatusCode != http.StatusOK:
		return readError(resp)
	}
	if err := json.NewDecoder(resp.Body).Decode(answer); err != nil {
		return fmt.Errorf("reading tapswitchd's answer to %s: %w (are tapswitch and tapswitchd of one version?)", path, err)
	}
	return nil
}

// An AnswerError is the daemon's word that it could not do what it was asked.
type AnswerError = handover.AnswerError

// An UnreachableError says that no daemon answers on the socket, why, and what
// to do.
type UnreachableError = handover.UnreachableError

func readError(resp *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return fmt.Errorf("reading tapswitchd's answer: %w", err)
	}
	return handover.ReadError(resp.StatusCode, resp.Status, text)
}

func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return handover.Unreachable(c.socket, answerTimeout, err)
}
