package sshdial

import "errors"

// Kind is what kept a connection from being made. The set is closed.
type Kind string

// Kinds of errors.
const (
	// BadKey says: the private key is missing or cannot be parsed.
	BadKey Kind = "BadKey"
	// KeyEncrypted says: the private key asks for a passphrase, which nobody can type in here.
	KeyEncrypted Kind = "KeyEncrypted"
	// BadKnownHosts says: known_hosts is missing, empty, or cannot be parsed.
	BadKnownHosts Kind = "BadKnownHosts"
	// HostKeyMismatch says: the host has another key than known_hosts says.
	HostKeyMismatch Kind = "HostKeyMismatch"
	// HostKeyUnknown says: known_hosts does not have the host.
	HostKeyUnknown Kind = "HostKeyUnknown"
	// HostKeyRevoked says: known_hosts revokes the key of the host.
	HostKeyRevoked Kind = "HostKeyRevoked"
	// AuthRefused says: the host does not take the key for this user.
	AuthRefused Kind = "AuthRefused"
	// Unreachable says: there is no TCP connection to the host, or it broke while being set up, or time ran out.
	Unreachable Kind = "Unreachable"
	// NotSSH says: something answers that cannot agree on a session with us: no SSH server, or one with other algorithms only.
	NotSSH Kind = "NotSSH"
	// ForwardRefused says: the SSH server does not forward to sockets.
	ForwardRefused Kind = "ForwardRefused"
	// SocketRefused says: the SSH server could not reach the socket, or the key or the server may not forward; OpenSSH answers alike.
	SocketRefused Kind = "SocketRefused"
)

// kinds says of each kind what to check, and whether it is the class's credentials that are wrong.
var kinds = map[Kind]struct {
	message     string
	credentials bool
}{
	BadKey:          {"the SSH key (sshKeyFile or sshSecretRef of the class) is missing or cannot be read: it must be a private key in PEM or OpenSSH format", true},
	KeyEncrypted:    {"the SSH key (sshKeyFile or sshSecretRef of the class) is protected by a passphrase: use a key without one", true},
	BadKnownHosts:   {"known_hosts (knownHostsFile or sshSecretRef of the class) is missing, empty or cannot be read: make it with ssh-keyscan", true},
	HostKeyMismatch: {"the host shows another key than known_hosts (knownHostsFile or sshSecretRef of the class) says: if the host was installed anew, replace its lines in known_hosts; otherwise somebody may be in between", true},
	HostKeyUnknown:  {"known_hosts (knownHostsFile or sshSecretRef of the class) does not have this host: add its key under the very address and port of the class", true},
	HostKeyRevoked:  {"known_hosts (knownHostsFile or sshSecretRef of the class) revokes the key that the host shows", true},
	AuthRefused:     {"the host refuses the SSH key (sshKeyFile or sshSecretRef of the class): is it in authorized_keys of the host's user?", true},
	Unreachable:     {"the host cannot be reached over SSH: check address, port and network, and that it is up", false},
	NotSSH:          {"what answers at the host's address and port is no SSH server that can be used: check the port", false},
	ForwardRefused: {"the SSH server of the host does not forward to sockets: " +
		"check AllowStreamLocalForwarding and DisableForwarding in sshd_config", false},
	SocketRefused: {"the libvirt socket of the host cannot be reached: check that libvirtd runs, the path of the socket, " +
		"that the user is in the group of the socket (libvirt), that the key has port-forwarding in authorized_keys, " +
		"and that sshd_config has no AllowStreamLocalForwarding or DisableForwarding against it", false},
}

// Message is a stable sentence that says what to check.
func (k Kind) Message() string { return kinds[k].message }

// Error is why a connection could not be made.
type Error struct {
	Kind Kind
	// Err is the cause. It has no keys in it.
	Err error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Kind.Message()
	}
	return e.Kind.Message() + ": " + e.Err.Error()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Credentials tells whether the key or known_hosts has to change: waiting alone does not help.
func (e *Error) Credentials() bool { return kinds[e.Kind].credentials }

// KindOf is the kind of an error; "" if it is none of this package.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return ""
}
