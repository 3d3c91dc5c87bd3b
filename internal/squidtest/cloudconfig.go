package squidtest

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	cloudConfigMark = "#cloud-config\n"
	// confPath is where Debian's package looks for its configuration.
	confPath = "/etc/squid/squid.conf"
)

var (
	portLine    = regexp.MustCompile(`(?m)^http_port .*$`)
	clientsLine = regexp.MustCompile(`(?m)^acl clients src .*$`)
	accessLine  = regexp.MustCompile(`(?m)^http_access `)
)

// FromCloudConfig is the squid.conf that a cloud-config writes before it starts Squid.
func FromCloudConfig(userData string) (string, error) {
	if !strings.HasPrefix(userData, cloudConfigMark) {
		return "", fmt.Errorf("user data begins with %.20q, not with %q", userData, cloudConfigMark)
	}
	var config struct {
		PackageUpdate bool     `json:"package_update"`
		Packages      []string `json:"packages"`
		WriteFiles    []struct {
			Path        string `json:"path"`
			Permissions string `json:"permissions"`
			Content     string `json:"content"`
		} `json:"write_files"`
		RunCommands [][]string `json:"runcmd"`
	}
	if err := yaml.UnmarshalStrict([]byte(userData), &config); err != nil {
		return "", fmt.Errorf("parse the cloud-config: %w", err)
	}
	if !config.PackageUpdate || !slices.Contains(config.Packages, "squid") {
		return "", fmt.Errorf("the cloud-config does not install Squid: %v", config.Packages)
	}
	// cloud-init writes files before it installs packages, and the package starts Squid with what it brings.
	if !slices.ContainsFunc(config.RunCommands, func(c []string) bool { return slices.Equal(c, []string{"systemctl", "restart", "squid"}) }) {
		return "", fmt.Errorf("the cloud-config does not restart Squid: %v", config.RunCommands)
	}
	for _, file := range config.WriteFiles {
		if file.Path == confPath {
			return file.Content, nil
		}
	}
	return "", fmt.Errorf("the cloud-config does not write %s", confPath)
}

// OnLoopback is a squid.conf whose clients are on 127.0.0.1. All of its rules stay but one: CONNECT to the origin, which is
// where a server on the Internet would be. It leaves by the address it listens on.
func OnLoopback(conf string, origin netip.AddrPort) (Config, error) {
	for _, line := range []*regexp.Regexp{portLine, clientsLine} {
		if n := len(line.FindAllString(conf, -1)); n != 1 {
			return nil, fmt.Errorf("%d lines %s, want 1", n, line)
		}
	}
	first := accessLine.FindStringIndex(conf)
	if first == nil {
		return nil, fmt.Errorf("no line %s", accessLine)
	}
	exception := fmt.Sprintf("acl origin dst %s\nacl origin_port port %d\nhttp_access allow CONNECT origin origin_port clients\n", origin.Addr(), origin.Port())
	conf = conf[:first[0]] + exception + conf[first[0]:]
	conf = clientsLine.ReplaceAllString(conf, "acl clients src 127.0.0.1")
	return func(_ string, address netip.AddrPort) string {
		own := fmt.Sprintf("\npid_filename none\ncache_log /dev/stderr\ncoredump_dir none\ntcp_outgoing_address %s\n", address.Addr())
		return portLine.ReplaceAllString(conf, "http_port "+address.String()) + own
	}, nil
}
