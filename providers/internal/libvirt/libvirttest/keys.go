package libvirttest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// KeyType is a type of SSH keys.
type KeyType string

// Types of keys.
const (
	ED25519 KeyType = "ed25519"
	ECDSA   KeyType = "ecdsa"
	RSA     KeyType = "rsa"
)

// Key is a pair of SSH keys.
type Key struct {
	// Private in OpenSSH's format.
	Private []byte
	Public  ssh.PublicKey
}

// NewKey makes a pair of keys.
func NewKey(t testing.TB, of KeyType) Key {
	t.Helper()
	return key(t, of, func(private crypto.PrivateKey) (*pem.Block, error) { return ssh.MarshalPrivateKey(private, "") })
}

// NewEncryptedKey makes a pair of keys whose private one is protected by a passphrase.
func NewEncryptedKey(t testing.TB) Key {
	t.Helper()
	return key(t, ED25519, func(private crypto.PrivateKey) (*pem.Block, error) {
		return ssh.MarshalPrivateKeyWithPassphrase(private, "", []byte("passphrase"))
	})
}

func key(t testing.TB, of KeyType, marshal func(crypto.PrivateKey) (*pem.Block, error)) Key {
	t.Helper()
	var private crypto.Signer
	var err error
	switch of {
	case ECDSA:
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case RSA:
		private, err = rsa.GenerateKey(rand.Reader, 2048)
	default:
		_, private, err = ed25519.GenerateKey(rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	block, err := marshal(private)
	if err != nil {
		t.Fatal(err)
	}
	public, err := ssh.NewPublicKey(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	return Key{Private: pem.EncodeToMemory(block), Public: public}
}

// AuthorizedKey is a line of authorized_keys. options may be empty.
func (k Key) AuthorizedKey(options string) string {
	line := string(ssh.MarshalAuthorizedKey(k.Public))
	if options != "" {
		line = options + " " + line
	}
	return line
}

// KnownHosts is the text of a known_hosts file that knows keys under an address, host:port.
func KnownHosts(address string, keys ...Key) []byte {
	var b strings.Builder
	for _, k := range keys {
		b.WriteString(knownhosts.Line([]string{address}, k.Public) + "\n")
	}
	return []byte(b.String())
}

// HashedKnownHosts is KnownHosts with the address hashed, as by ssh-keyscan -H.
func HashedKnownHosts(address string, keys ...Key) []byte {
	var b strings.Builder
	for _, k := range keys {
		b.WriteString(knownhosts.Line([]string{knownhosts.HashHostname(knownhosts.Normalize(address))}, k.Public) + "\n")
	}
	return []byte(b.String())
}
