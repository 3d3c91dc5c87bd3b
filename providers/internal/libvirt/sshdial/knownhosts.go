package sshdial

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// certAuthority marks a line of known_hosts whose key signs the keys of hosts.
const certAuthority = "@cert-authority"

// certificates are the algorithms of host keys that an authority has signed; the authority's own key says nothing about them.
var certificates = []string{
	ssh.CertAlgoED25519v01, ssh.CertAlgoECDSA256v01, ssh.CertAlgoECDSA384v01, ssh.CertAlgoECDSA521v01,
	ssh.CertAlgoRSASHA512v01, ssh.CertAlgoRSASHA256v01,
}

// hostKeys is the check of host keys by known_hosts, and the algorithms that the host at address (host:port) may use so that
// its key is one that known_hosts has. With the client's own preference a host that is known by one of its keys shows
// another one, which looks like an attack.
func hostKeys(text []byte, address string) (check ssh.HostKeyCallback, algorithms []string, err error) {
	if err := refuse(text); err != nil {
		return nil, nil, err
	}
	check, err = parse(text)
	if err != nil {
		return nil, nil, err
	}
	// A key that nobody can know makes the check tell which keys it would have liked.
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, nil, fmt.Errorf("make a probe key: %w", err)
	}
	probe, err := ssh.NewPublicKey(public)
	if err != nil {
		return nil, nil, fmt.Errorf("make a probe key: %w", err)
	}
	unknown, ok := errors.AsType[*knownhosts.KeyError](check(address, &net.TCPAddr{IP: net.IPv4zero}, probe))
	if !ok || len(unknown.Want) == 0 {
		// No host key can be right. Whichever is shown will be refused as unknown.
		return check, nil, nil
	}
	lines := bytes.Split(text, []byte("\n"))
	for _, known := range unknown.Want {
		switch {
		case bytes.HasPrefix(bytes.TrimLeft(lines[known.Line-1], " \t"), []byte(certAuthority)):
			algorithms = append(slices.Clone(certificates), algorithms...)
		case known.Key.Type() == ssh.KeyAlgoRSA:
			algorithms = append(algorithms, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
		default:
			algorithms = append(algorithms, known.Key.Type())
		}
	}
	return check, unique(algorithms), nil
}

// refuse tells what is wrong with a file as a whole. A line that cannot be parsed is skipped, as by ssh: a host less is
// trusted. A marked one could be the line that revokes a key, so it must be readable.
func refuse(text []byte) error {
	found := false
	for number, line := range bytes.Split(text, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		found = true
		if line[0] != '@' {
			continue
		}
		if _, err := parse(line); err != nil {
			return fmt.Errorf("line %d of known_hosts: %w", number+1, err)
		}
	}
	if !found {
		return errors.New("known_hosts has no host")
	}
	return nil
}

// parse reads known_hosts. The library reads files only, so a temporary one is made; known_hosts is no secret.
func parse(text []byte) (ssh.HostKeyCallback, error) {
	file, err := os.CreateTemp("", "known_hosts-")
	if err != nil {
		return nil, fmt.Errorf("make a temporary file for known_hosts: %w", err)
	}
	defer func() { _ = os.Remove(file.Name()) }()
	_, err = file.Write(text)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("write known_hosts to a temporary file: %w", err)
	}
	return knownhosts.New(file.Name())
}

// unique keeps the first of equal values, in their order.
func unique(values []string) []string {
	var out []string
	for _, value := range values {
		if !slices.Contains(out, value) {
			out = append(out, value)
		}
	}
	return out
}
