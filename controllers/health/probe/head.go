package probe

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// MaxHeadBytes bounds what a proxy may send before the tunnel starts, and what a target may send before its body.
// Real heads are below 1 KiB; the usual client accepts 10 MiB, which a hostile proxy turns into memory and time.
const MaxHeadBytes = 16 << 10

// maxInformational is how many 1xx answers may precede the final one.
const maxInformational = 5

// readerSize is the buffer of a pooled reader. Longer header lines are skipped in pieces.
const readerSize = 2048

var (
	// ErrNotATunnel says that the proxy's answer to CONNECT is not HTTP, or is followed by data of its own.
	ErrNotATunnel = errors.New("the answer to CONNECT is not a tunnel")
	// ErrHeadTooLarge says that a head exceeds MaxHeadBytes.
	ErrHeadTooLarge = errors.New("the head of the answer is too large")
)

// connectHead is what matters in a proxy's answer to CONNECT.
type connectHead struct {
	code       int
	retryAfter string
}

// readConnectHead reads the status line and headers of an answer to CONNECT, skipping a few 1xx answers. It keeps no
// header but Retry-After. The reader's source must be bounded (see boundedReader).
func readConnectHead(br *bufio.Reader) (connectHead, error) {
	for range maxInformational + 1 {
		line, err := br.ReadSlice('\n')
		if err != nil {
			if errors.Is(err, bufio.ErrBufferFull) {
				err = fmt.Errorf("%w: the status line does not end", ErrNotATunnel)
			}
			return connectHead{}, headError(line, err)
		}
		code, ok := parseStatusLine(line)
		if !ok {
			return connectHead{}, fmt.Errorf("%w: it does not start with an HTTP/1 status line", ErrNotATunnel)
		}
		head := connectHead{code: code}
		if err := readHeaders(br, &head); err != nil {
			return connectHead{}, err
		}
		if code >= 200 {
			return head, nil
		}
	}
	return connectHead{}, fmt.Errorf("%w: more than %d informational answers", ErrNotATunnel, maxInformational)
}

// headError tells a proxy that closed without a word (io.EOF) from one that stopped in the middle.
func headError(partial []byte, err error) error {
	if errors.Is(err, io.EOF) && len(partial) > 0 {
		return io.ErrUnexpectedEOF
	}
	return err
}

// parseStatusLine accepts "HTTP/1.x NNN" followed by a space or the line's end, with a code from 100 to 599.
func parseStatusLine(line []byte) (int, bool) {
	line = bytes.TrimRight(line, "\r\n")
	if len(line) < len("HTTP/1.1 200") || !bytes.HasPrefix(line, []byte("HTTP/1.")) || line[8] != ' ' {
		return 0, false
	}
	if minor := line[7]; minor < '0' || minor > '9' {
		return 0, false
	}
	if len(line) > 12 && line[12] != ' ' {
		return 0, false
	}
	code := 0
	for _, c := range line[9:12] {
		if c < '0' || c > '9' {
			return 0, false
		}
		code = code*10 + int(c-'0')
	}
	return code, code >= 100 && code <= 599
}

func readHeaders(br *bufio.Reader, head *connectHead) error {
	continued := false
	for {
		line, err := br.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			continued = true
			continue
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		if continued { // the rest of a line longer than the buffer
			continued = false
			continue
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return nil
		}
		if name, value, ok := bytes.Cut(line, []byte(":")); ok && strings.EqualFold(string(name), "Retry-After") {
			head.retryAfter = strings.TrimSpace(string(value))
		}
	}
}

// parseRetryAfter reads RFC 9110 section 10.2.3: seconds or a date. Zero means absent, past or unreadable; the caller
// clamps.
func parseRetryAfter(value string, now time.Time) time.Duration {
	if value == "" {
		return 0
	}
	if seconds, err := strconv.ParseInt(value, 10, 32); err == nil {
		return max(0, time.Duration(seconds)*time.Second)
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

// boundedReader fails with ErrHeadTooLarge after n bytes, so that no peer decides how much is read.
type boundedReader struct {
	r io.Reader
	n int
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.n <= 0 {
		return 0, ErrHeadTooLarge
	}
	if len(p) > b.n {
		p = p[:b.n]
	}
	n, err := b.r.Read(p)
	b.n -= n
	return n, err
}
