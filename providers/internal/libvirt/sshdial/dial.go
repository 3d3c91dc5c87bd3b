package sshdial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

const (
	// Timeout of a whole Dial, beside the context's own: no step of the handshake has one.
	Timeout = 15 * time.Second
	// KeepAlive is how long a TCP connection is silent before the kernel asks, and the time between its questions.
	KeepAlive = 15 * time.Second
	// KeepAliveProbes without an answer end the connection.
	KeepAliveProbes = 3
)

// Auth is what the client knows: its own key, and those of the hosts.
type Auth struct {
	// Key is the private key in PEM or OpenSSH format, KnownHosts the text of a known_hosts file.
	Key, KnownHosts []byte
	// IgnoreHostKey takes every host for what it says it is. KnownHosts is not looked at then.
	IgnoreHostKey bool
}

// Source gives the credentials for one Dial.
type Source func(ctx context.Context) (Auth, error)

// Target is a socket on a host.
type Target struct {
	// Address is a name or an IP address, Port that of the SSH server.
	Address string
	Port    int
	// User on the host.
	User string
	// Socket is the path of a Unix socket on the host.
	Socket string
}

// Conn is a stream to the socket of a Target. Closing it closes everything that was opened for it.
type Conn struct {
	net.Conn

	tcp    net.Conn
	client *ssh.Client
	once   sync.Once
}

// Dial opens a stream to t.Socket. It ends with ctx or after Timeout, whichever is first; what it returns outlives ctx. All
// errors are *Error.
func Dial(ctx context.Context, t Target, auth Auth) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	address := net.JoinHostPort(t.Address, strconv.Itoa(t.Port))
	config, err := clientConfig(address, t.User, auth)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: KeepAlive, Interval: KeepAlive, Count: KeepAliveProbes}}
	tcp, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, &Error{Kind: Unreachable, Err: fmt.Errorf("connect to %s: %w", address, err)}
	}
	// The handshake and the opening of the channel know no context.
	stop := context.AfterFunc(ctx, func() { _ = tcp.Close() })
	conn, err := open(tcp, address, t.Socket, config)
	if !stop() && err == nil {
		// The context has closed the connection that was just ready.
		_ = conn.Close()
		err = &Error{Kind: Unreachable, Err: fmt.Errorf("set up SSH with %s: %w", address, net.ErrClosed)}
	}
	if err == nil {
		return conn, nil
	}
	_ = tcp.Close()
	if ctx.Err() != nil && KindOf(err) != AuthRefused {
		// What broke was broken by the end of the context.
		err = &Error{Kind: Unreachable, Err: fmt.Errorf("set up SSH with %s: %w", address, ctx.Err())}
	}
	return nil, err
}

// clientConfig is how the client shows itself and what it checks. Without a usable key there is no attempt.
func clientConfig(address, user string, auth Auth) (*ssh.ClientConfig, error) {
	if len(auth.Key) == 0 {
		return nil, &Error{Kind: BadKey, Err: errors.New("the key is empty")}
	}
	signer, err := ssh.ParsePrivateKey(auth.Key)
	if _, encrypted := errors.AsType[*ssh.PassphraseMissingError](err); encrypted {
		return nil, &Error{Kind: KeyEncrypted, Err: err}
	}
	if err != nil {
		return nil, &Error{Kind: BadKey, Err: err}
	}
	config := &ssh.ClientConfig{User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}}
	if auth.IgnoreHostKey {
		config.HostKeyCallback = ssh.InsecureIgnoreHostKey()
		return config, nil
	}
	config.HostKeyCallback, config.HostKeyAlgorithms, err = hostKeys(auth.KnownHosts, address)
	if err != nil {
		return nil, &Error{Kind: BadKnownHosts, Err: err}
	}
	return config, nil
}

// open makes the session and the channel on a TCP connection, which stays the caller's to close on errors.
func open(tcp net.Conn, address, socket string, config *ssh.ClientConfig) (*Conn, error) {
	// What the check of the host key says is kept: the handshake returns it as text only.
	var refused error
	check := config.HostKeyCallback
	config.HostKeyCallback = func(name string, remote net.Addr, key ssh.PublicKey) error {
		refused = check(name, remote, key)
		return refused
	}
	session, channels, requests, err := ssh.NewClientConn(tcp, address, config)
	if err != nil {
		return nil, &Error{Kind: handshakeKind(cmp.Or(refused, err)), Err: fmt.Errorf("set up SSH with %s: %w", address, err)}
	}
	client := ssh.NewClient(session, channels, requests)
	channel, err := client.Dial("unix", socket)
	if err != nil {
		_ = client.Close()
		return nil, &Error{Kind: channelKind(err), Err: fmt.Errorf("open %s on %s: %w", socket, address, err)}
	}
	return &Conn{Conn: channel, tcp: tcp, client: client}, nil
}

// handshakeKind sorts the errors of the handshake.
func handshakeKind(err error) Kind {
	if unknown, ok := errors.AsType[*knownhosts.KeyError](err); ok {
		if len(unknown.Want) == 0 {
			return HostKeyUnknown
		}
		return HostKeyMismatch
	}
	if _, ok := errors.AsType[*knownhosts.RevokedError](err); ok {
		return HostKeyRevoked
	}
	if none, ok := errors.AsType[*ssh.AlgorithmNegotiationError](err); ok {
		// known_hosts names the types of keys that may be shown: the host has none of these.
		if none.What == "host key" {
			return HostKeyMismatch
		}
		return NotSSH
	}
	// These two have no type.
	switch text := err.Error(); {
	case strings.Contains(text, "unable to authenticate"):
		return AuthRefused
	case strings.Contains(text, "version string"):
		return NotSSH
	default:
		return Unreachable
	}
}

// channelKind sorts the errors of opening the channel.
func channelKind(err error) Kind {
	refused, ok := errors.AsType[*ssh.OpenChannelError](err)
	switch {
	case !ok:
		return Unreachable
	case refused.Reason == ssh.Prohibited, refused.Reason == ssh.UnknownChannelType:
		return ForwardRefused
	default:
		return SocketRefused
	}
}

// Close closes the stream, the session and the TCP connection. It waits for nothing of the far side, and may be called often.
func (c *Conn) Close() error {
	c.once.Do(func() {
		// TCP first: a word of farewell would wait for a far side that takes nothing any more.
		_ = c.tcp.Close()
		_ = c.client.Close()
		_ = c.client.Wait()
	})
	return nil
}
