package peer

import (
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"time"
)

const (
	// SeedSize is the size of the secret from which credentials are made, in bytes.
	SeedSize = ed25519.SeedSize
	// serverName is what both sides call each other; it resolves nowhere.
	serverName = "egress-proxies-operator"
)

// credentials make the certificate of an installation from its secret. Every replica makes the same, and trusts no other; so
// there is nothing to hand out, to renew or to lose.
func credentials(seed []byte) (tls.Certificate, *x509.CertPool, error) {
	if len(seed) != SeedSize {
		return tls.Certificate{}, nil, fmt.Errorf("a secret for replicas has %d bytes, not %d", SeedSize, len(seed))
	}
	key := ed25519.NewKeyFromSeed(seed)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: serverName}, DNSNames: []string{serverName},
		// It is as good as the secret is, whatever the clocks say.
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA: true, BasicConstraintsValid: true,
	}
	// The signature of this algorithm needs no randomness.
	der, err := x509.CreateCertificate(bytes.NewReader(nil), template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("make the certificate for replicas: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("make the certificate for replicas: %w", err)
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, trusted, nil
}

func serverTLS(seed []byte) (*tls.Config, error) {
	own, trusted, err := credentials(seed)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, NextProtos: []string{"h2"},
		ClientCAs: trusted, ClientAuth: tls.RequireAndVerifyClientCert,
	}, nil
}

func clientTLS(seed []byte) (*tls.Config, error) {
	own, trusted, err := credentials(seed)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, NextProtos: []string{"h2"},
		RootCAs: trusted, ServerName: serverName,
	}, nil
}
