package sshdial_test

import (
	"crypto/rand"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/sshdial"
)

const streamlocal = "direct-streamlocal@openssh.com"

// server is an SSH server in the process of the test, with one socket behind it, which echoes.
type server struct {
	listener net.Listener
	hostKeys []ssh.Signer
	client   ssh.PublicKey
	// refuse is what it answers instead of opening a channel; 0 opens it.
	refuse ssh.RejectionReason
	// deaf never answers a request for a channel.
	deaf bool

	wg    sync.WaitGroup
	mu    sync.Mutex
	conns []net.Conn
}

func signer(t *testing.T, key libvirttest.Key) ssh.Signer {
	t.Helper()
	s, err := ssh.ParsePrivateKey(key.Private)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// serve starts a server for the time of the test; its end waits until all sessions are over.
func serve(t *testing.T, s *server) *server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.listener = listener
	s.wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, conn)
			s.mu.Unlock()
			s.wg.Go(func() { s.session(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		// Only clients that have closed let this end.
		s.wg.Wait()
	})
	return s
}

func (s *server) session(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if s.client == nil || string(key.Marshal()) != string(s.client.Marshal()) {
			return nil, io.EOF
		}
		return nil, nil
	}}
	for _, key := range s.hostKeys {
		config.AddHostKey(key)
	}
	session, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for channel := range channels {
		switch {
		case s.deaf:
		case s.refuse != 0:
			_ = channel.Reject(s.refuse, "no")
		case channel.ChannelType() != streamlocal:
			_ = channel.Reject(ssh.UnknownChannelType, "no")
		default:
			stream, requests, err := channel.Accept()
			if err != nil {
				return
			}
			go ssh.DiscardRequests(requests)
			s.wg.Go(func() { _, _ = io.Copy(stream, stream) })
		}
	}
	_ = session.Wait()
}

func (s *server) address() string { return s.listener.Addr().String() }

func (s *server) target() sshdial.Target { return target(s.listener) }

func target(listener net.Listener) sshdial.Target {
	host, port, _ := net.SplitHostPort(listener.Addr().String())
	number, _ := strconv.Atoi(port)
	return sshdial.Target{Address: host, Port: number, User: "virt", Socket: "/run/libvirt/libvirt-sock"}
}

// certificate is the host key of a server, signed by an authority.
func certificate(t *testing.T, authority, host ssh.Signer) ssh.Signer {
	t.Helper()
	cert := &ssh.Certificate{
		Key: host.PublicKey(), CertType: ssh.HostCert, ValidPrincipals: []string{"127.0.0.1"}, ValidBefore: ssh.CertTimeInfinity,
	}
	if err := cert.SignCert(rand.Reader, authority); err != nil {
		t.Fatal(err)
	}
	signed, err := ssh.NewCertSigner(cert, host)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}
