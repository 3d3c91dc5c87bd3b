package libvirttest

import (
	"net"
	"sync"
)

// Link is the network in front of sshd.
type Link struct {
	backend  string
	listener net.Listener

	mu      sync.Mutex
	wake    *sync.Cond
	stalled bool
	closed  bool
	// open are the connections of clients, with the ones to sshd, nil for none.
	open   map[net.Conn]net.Conn
	opened int
	wg     sync.WaitGroup
}

func newLink(listener net.Listener, backend string) *Link {
	l := &Link{backend: backend, listener: listener, open: map[net.Conn]net.Conn{}}
	l.wake = sync.NewCond(&l.mu)
	l.wg.Go(l.serve)
	return l
}

// Address is where clients connect, host:port.
func (l *Link) Address() string { return l.listener.Addr().String() }

// Stall keeps everything back in both directions, like a link that is down: connections stay, nothing arrives.
func (l *Link) Stall() { l.set(true) }

// Resume ends Stall. What was kept back arrives now.
func (l *Link) Resume() { l.set(false) }

func (l *Link) set(stalled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stalled = stalled
	l.wake.Broadcast()
}

// Cut closes all connections.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	closeAll(l.open)
}

// closeAll closes both ends of connections: one whose far side is frozen does not notice the end of the other.
func closeAll(open map[net.Conn]net.Conn) {
	for client, server := range open {
		_ = client.Close()
		if server != nil {
			_ = server.Close()
		}
	}
}

// Open is how many connections of clients there are.
func (l *Link) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

// Opened is how many connections clients have made.
func (l *Link) Opened() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.opened
}

func (l *Link) close() {
	_ = l.listener.Close()
	l.mu.Lock()
	l.closed = true
	l.wake.Broadcast()
	l.mu.Unlock()
	l.Cut()
	l.wg.Wait()
}

func (l *Link) serve() {
	for {
		conn, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.mu.Lock()
		if l.closed {
			_ = conn.Close()
		}
		l.open[conn] = nil
		l.opened++
		l.mu.Unlock()
		l.wg.Go(func() {
			l.connection(conn)
			l.mu.Lock()
			defer l.mu.Unlock()
			delete(l.open, conn)
		})
	}
}

func (l *Link) connection(client net.Conn) {
	defer func() { _ = client.Close() }()
	if !l.pass() {
		return
	}
	server, err := net.Dial("tcp", l.backend)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	l.mu.Lock()
	l.open[client] = server
	l.mu.Unlock()
	var back sync.WaitGroup
	back.Go(func() {
		l.copy(client, server)
		_ = client.Close()
	})
	l.copy(server, client)
	_ = server.Close()
	back.Wait()
}

// pass waits until the link works; false when it is closed.
func (l *Link) pass() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.stalled && !l.closed {
		l.wake.Wait()
	}
	return !l.closed
}

func (l *Link) copy(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if !l.pass() {
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
