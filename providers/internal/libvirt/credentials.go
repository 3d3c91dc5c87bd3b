package libvirt

import (
	"context"
	"errors"
	"io/fs"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/sshdial"
)

// Keys of the Secret that sshSecretRef names.
const (
	// SecretKey is the private key: that of Secrets of type kubernetes.io/ssh-auth.
	SecretKey = "ssh-privatekey"
	// SecretKeyFile is its name when the Secret was made from files.
	SecretKeyFile = "id_ed25519"
	// SecretKnownHosts are the hosts' keys.
	SecretKnownHosts = "known_hosts"
)

// credentials is where the class's key and known hosts come from, and who is told when a host does not take them.
func (f *Factory) credentials(s settings, rt providers.Runtime) (source sshdial.Source, refused func()) {
	source = func(context.Context) (sshdial.Auth, error) { return f.fromFiles(s) }
	if s.secret != "" {
		source = func(ctx context.Context) (sshdial.Auth, error) { return fromSecret(ctx, s, rt) }
	}
	if f.FreshCredentials {
		return source, nil
	}
	k := &kept{source: source}
	return k.get, k.refused
}

// kept are credentials that are read once, for as long as all hosts take them: wrong ones may have been mended, and right
// ones replaced.
type kept struct {
	source sshdial.Source

	mu   sync.Mutex
	auth *sshdial.Auth
}

func (k *kept) get(ctx context.Context) (sshdial.Auth, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.auth != nil {
		return *k.auth, nil
	}
	auth, err := k.source(ctx)
	if err == nil {
		k.auth = &auth
	}
	return auth, err
}

func (k *kept) refused() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.auth = nil
}

func (f *Factory) fromFiles(s settings) (sshdial.Auth, error) {
	auth := sshdial.Auth{IgnoreHostKey: s.ignoreHostKey}
	for _, file := range []struct {
		name, path string
		into       *[]byte
	}{{"sshKeyFile", s.keyFile, &auth.Key}, {"knownHostsFile", s.knownHostsFile, &auth.KnownHosts}} {
		if file.path == "" {
			continue
		}
		data, err := f.readFile(file.path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return auth, unreadable("the file of "+file.name+" does not exist: does the Secret kvm-ssh have it, and is it mounted?", err)
		case err != nil:
			return auth, unreadable("the file of "+file.name+" cannot be read", err)
		}
		*file.into = data
	}
	return auth, nil
}

func fromSecret(ctx context.Context, s settings, rt providers.Runtime) (sshdial.Auth, error) {
	auth := sshdial.Auth{IgnoreHostKey: s.ignoreHostKey}
	if rt.Secrets == nil {
		return auth, unreadable("this manager may not read the Secret of sshSecretRef", nil)
	}
	data, err := rt.Secrets(ctx, s.secret)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return auth, providers.NewError(providers.Unavailable, "read the SSH key", "the API server does not tell the Secret of sshSecretRef", err)
	}
	if err != nil {
		return auth, unreadable("the Secret of sshSecretRef cannot be read: it must be in the namespace of the operator, and the manager must be allowed to", err)
	}
	auth.Key = data[SecretKey]
	if len(auth.Key) == 0 {
		auth.Key = data[SecretKeyFile]
	}
	auth.KnownHosts = data[SecretKnownHosts]
	if len(auth.Key) == 0 {
		return auth, unreadable("the Secret of sshSecretRef has no "+SecretKey, nil)
	}
	if len(auth.KnownHosts) == 0 && !s.ignoreHostKey {
		return auth, unreadable("the Secret of sshSecretRef has no "+SecretKnownHosts, nil)
	}
	return auth, nil
}

func unreadable(message string, err error) error {
	return providers.NewError(providers.Auth, "read the SSH key", message, err)
}
