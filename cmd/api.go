package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/leasing"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/peer"
)

// apiOptions are the flags of the HTTP API.
type apiOptions struct {
	bindAddress             string
	authModes               []string
	tokenFile               string
	tlsCertFile, tlsKeyFile string
	defaultNamespace        string
	peerBindAddress         string
	peerAdvertisedAddress   string
}

func (o *apiOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.bindAddress, "api-bind-address", leasing.DefaultHTTPAddress, "host:port of the HTTP API, 0 for none")
	flags.StringSliceVar(&o.authModes, "api-auth", nil, "ways to authenticate to the HTTP API: token, kubernetes, or none to let everybody in")
	flags.StringVar(&o.tokenFile, "api-token-file", "", "file with the bearer token of --api-auth=token, read again when it changes")
	flags.StringVar(&o.tlsCertFile, "api-tls-cert-file", "", "certificate of the HTTP API, read again when it changes (default plain HTTP)")
	flags.StringVar(&o.tlsKeyFile, "api-tls-key-file", "", "key of --api-tls-cert-file")
	flags.StringVar(&o.peerBindAddress, "peer-bind-address", peer.DefaultAddress, "host:port at which the leader is asked by replicas that do not lead, 0 to go by objects instead")
	flags.StringVar(&o.peerAdvertisedAddress, "peer-advertise-address", "", "host:port of --peer-bind-address as the other replicas reach it (default the address in POD_IP; without either they go by objects)")
	flags.StringVar(&o.defaultNamespace, "default-namespace", leasing.DefaultNamespace, "namespace meant by HTTP requests that name none")
}

func (o *apiOptions) enabled() bool { return o.bindAddress != "0" }

// validate reports the first wrong flag by name, before anything is dialled.
func (o *apiOptions) validate() error {
	if !o.enabled() {
		return nil
	}
	if err := manager.ValidateBindAddress("api-bind-address", o.bindAddress); err != nil {
		return err
	}
	if _, err := o.advertised(); err != nil {
		return err
	}
	if _, err := o.auth(nil); err != nil {
		return err
	}
	if (o.tlsCertFile == "") != (o.tlsKeyFile == "") {
		return errors.New("--api-tls-cert-file and --api-tls-key-file are needed together")
	}
	if o.tlsCertFile != "" {
		if _, err := tls.LoadX509KeyPair(o.tlsCertFile, o.tlsKeyFile); err != nil {
			return fmt.Errorf("--api-tls-cert-file, --api-tls-key-file: %w", err)
		}
	}
	if problems := validation.IsDNS1123Label(o.defaultNamespace); len(problems) > 0 {
		return fmt.Errorf("--default-namespace: %q: %s", o.defaultNamespace, problems[0])
	}
	return nil
}

// asksPeers tells whether replicas ask each other.
func (o *apiOptions) asksPeers() bool { return o.enabled() && o.peerBindAddress != "0" }

// advertised is the address at which other replicas ask this one; empty: none. Without a flag it is the port of
// --peer-bind-address, on its host if it has one, else on the pod's.
func (o *apiOptions) advertised() (string, error) {
	if !o.asksPeers() {
		return "", nil
	}
	if err := manager.ValidateBindAddress("peer-bind-address", o.peerBindAddress); err != nil {
		return "", err
	}
	flag, address := "--peer-advertise-address", o.peerAdvertisedAddress
	if address == "" {
		flag, address = "--peer-bind-address", o.peerBindAddress
	}
	host, port, err := net.SplitHostPort(address)
	number, unknown := net.LookupPort("tcp", port)
	if ip, err := netip.ParseAddr(host); host == "" && o.peerAdvertisedAddress == "" || err == nil && ip.IsUnspecified() {
		if host = os.Getenv("POD_IP"); host == "" {
			return "", nil // nobody could be told where it is
		}
	}
	advertised := net.JoinHostPort(host, strconv.Itoa(number))
	if at, wrong := url.Parse("https://" + advertised); err != nil || unknown != nil || number == 0 || wrong != nil || at.Host != advertised || at.Hostname() == "" {
		return "", fmt.Errorf("%s: %q is not host:port as another replica could use it", flag, address)
	}
	return advertised, nil
}

// auth makes the authentication; without a manager only to check the flags.
func (o *apiOptions) auth(mgr ctrl.Manager) (*httpapi.Auth, error) {
	config := httpapi.AuthConfig{Modes: o.authModes, TokenFile: o.tokenFile, Clock: clock.RealClock{}}
	if mgr != nil {
		config.Log = mgr.GetLogger().WithName("api")
		config.Kubernetes = &httpapi.Kubernetes{Client: mgr.GetClient(), Clock: clock.RealClock{}}
	}
	return httpapi.NewAuth(config)
}

// add adds the HTTP API to the core manager. leader is the address at which the leader answers this replica.
func (o *apiOptions) add(mgr ctrl.Manager, allocator *leasing.Allocator, ownNamespace, advertised string, leader func() string) error {
	if !o.enabled() {
		return nil
	}
	auth, err := o.auth(mgr)
	if err != nil {
		return err
	}
	open := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "proxy_operator_api_unauthenticated",
		Help: "Whether the HTTP API lets everybody in (1, --api-auth=none) or asks for a token (0).",
	})
	if err := metrics.Registry.Register(open); err != nil {
		return fmt.Errorf("register the metrics of the HTTP API: %w", err)
	}
	if auth.Open() {
		open.Set(1)
		mgr.GetLogger().Error(nil, "The HTTP API lets EVERYBODY in: --api-auth=none. Anyone who reaches it can use and exhaust every proxy", "address", o.bindAddress)
	}
	options := leasing.HTTPOptions{Auth: auth, Namespace: ownNamespace, DefaultNamespace: o.defaultNamespace}
	// Listening here makes an address in use an error at start, and not one of a running leader.
	if options.Listener, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", o.bindAddress); err != nil {
		return fmt.Errorf("--api-bind-address: %w", err)
	}
	options.Leader = leader
	if advertised != "" {
		if options.PeerListener, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", o.peerBindAddress); err != nil {
			return fmt.Errorf("--peer-bind-address: %w", err)
		}
	}
	if o.tlsCertFile != "" {
		watcher, err := certwatcher.New(o.tlsCertFile, o.tlsKeyFile)
		if err != nil {
			return fmt.Errorf("--api-tls-cert-file, --api-tls-key-file: %w", err)
		}
		if err := mgr.Add(watcher); err != nil {
			return err
		}
		options.TLS = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: watcher.GetCertificate, NextProtos: []string{"http/1.1"}}
	}
	server, err := leasing.NewHTTPServer(allocator, options)
	if err != nil {
		return err
	}
	return mgr.Add(server)
}
