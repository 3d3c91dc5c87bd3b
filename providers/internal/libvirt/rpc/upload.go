package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/digitalocean/go-libvirt"
)

// chunk is the most that is read, and sent, before progress is noted: small enough for a slow line.
const chunk = 256 << 10

var (
	errShort = fmt.Errorf("the source ended early: %w", io.ErrUnexpectedEOF)
	errLong  = errors.New("the source has more bytes than were announced")
	errIdle  = errors.New("the upload made no progress, the connection was closed")
)

// VolumeUpload writes length bytes of r into a volume. The daemon takes less than it was promised for a success, so r must
// give exactly length bytes. There is no limit of time, but one for no progress, after which the connection is closed.
//
// Reading from r is over when VolumeUpload returns, unless r itself is stuck: its reads must end with ctx.
func (c *Conn) VolumeUpload(ctx context.Context, v libvirt.StorageVol, r io.Reader, length int64) error {
	const procedure = "StorageVolUpload"
	end := c.begin(ctx, procedure)
	err := c.upload(ctx, procedure, v, r, length)
	end(err)
	return err
}

func (c *Conn) upload(ctx context.Context, procedure string, v libvirt.StorageVol, r io.Reader, length int64) error {
	if err := ctx.Err(); err != nil {
		return &Error{Procedure: procedure, Err: err}
	}
	if cause := c.stream.why(); cause != nil {
		return &Error{Procedure: procedure, Lost: true, Err: cause}
	}
	idle := time.AfterFunc(c.options.UploadIdle, func() { c.stream.end(errIdle) })
	defer idle.Stop()
	source := &source{ctx: ctx, r: r, left: length, turn: make(chan struct{}, 1), progress: func() { idle.Reset(c.options.UploadIdle) }}
	answer := make(chan error, 1)
	go func() {
		_, err := guarded(c, func(l *libvirt.Libvirt) (none, error) {
			return none{}, l.StorageVolUpload(v, source, 0, uint64(length), 0)
		})
		answer <- err
	}()
	var err error
	select {
	case err = <-answer:
	case <-ctx.Done():
		// The source says so to the sender, which tells the daemon; then the connection can be used further.
		select {
		case err = <-answer:
		case <-time.After(farewell):
			c.stream.end(ctx.Err())
			err = <-answer
		}
	}
	source.stop(c.options.CallTimeout)
	// What the source said is the reason for whatever the daemon said then.
	if cause := source.failure(); cause != nil {
		return &Error{Procedure: procedure, Lost: c.Lost(), Err: cause}
	}
	if err == nil {
		return nil
	}
	return c.failure(procedure, err)
}

// source is the reader as the sender sees it.
type source struct {
	ctx      context.Context
	r        io.Reader
	left     int64
	progress func()

	failed  atomic.Pointer[error]
	stopped atomic.Bool
	// turn is held by who reads.
	turn chan struct{}
}

// Read implements io.Reader.
func (s *source) Read(p []byte) (int, error) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	if s.stopped.Load() {
		return 0, errClosed
	}
	// What was read before has been sent by now.
	s.progress()
	if err := s.ctx.Err(); err != nil {
		return 0, s.fail(err)
	}
	n, err := s.r.Read(p[:min(len(p), chunk)])
	s.left -= int64(n)
	switch {
	case s.left < 0:
		return 0, s.fail(errLong)
	case errors.Is(err, io.EOF) && s.left > 0:
		return n, s.fail(errShort)
	case err != nil && !errors.Is(err, io.EOF):
		return n, s.fail(err)
	}
	return n, err
}

func (s *source) fail(err error) error {
	s.failed.CompareAndSwap(nil, &err)
	return err
}

// failure is the source's own error; nil for none.
func (s *source) failure() error {
	if err := s.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// stop keeps r from being read again and waits for a read that is under way, but not longer than limit.
func (s *source) stop(limit time.Duration) {
	s.stopped.Store(true)
	select {
	case s.turn <- struct{}{}:
		<-s.turn
	case <-time.After(limit):
	}
}
