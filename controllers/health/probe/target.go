package probe

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// defaultTLSPort is the port of an https URL that names none.
const defaultTLSPort = "443"

// sessionCacheSize bounds the TLS sessions kept for an owned target. The cache is keyed by server name, so one entry
// serves all proxies; a few more cover a target that is reached by several names.
const sessionCacheSize = 8

// TargetSpec describes a URL that is fetched through proxies.
type TargetSpec struct {
	// URL is an https URL as ParseTargetURL accepts it.
	URL string
	// RootCAs verify the target's certificate; nil means the system's.
	RootCAs *x509.CertPool
	// Owned allows TLS session resumption. A ticket lets the target link all exits of a fleet, so it is only used
	// for targets that belong to the fleet's owner.
	Owned bool
	// Nonce adds a random query parameter, so that no cache can answer.
	Nonce bool
}

// Target is a URL made ready for probing. It is safe for concurrent use and shared by all proxies that probe it.
type Target struct {
	authority  string
	hostHeader string
	requestURI string
	nonce      bool
	tls        *tls.Config
}

// NewTarget prepares a target. It returns an error when the URL cannot be probed.
func NewTarget(spec TargetSpec) (*Target, error) {
	u, err := ParseTargetURL(spec.URL)
	if err != nil {
		return nil, err
	}
	port := u.Port()
	if port == "" {
		port = defaultTLSPort
	}
	config := &tls.Config{
		RootCAs:    spec.RootCAs,
		ServerName: u.Hostname(),
		MinVersion: tls.VersionTLS12,
		// HTTP/2 would bring its own retries; one probe is one request.
		NextProtos: []string{"http/1.1"},
		// The post-quantum key share costs more than the rest of a probe, and nothing secret is sent.
		CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384},
	}
	if spec.Owned {
		config.ClientSessionCache = tls.NewLRUClientSessionCache(sessionCacheSize)
	}
	return &Target{
		authority:  net.JoinHostPort(u.Hostname(), port),
		hostHeader: u.Host,
		requestURI: u.RequestURI(),
		nonce:      spec.Nonce,
		tls:        config,
	}, nil
}

// Authority is the host:port that CONNECT names.
func (t *Target) Authority() string { return t.authority }

func (t *Target) uri() string {
	if !t.nonce {
		return t.requestURI
	}
	separator := "?"
	if strings.Contains(t.requestURI, "?") {
		separator = "&"
	}
	return t.requestURI + separator + "n=" + rand.Text()
}

// ParseTargetURL parses a probe target: https, a host, no user information, no fragment, printable ASCII only. Errors
// say what is wrong without repeating the URL, which may carry a password by mistake.
func ParseTargetURL(raw string) (*url.URL, error) {
	if strings.IndexFunc(raw, func(r rune) bool { return r <= 0x20 || r >= 0x7f }) >= 0 {
		return nil, errors.New("contains a space, a control character or a non-ASCII character (write internationalised names in their xn-- form)")
	}
	u, err := url.Parse(raw)
	if err != nil {
		if parse, ok := errors.AsType[*url.Error](err); ok {
			err = parse.Err // the outer error repeats the URL
		}
		var escape url.EscapeError
		var host url.InvalidHostError
		switch {
		case errors.As(err, &escape):
			return nil, errors.New("contains an invalid percent escape")
		case errors.As(err, &host):
			return nil, errors.New("contains an invalid host name")
		}
		return nil, errors.New("is not a valid URL")
	}
	switch {
	case u.Scheme != "https":
		return nil, errors.New("scheme must be https: a plain answer can come from a cache or a portal")
	case u.User != nil:
		return nil, errors.New("must not contain user information")
	case u.Opaque != "" || u.Hostname() == "":
		return nil, errors.New("has no host")
	case u.Fragment != "":
		return nil, errors.New("must not contain a fragment")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return nil, fmt.Errorf("port %s is not between 1 and 65535", port)
		}
	} else if strings.HasSuffix(u.Host, ":") {
		return nil, errors.New("has an empty port")
	}
	return u, nil
}
