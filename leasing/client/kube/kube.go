// Package kube is package client for crawlers in the cluster: the same leases, over ProxyLease objects and without the HTTP
// API. It needs the rights of the ClusterRole egress-proxies-operator-lease-user in the proxies' namespace, and to read the
// Secrets of proxies that ask for credentials, or Options.Credentials.
//
//	config, err := rest.InClusterConfig()
//	c, err := kube.NewForConfig(config, kube.Options{Namespace: "default"})
//	lease, err := c.Acquire(ctx, client.Request{Pool: "eu"})
//	defer lease.Close(ctx)
//
// One watch serves a lease from its creation to its end, so that the holder is told at once when it is lost.
package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/client"
	"crawl.example.com/egress-proxies-operator/leasing/record"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

const (
	// callTimeout bounds a call to the API server.
	callTimeout = 20 * time.Second
	// leaderPatience is how long, beyond what a request is willing to wait, the operator may take to decide about a lease.
	leaderPatience = 10 * time.Second
)

// Options of New.
type Options struct {
	// Namespace of the proxies, and so of the leases, for requests that name none.
	Namespace string
	// Owner of the leases, such as the crawler's Pod: when it goes away, so do they. It must be in the namespace of the leases,
	// or Kubernetes deletes them at once. See PodOwner. nil: none.
	Owner *metav1.OwnerReference
	// Credentials reads the credentials of a proxy from where the crawler finds them; name is that of their Secret. nil: from
	// the Secret, which the crawler must have the right to read.
	Credentials func(ctx context.Context, namespace, name string) (username, password string, err error)
	// Transport is what Lease.Transport starts from. nil: http.DefaultTransport.
	Transport *http.Transport
}

// PodOwner is the reference to a Pod as the owner of its leases. A Pod learns its name and UID by the downward API, from the
// fields metadata.name and metadata.uid.
func PodOwner(name string, uid types.UID) *metav1.OwnerReference {
	return &metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: name, UID: uid}
}

// New makes a client that leases through c, whose scheme must know ProxyLeases and Secrets. Its reads must not come from a
// cache.
func New(c ctrlclient.WithWatch, o Options) *client.Client {
	return client.NewFor(&backend{Options: o, client: c}, o.Transport)
}

// NewForConfig makes a client of an API server, such as that of rest.InClusterConfig.
func NewForConfig(config *rest.Config, o Options) (*client.Client, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("make a scheme: %w", err)
		}
	}
	c, err := ctrlclient.NewWithWatch(config, ctrlclient.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return New(c, o), nil
}

// backend leases by ProxyLease objects.
type backend struct {
	Options
	client ctrlclient.WithWatch
}

// Acquire implements client.Backend.
func (b *backend) Acquire(ctx context.Context, r client.Request, key string) (client.Handle, client.Terms, error) {
	want, err := b.wanted(ctx, r, key)
	if err != nil {
		return nil, client.Terms{}, err
	}
	sent := time.Now()
	lease, created, err := b.create(ctx, want)
	if err != nil {
		return nil, client.Terms{}, err
	}
	h := newHandle(ctx, b, lease)
	terms, err := h.bound(ctx, lease, r.Wait)
	if err != nil {
		h.follower.stop()
		return nil, client.Terms{}, err
	}
	// The TTL counts from the grant, which came after the creation. Of a lease that existed already nobody knows how much of
	// it is left.
	if created {
		terms.Until = sent.Add(terms.TTL)
	}
	return h, terms, nil
}

// create creates a lease, or finds the one that an earlier attempt has created.
func (b *backend) create(ctx context.Context, want *v1alpha1.ProxyLease) (lease *v1alpha1.ProxyLease, created bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	lease = want.DeepCopy()
	err = b.client.Create(ctx, lease)
	if err == nil {
		return lease, true, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return nil, false, creationError(err)
	}
	if err := b.client.Get(ctx, ctrlclient.ObjectKeyFromObject(want), lease); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, false, errors.New("the lease was deleted at this moment") // the next attempt creates it
		}
		return nil, false, fmt.Errorf("read the lease that exists already: %w", apiError(err))
	}
	switch {
	case !sameRequest(lease, want):
		return nil, false, &client.Error{
			Status: http.StatusUnprocessableEntity, Code: wire.CodeKeyReused, Field: "key", Detail: "it was used for another request; use a new one",
		}
	case record.Finished(lease), !lease.DeletionTimestamp.IsZero():
		return nil, false, &client.Error{Status: http.StatusConflict, Code: wire.CodeKeyConsumed, Field: "key", Detail: "its lease has ended"}
	}
	return lease, false, nil
}

// Forget implements client.Backend. The name is nobody else's.
func (b *backend) Forget(ctx context.Context, r client.Request, key string) error {
	lease := &v1alpha1.ProxyLease{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace(r), Name: nameOf(key)}}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := b.client.Delete(ctx, lease); ctrlclient.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete the lease: %w", apiError(err))
	}
	return nil
}

// credentials reads the credentials that a lease names; nil when it names none.
func (b *backend) credentials(ctx context.Context, lease *v1alpha1.ProxyLease) (*client.Credentials, error) {
	ref := lease.Status.CredentialsSecretRef
	if ref == nil {
		return nil, nil
	}
	read := b.Credentials
	if read == nil {
		read = b.secret
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	username, password, err := read(ctx, lease.Namespace, ref.Name)
	if err != nil {
		return nil, fmt.Errorf("read the proxy's credentials: %w", err)
	}
	return client.NewCredentials(username, password), nil
}

func (b *backend) secret(ctx context.Context, namespace, name string) (username, password string, err error) {
	secret := &corev1.Secret{}
	if err := b.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, secret); err != nil {
		return "", "", fmt.Errorf("secret %s/%s: %w", namespace, name, apiError(err))
	}
	return string(secret.Data[v1alpha1.CredentialsUsername]), string(secret.Data[v1alpha1.CredentialsPassword]), nil
}
