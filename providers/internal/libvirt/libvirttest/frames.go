package libvirttest

import (
	"net"
	"strings"
	"sync"
)

// Action is what happens to a call.
type Action int

// Actions. The default passes the call on, takes uploads, and answers about volumes as if they were files.
const (
	// Pass does nothing.
	Pass Action = iota
	// CutBefore closes the connection; libvirtd does not see the call.
	CutBefore
	// CutAfter lets libvirtd carry the call out and closes the connection instead of answering.
	CutAfter
	// Fail answers with Fault.Code and Fault.Message; libvirtd does not see the call.
	Fail
	// Stall lets libvirtd carry the call out and never answers.
	Stall
	// Hold never answers, and libvirtd does not see the call.
	Hold
	// CutUpload takes an upload and closes the connection after Fault.Bytes of it.
	CutUpload
)

// Fault is what to do with a call.
type Fault struct {
	Action  Action
	Code    int
	Message string
	Bytes   int64
}

// Call is a call that arrives.
type Call struct {
	Procedure Procedure
	// N counts calls since the last Reset, from 0; Nth those of the same procedure.
	N, Nth int
}

// Frames is a man in the middle on the way to libvirtd's socket.
type Frames struct {
	backend  string
	listener net.Listener

	mu       sync.Mutex
	closed   bool
	decide   func(Call) Fault
	calls    []Procedure
	inFlight int
	most     int
	opened   int
	open     map[net.Conn]bool
	uploads  map[string]*upload
	uuid     string
	wg       sync.WaitGroup
}

func newFrames(listener net.Listener, backend string) *Frames {
	f := &Frames{backend: backend, listener: listener, open: map[net.Conn]bool{}, uploads: map[string]*upload{}}
	f.wg.Go(f.serve)
	return f
}

// Decide says what happens to each call from now on; nil passes all. It is called for one call at a time.
func (f *Frames) Decide(decide func(Call) Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decide = decide
}

// Calls are the calls since the last Reset, in their order.
func (f *Frames) Calls() []Procedure {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]Procedure(nil), f.calls...)
}

// Count is how many calls of a procedure arrived since the last Reset.
func (f *Frames) Count(p Procedure) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count(p)
}

func (f *Frames) count(p Procedure) int {
	n := 0
	for _, called := range f.calls {
		if called == p {
			n++
		}
	}
	return n
}

// MostInFlight is how many calls were under way at once, at most, since the last Reset.
func (f *Frames) MostInFlight() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most
}

// Opened is how many connections there were since the last Reset, Open how many there are.
func (f *Frames) Opened() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.opened
}

// Open is how many connections there are.
func (f *Frames) Open() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.open)
}

// Uploaded is how many bytes of the last upload into a volume have arrived; -1 if there was none.
func (f *Frames) Uploaded(pool, volume string) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if u := f.uploads[pool+"/"+volume]; u != nil {
		return u.bytes
	}
	return -1
}

// Identify makes the host say that it has a UUID: the test driver has none.
func (f *Frames) Identify(uuid string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.uuid = uuid
}

// Reset counts from 0 again and passes all calls.
func (f *Frames) Reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decide, f.calls, f.most, f.opened = nil, nil, f.inFlight, 0
}

// Cut closes all connections.
func (f *Frames) Cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for conn := range f.open {
		_ = conn.Close()
	}
}

func (f *Frames) close() {
	_ = f.listener.Close()
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.Cut()
	f.wg.Wait()
}

func (f *Frames) serve() {
	for {
		conn, err := f.listener.Accept()
		if err != nil {
			return
		}
		f.mu.Lock()
		if f.closed {
			_ = conn.Close()
		}
		f.open[conn] = true
		f.opened++
		f.mu.Unlock()
		f.wg.Go(func() {
			f.connection(conn)
			f.mu.Lock()
			defer f.mu.Unlock()
			delete(f.open, conn)
		})
	}
}

// pending is what is to happen with the answer to a call.
type pending struct {
	action    Action
	procedure Procedure
	// volume whose description the answer is; "" for other calls.
	volume string
}

// session is one connection through Frames.
type session struct {
	frames         *Frames
	client, server net.Conn

	writing sync.Mutex
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
	s := &session{frames: f, client: client, server: server, pending: map[uint32]pending{}, streams: map[uint32]*stream{}}
	var back sync.WaitGroup
	back.Go(func() {
		defer func() { _ = client.Close() }()
		s.answers()
	})
	s.calls()
	_ = client.Close()
	_ = server.Close()
	back.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inFlight -= len(s.pending)
}

// arrived counts a call and says what happens to it.
func (f *Frames) arrived(p Procedure) Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	call := Call{Procedure: p, N: len(f.calls), Nth: f.count(p)}
	f.calls = append(f.calls, p)
	f.inFlight++
	f.most = max(f.most, f.inFlight)
	if f.decide == nil {
		return Fault{}
	}
	return f.decide(call)
}

func (s *session) write(f frame) {
	s.writing.Lock()
	defer s.writing.Unlock()
	_, _ = s.client.Write(f)
}

// finish forgets a call whose answer is known.
func (s *session) finish(serial uint32) {
	s.mu.Lock()
	_, known := s.pending[serial]
	delete(s.pending, serial)
	s.mu.Unlock()
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
	p := pending{action: fault.Action, procedure: f.procedure()}
	if f.procedure() == StorageVolGetXMLDesc {
		p.volume, _ = takeVolume(f.body())
	}
	s.mu.Lock()
	s.pending[f.serial()] = p
	s.mu.Unlock()
	switch fault.Action {
	case CutBefore:
		return true, false
	case Fail:
		s.finish(f.serial())
		s.write(f.answer(typeReply, statusError, errorBody(fault.Code, fault.Message)))
		return false, false
	case Hold:
		return false, false
	}
	volume, ok := takeVolume(f.body())
	switch f.procedure() {
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
		s.write(f.answer(typeReply, statusOK, nil))
		return false, false
	}
	return false, true
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
	after := s.pending[f.serial()].action == CutAfter
	delete(s.streams, f.serial())
	s.mu.Unlock()
	if after {
		return false
	}
	s.finish(f.serial())
	if f.status() == statusError {
		s.write(f.answer(typeStream, statusError, errorBody(39, "stream aborted at client request")))
		return true
	}
	s.write(f.answer(typeStream, statusOK, nil))
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
		switch p.action {
		case CutAfter:
			return
		case Stall:
			continue
		}
		s.finish(f.serial())
		s.write(s.frames.embellish(f, p))
	}
}

// embellish adds to an answer what the test driver leaves out.
func (f *Frames) embellish(answer frame, p pending) frame {
	if answer.status() != statusOK || p.procedure != StorageVolGetXMLDesc && p.procedure != ConnectGetCapabilities {
		return answer
	}
	xml, _, ok := takeString(answer.body())
	if !ok {
		return answer
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.procedure == StorageVolGetXMLDesc {
		xml = likeFiles(xml, f.uploads[p.volume])
	} else if f.uuid != "" {
		xml = strings.Replace(xml, "<host>", "<host><uuid>"+f.uuid+"</uuid>", 1)
	}
	return answer.answer(typeReply, statusOK, appendString(nil, xml))
}
