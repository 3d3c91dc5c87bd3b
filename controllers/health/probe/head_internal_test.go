package probe

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

func parse(data []byte) (head connectHead, read int, err error) {
	source := &countingReader{r: bytes.NewReader(data)}
	head, err = readConnectHead(bufio.NewReaderSize(&boundedReader{r: source, n: MaxHeadBytes}, readerSize))
	return head, source.n, err
}

type countingReader struct {
	r io.Reader
	n int
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += n
	return n, err
}

func TestReadConnectHead(t *testing.T) {
	for _, tc := range []struct {
		in   string
		code int
		err  error
	}{
		{"HTTP/1.1 200 OK\r\n\r\n", 200, nil},
		{"HTTP/1.1 200\r\n\r\n", 200, nil},
		{"HTTP/1.0 200 Connection established\n\n", 200, nil},
		{"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 407 No\r\nA: b\r\n\r\n", 407, nil},
		{"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 9000) + "\r\n\r\n", 200, nil},
		{"", 0, io.EOF},
		{"HTTP/1.1 200", 0, io.ErrUnexpectedEOF},
		{"HTTP/1.1 200 OK\r\nX: y", 0, io.ErrUnexpectedEOF},
		{"HTTP/2 200 OK\r\n\r\n", 0, ErrNotATunnel},
		{"HTTP/1.x 200 OK\r\n\r\n", 0, ErrNotATunnel},
		{"HTTP/1.1 099 OK\r\n\r\n", 0, ErrNotATunnel},
		{"HTTP/1.1 999 OK\r\n\r\n", 0, ErrNotATunnel},
		{"HTTP/1.1 20 OK\r\n\r\n", 0, ErrNotATunnel},
		{"HTTP/1.1 2000 OK\r\n\r\n", 0, ErrNotATunnel},
		{"HTTP/1.1\t200 OK\r\n\r\n", 0, ErrNotATunnel},
		{"\r\nHTTP/1.1 200 OK\r\n\r\n", 0, ErrNotATunnel},
		{strings.Repeat("HTTP/1.1 102 P\r\n\r\n", 6), 0, ErrNotATunnel},
		{"HTTP/1.1 200 " + strings.Repeat("x", 3000), 0, ErrNotATunnel},
		{"HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 5000), 0, ErrHeadTooLarge},
		{"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 50000) + "\r\n\r\n", 0, ErrHeadTooLarge},
	} {
		head, _, err := parse([]byte(tc.in))
		if head.code != tc.code || !errors.Is(err, tc.err) || (tc.err == nil) != (err == nil) {
			t.Errorf("%.40q: got %d and error %v, want %d and %v", tc.in, head.code, err, tc.code, tc.err)
		}
	}
}

// Whatever a proxy sends: no panic, no more than the limit is read, and a head is either whole or an error.
func FuzzConnectHead(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 Connection established\r\n\r\n", "HTTP/1.0 407 x\r\nProxy-Authenticate: Basic\r\nRetry-After: 5\r\n\r\n", "HTTP/1.1 100 C\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
		"HTTP/1.1 200 OK\nA: b\n\n", "\x16\x03\x01\x02", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 3000) + "\r\n\r\ntail", "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		head, read, err := parse(data)
		if read > MaxHeadBytes {
			t.Fatalf("read %d bytes", read)
		}
		if err == nil {
			if head.code < 200 || head.code > 599 {
				t.Fatalf("accepted status %d", head.code)
			}
			if !bytes.HasPrefix(data, []byte("HTTP/1.")) || !bytes.Contains(data, []byte("\n")) {
				t.Fatalf("accepted %.60q", data)
			}
		} else if head != (connectHead{}) {
			t.Fatalf("both a head %+v and error %v", head, err)
		}
		if d := parseRetryAfter(head.retryAfter, time.Unix(0, 0)); d < 0 {
			t.Fatalf("negative Retry-After %s", d)
		}
	})
}

func TestParseRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for in, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "-7": 0, "x": 0, "Fri, 02 Jan 2026 03:05:05 GMT": time.Minute, "Fri, 02 Jan 2026 03:03:05 GMT": 0,
		"99999999999999999999": 0,
	} {
		if got := parseRetryAfter(in, now); got != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
}
