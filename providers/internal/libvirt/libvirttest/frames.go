package libvirttest

import (
	"net"
	"strings"
	"sync"
	"time"
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
	// Delay of the answer. libvirtd sees the call at once, and answers to other calls do not wait.
	Delay time.Duration
	// Until it is closed libvirtd does not see the call; then it does, even when the client is gone. Other calls do not wait.
	// nil for at once.
	Until <-chan struct{}
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
	// open are the connections of clients, with the ones to libvirtd, nil for none.
	open    map[net.Conn]net.Conn
	uploads map[string]*upload
	uuid    string
	wg      sync.WaitGroup
}

func newFrames(listener net.Listener, backend string) *Frames {
	f := &Frames{backend: backend, listener: listener, open: map[net.Conn]net.Conn{}, uploads: map[string]*upload{}}
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
	closeAll(f.open)
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
		f.open[conn] = nil
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

// created forgets what was uploaded into an earlier volume of the same name: libvirtd itself has forgotten the volume when it
// was restarted, or when it was deleted beside Frames.
func (f *Frames) created(answer frame) {
	if volume, ok := takeVolume(answer.body()); ok {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.uploads, volume)
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
