package httpapi

import (
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// SigningSecretName is the Secret, in the operator's namespace, with the key that signs lease ids.
	SigningSecretName = "lease-signing-key"
	// signingKey is the key within the Secret's data.
	signingKey = "key"
	// keySize of the signing key and macSize of a lease id's proof, in bytes.
	keySize, macSize = 32, 16
	// maxIDLength bounds what is looked at.
	maxIDLength = 63 + 1 + 63 + 1 + 64
)

var errNotSigned = errors.New("not a lease id of this operator")

// Signer makes lease ids and reads them back. An id is NAMESPACE.NAME.PROOF: the proof has the UID of the ProxyLease and
// a MAC over all three, so that an id proves that its bearer was given it and never means a later lease of the same name.
// Nothing secret has to be stored with a lease.
type Signer struct {
	// Live reads the Secret and Client creates it, once, when it is not there.
	Live      client.Reader
	Client    client.Client
	Namespace string

	key atomic.Pointer[[]byte]
}

// Load reads the signing key, and creates it when it is not there. Until it has succeeded Ready is false.
func (s *Signer) Load(ctx context.Context) error {
	name := types.NamespacedName{Namespace: s.Namespace, Name: SigningSecretName}
	for range 3 {
		secret := &corev1.Secret{}
		err := s.Live.Get(ctx, name, secret)
		if err == nil {
			key := secret.Data[signingKey]
			if len(key) < keySize {
				return fmt.Errorf("secret %s: data.%s has %d bytes, needs at least %d; delete the Secret to have a new one made (ids of running leases then stop working)", name, signingKey, len(key), keySize)
			}
			s.key.Store(&key)
			return nil
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("read secret %s: %w", name, err)
		}
		key := make([]byte, keySize)
		if _, err := rand.Read(key); err != nil {
			return fmt.Errorf("make a signing key: %w", err)
		}
		err = s.Client.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
			Data:       map[string][]byte{signingKey: key},
		})
		// Another replica may have been first; what is stored counts.
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create secret %s: %w", name, err)
		}
	}
	return fmt.Errorf("secret %s is created and deleted by turns", name)
}

// Ready tells whether the key is loaded.
func (s *Signer) Ready() bool { return s.key.Load() != nil }

// Derive makes another secret of the key, for a purpose of its own; false until the key is loaded.
func (s *Signer) Derive(purpose string, size int) ([]byte, bool) {
	key := s.key.Load()
	if key == nil {
		return nil, false
	}
	derived, err := hkdf.Key(sha256.New, *key, nil, purpose, size)
	return derived, err == nil
}

// ID is the lease id of a lease.
func (s *Signer) ID(ref Ref) (string, error) {
	uid, err := uuid.Parse(string(ref.UID))
	if err != nil {
		return "", fmt.Errorf("lease %s/%s: UID %q: %w", ref.Namespace, ref.Name, ref.UID, err)
	}
	proof := append(uid[:], s.mac(ref.Namespace, ref.Name, uid)...)
	return ref.Namespace + "." + ref.Name + "." + base64.RawURLEncoding.EncodeToString(proof), nil
}

// Parse reads an id back. The error does not say what is wrong with an id that was never signed.
func (s *Signer) Parse(id string) (Ref, error) {
	if len(id) > maxIDLength {
		return Ref{}, errNotSigned
	}
	namespace, rest, ok := strings.Cut(id, ".")
	dot := strings.LastIndexByte(rest, '.')
	if !ok || dot < 0 {
		return Ref{}, errNotSigned
	}
	name := rest[:dot]
	proof, err := base64.RawURLEncoding.Strict().DecodeString(rest[dot+1:])
	if err != nil || len(proof) != len(uuid.UUID{})+macSize {
		return Ref{}, errNotSigned
	}
	uid := uuid.UUID(proof[:len(uuid.UUID{})])
	if !hmac.Equal(proof[len(uid):], s.mac(namespace, name, uid)) {
		return Ref{}, errNotSigned
	}
	return Ref{Namespace: namespace, Name: name, UID: types.UID(uid.String())}, nil
}

// mac covers namespace, name and UID; neither of the names can contain the separator.
func (s *Signer) mac(namespace, name string, uid uuid.UUID) []byte {
	h := hmac.New(sha256.New, *s.key.Load())
	h.Write([]byte("lease-id-v1\x00" + namespace + "\x00" + name + "\x00"))
	h.Write(uid[:])
	return h.Sum(nil)[:macSize]
}
