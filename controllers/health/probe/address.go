package probe

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// ErrBadAddress says that a proxy's address cannot be used as host:port.
var ErrBadAddress = errors.New("not a host:port address")

// JoinAddress makes host:port of a proxy's host and port. IPv6 hosts may come with or without brackets.
func JoinAddress(host string, port int32) string {
	return net.JoinHostPort(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), strconv.Itoa(int(port)))
}

// SplitAddress splits what JoinAddress makes, and tolerates the doubled brackets that joining a bracketed literal
// gives. The error wraps ErrBadAddress.
func SplitAddress(address string) (host string, port uint16, err error) {
	if inner, ok := strings.CutPrefix(address, "[["); ok {
		address = "[" + strings.Replace(inner, "]]:", "]:", 1)
	}
	host, text, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return "", 0, fmt.Errorf("%w: %q", ErrBadAddress, address)
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("%w: %q has no port between 1 and 65535", ErrBadAddress, address)
	}
	return host, uint16(n), nil
}
