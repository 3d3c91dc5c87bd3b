//go:build bench

package bench

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// lateWatches delivers what watches of Proxies say some time later, as a cache does that cannot keep up.
type lateWatches struct {
	next http.RoundTripper
	lag  time.Duration
}

func (l lateWatches) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := l.next.RoundTrip(r)
	if err == nil && r.URL.Query().Has("watch") && strings.HasSuffix(r.URL.Path, "/proxies") {
		answer.Body = newLateBody(answer.Body, l.lag)
	}
	return answer, err
}

// lateBody is a body whose bytes can be read some time after they came.
type lateBody struct {
	io.Closer
	chunks chan chunk
	rest   []byte
	err    error
	done   chan struct{}
	once   sync.Once
}

type chunk struct {
	data []byte
	err  error
	due  time.Time
}

// lateChunks is how many chunks a body holds back; a watch of these benchmarks never has so many under way.
const lateChunks = 1 << 16

func newLateBody(body io.ReadCloser, lag time.Duration) *lateBody {
	l := &lateBody{Closer: body, chunks: make(chan chunk, lateChunks), done: make(chan struct{})}
	go func() {
		for {
			data := make([]byte, 32<<10)
			n, err := body.Read(data)
			select {
			case l.chunks <- chunk{data[:n], err, time.Now().Add(lag)}:
			case <-l.done:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return l
}

func (l *lateBody) Read(into []byte) (int, error) {
	for len(l.rest) == 0 {
		if l.err != nil {
			return 0, l.err
		}
		select {
		case <-l.done:
			return 0, io.ErrClosedPipe
		case c := <-l.chunks:
			timer := time.NewTimer(time.Until(c.due))
			select {
			case <-l.done:
				timer.Stop()
				return 0, io.ErrClosedPipe
			case <-timer.C:
			}
			l.rest, l.err = c.data, c.err
		}
	}
	n := copy(into, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

func (l *lateBody) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Closer.Close()
}
