package rpc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
)

const (
	// lengthBytes begin a frame and hold its length, which includes them and the header.
	lengthBytes = 4
	headerBytes = 24
	// maxFrame is libvirt's own limit for a message (32 MiB), and some room for headers.
	maxFrame = 32<<20 + 1<<16
)

var errNotLibvirt = errors.New("what answers at the socket is not libvirt")

// stream is the connection as the client library sees it. It follows the frames that arrive, because the library allocates
// whatever length a frame claims to have: a wrong socket would answer with text and cost a gigabyte or a panic. And it
// notes when the connection ends, so that this is known without a call.
type stream struct {
	net.Conn

	// length holds the first bytes of a frame, have is how many; left is what is to come of the frame behind them.
	length [lengthBytes]byte
	have   int
	left   uint32

	mu    sync.Mutex
	cause error
	gone  chan struct{}
}

func newStream(raw net.Conn) *stream { return &stream{Conn: raw, gone: make(chan struct{})} }

// Read implements net.Conn. One goroutine reads.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if err != nil {
		err = fmt.Errorf("the connection broke: %w", err)
	} else {
		err = s.follow(p[:n])
	}
	if err != nil {
		s.end(err)
		return 0, err
	}
	return n, nil
}

// follow checks the lengths of the frames in what has arrived.
func (s *stream) follow(data []byte) error {
	for len(data) > 0 {
		if s.left > 0 {
			n := min(uint32(len(data)), s.left)
			s.left -= n
			data = data[n:]
			continue
		}
		n := copy(s.length[s.have:], data)
		s.have += n
		data = data[n:]
		if s.have < lengthBytes {
			continue
		}
		length := binary.BigEndian.Uint32(s.length[:])
		if length < lengthBytes+headerBytes || length > maxFrame {
			return fmt.Errorf("%w: a message of %d bytes", errNotLibvirt, length)
		}
		s.have, s.left = 0, length-lengthBytes
	}
	return nil
}

// Close implements net.Conn.
func (s *stream) Close() error {
	s.end(errClosed)
	return nil
}

// end closes the connection once, for a reason that the calls under way are told.
func (s *stream) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		return
	}
	s.cause = cause
	_ = s.Conn.Close()
	close(s.gone)
}

// why is the reason for the end; nil as long as the connection lives.
func (s *stream) why() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}
