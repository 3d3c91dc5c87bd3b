package libvirttest

import (
	"net"
	"sync"
	"time"
)

// pending is what is to happen with the answer to a call.
type pending struct {
	action    Action
	delay     time.Duration
	procedure Procedure
	// volume whose description the answer is; "" for other calls.
	volume string
	// done is closed with the answer, for a call that is late; nil for others.
	done chan struct{}
}

// session is one connection through Frames.
type session struct {
	frames         *Frames
	client, server net.Conn

	writing sync.Mutex
	// late are calls that libvirtd is yet to see or to answer. over is closed when it says nothing more.
	late    sync.WaitGroup
	over    chan struct{}
	mu      sync.Mutex
	pending map[uint32]pending
	streams map[uint32]*stream
}

// stream is an upload that is taken.
type stream struct {
	upload *upload
	// cut is after how many bytes the connection is closed; -1 for never.
	cut int64
}

func (f *Frames) connection(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("unix", f.backend)
	if err != nil {
		return
	}
	f.mu.Lock()
	f.open[client] = server
	f.mu.Unlock()
	s := &session{frames: f, client: client, server: server, pending: map[uint32]pending{}, streams: map[uint32]*stream{}, over: make(chan struct{})}
	var back sync.WaitGroup
	back.Go(func() {
		defer func() { _ = client.Close() }()
		defer close(s.over)
		s.answers()
	})
	s.calls()
	_ = client.Close()
	s.late.Wait()
	_ = server.Close()
	back.Wait()
	s.mu.Lock()
	left := len(s.pending)
	s.pending = nil
	s.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inFlight -= left
}

func (s *session) write(f frame) {
	s.writing.Lock()
	defer s.writing.Unlock()
	_, _ = s.client.Write(f)
}

// answer answers the call of f, after a delay.
func (s *session) answer(f frame, delay time.Duration) {
	now := func() {
		s.finish(f.serial())
		s.write(f)
	}
	if delay > 0 {
		time.AfterFunc(delay, now)
		return
	}
	now()
}

// finish forgets a call whose answer is known.
func (s *session) finish(serial uint32) {
	s.mu.Lock()
	p, known := s.pending[serial]
	delete(s.pending, serial)
	s.mu.Unlock()
	if p.done != nil {
		close(p.done)
	}
	if known {
		s.frames.mu.Lock()
		s.frames.inFlight--
		s.frames.mu.Unlock()
	}
}

// calls passes on what the client says, until there is nothing more.
func (s *session) calls() {
	for {
		f, err := readFrame(s.client)
		if err != nil {
			return
		}
		if f.kind() == typeStream {
			s.mu.Lock()
			taken := s.streams[f.serial()]
			s.mu.Unlock()
			if taken != nil {
				if !s.take(f, taken) {
					return
				}
				continue
			}
		}
		if f.kind() == typeCall && f.program() == remoteProgram {
			if end, pass := s.call(f); end {
				return
			} else if !pass {
				continue
			}
		}
		if _, err := s.server.Write(f); err != nil {
			return
		}
	}
}

// call does with a call what was decided: the connection ends, or the call is passed on, or neither.
func (s *session) call(f frame) (end, pass bool) {
	fault := s.frames.arrived(f.procedure())
	p := pending{action: fault.Action, delay: fault.Delay, procedure: f.procedure()}
	if f.procedure() == StorageVolGetXMLDesc {
		p.volume, _ = takeVolume(f.body())
	}
	if fault.Until != nil {
		p.done = make(chan struct{})
	}
	s.mu.Lock()
	s.pending[f.serial()] = p
	s.mu.Unlock()
	switch fault.Action {
	case CutBefore:
		return true, false
	case Fail:
		s.answer(f.answer(typeReply, statusError, errorBody(fault.Code, fault.Message)), fault.Delay)
		return false, false
	case Hold:
		return false, false
	}
	volume, ok := takeVolume(f.body())
	switch f.procedure() {
	case ConnectClose:
		if s.waiting() {
			// Calls that libvirtd has begun it brings to their end.
			s.answer(f.answer(typeReply, statusOK, nil), fault.Delay)
			return false, false
		}
	case StorageVolDelete:
		s.frames.mu.Lock()
		delete(s.frames.uploads, volume)
		s.frames.mu.Unlock()
	case StorageVolUpload:
		if !ok || fault.Action == Stall {
			return false, false
		}
		taken := &stream{upload: &upload{volume: volume}, cut: -1}
		if fault.Action == CutUpload {
			taken.cut = fault.Bytes
		}
		s.frames.mu.Lock()
		s.frames.uploads[volume] = taken.upload
		s.frames.mu.Unlock()
		s.mu.Lock()
		s.streams[f.serial()] = taken
		s.mu.Unlock()
		s.after(fault.Until, func() { s.write(f.answer(typeReply, statusOK, nil)) })
		return false, false
	}
	if fault.Until != nil {
		s.after(fault.Until, func() {
			// libvirtd drops a call whose client goes before it has begun.
			if _, err := s.server.Write(f); err == nil {
				select {
				case <-p.done:
				case <-s.over:
				}
			}
		})
		return false, false
	}
	return false, true
}

// after does something when until is closed; at once when it is nil.
func (s *session) after(until <-chan struct{}, do func()) {
	if until == nil {
		do()
		return
	}
	s.late.Go(func() { <-until; do() })
}

// waiting tells whether there are late calls.
func (s *session) waiting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pending {
		if p.done != nil {
			return true
		}
	}
	return false
}

// take takes a piece of an upload; false ends the connection.
func (s *session) take(f frame, taken *stream) bool {
	if f.status() == statusContinue {
		s.frames.mu.Lock()
		defer s.frames.mu.Unlock()
		taken.upload.write(f.body())
		return taken.cut < 0 || taken.upload.bytes < taken.cut
	}
	s.mu.Lock()
	p := s.pending[f.serial()]
	delete(s.streams, f.serial())
	s.mu.Unlock()
	switch {
	case p.action == CutAfter:
		return false
	case f.status() == statusError:
		s.answer(f.answer(typeStream, statusError, errorBody(39, "stream aborted at client request")), p.delay)
	default:
		s.answer(f.answer(typeStream, statusOK, nil), p.delay)
	}
	return true
}

// answers passes on what libvirtd says, until there is nothing more.
func (s *session) answers() {
	for {
		f, err := readFrame(s.server)
		if err != nil {
			return
		}
		if f.kind() != typeReply {
			s.write(f)
			continue
		}
		s.mu.Lock()
		p := s.pending[f.serial()]
		s.mu.Unlock()
		if p.procedure == StorageVolCreateXML && f.status() == statusOK {
			s.frames.created(f)
		}
		switch p.action {
		case CutAfter:
			return
		case Stall:
			continue
		}
		s.answer(s.frames.embellish(f, p), p.delay)
	}
}
