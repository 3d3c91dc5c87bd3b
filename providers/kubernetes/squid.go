package kubernetes

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
)

const (
	// configDir is where the files of the proxy are mounted in its container.
	configDir = "/etc/egress"
	// configFile is the name of Squid's configuration in configDir.
	configFile = "squid.conf"
	// authDir holds the password file, in a volume of its own.
	authDir = configDir + "/auth"
	// passwordFile is the name of the password file in authDir and the key of the Secret it comes from.
	passwordFile = "htpasswd"
	// authHelper checks passwords; the packages of Debian and of Ubuntu have it at this path.
	authHelper = "/usr/lib/squid/basic_ncsa_auth"

	// DefaultConnectPort is the only port that CONNECT reaches when the class names none.
	DefaultConnectPort int32 = 443
	// httpPort is the only port that is reached without a tunnel. Everything else can be had by CONNECT, if the class
	// lists the port.
	httpPort int32 = 80

	// maxFileDescriptors bounds the connections of one proxy. Without it Squid makes tables for the limit of the
	// container, which may be a billion.
	maxFileDescriptors = 16384
	// shutdownSeconds is how long Squid lets requests finish after SIGTERM; it takes it, and two more, even when there
	// are none. Who still uses a proxy is asked before its pod is deleted, so a replacement need not wait here.
	shutdownSeconds = 1
	// connectTimeoutSeconds bounds one attempt to reach a target; Squid's own default is a minute.
	connectTimeoutSeconds = 15
	// dnsFloorSeconds is the shortest time an answer of DNS is kept, the negative one included. Between the check of a
	// target's addresses and the connection to it, the name must not change its mind.
	dnsFloorSeconds = 60
)

// neverTargets are destinations that no client reaches through a proxy, whatever the class says: this host, its link,
// what clouds answer with credentials, and what is no unicast address.
var neverTargets = prefixes(
	"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4",
	"100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32",
	"::/128", "::1/128", "fe80::/10", "fec0::/10", "ff00::/8",
	// Metadata and credentials over IPv6: all of AWS's service range, Google, Oracle.
	"fd00:ec2::/32", "fd20:ce::254/128", "fd00:c1::a9fe:a9fe/128",
	// Local-use translation to IPv4 (RFC 8215), whose mapping nobody here knows.
	"64:ff9b:1::/48",
)

// privateTargets are destinations inside of the network; the class may open them.
var privateTargets = prefixes(
	"10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15",
	"fc00::/7",
)

// DefaultSourceRanges are the clients that are admitted when the class names none: private addresses.
var DefaultSourceRanges = prefixes("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")

// nat64 is the prefix under which IPv6-only networks reach IPv4 addresses (RFC 6052): the same addresses once more.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// Config is what decides about a proxy's configuration.
type Config struct {
	// Port to listen on.
	Port int32
	// SourceRanges are the clients that are admitted; DefaultSourceRanges when empty.
	SourceRanges []netip.Prefix
	// ConnectPorts that CONNECT may reach; DefaultConnectPort when empty.
	ConnectPorts []int32
	// AllowPrivateTargets opens privateTargets.
	AllowPrivateTargets bool
	// Authenticate asks every client for a user name and a password of the password file.
	Authenticate bool
}

// squidConfig is the configuration of one closed forward proxy. Squid 5.7 (Debian 12) and 6 (Ubuntu 24.04) take it; so it
// uses none of the access lists that only one of them has built in. Equal Configs give equal text.
func squidConfig(c Config) string {
	sources := c.SourceRanges
	if len(sources) == 0 {
		sources = DefaultSourceRanges
	}
	ports := c.ConnectPorts
	if len(ports) == 0 {
		ports = []int32{DefaultConnectPort}
	}
	ports = slices.Compact(slices.Sorted(slices.Values(ports)))
	denied := neverTargets
	if !c.AllowPrivateTargets {
		denied = slices.Concat(neverTargets, privateTargets)
	}

	b := &lines{}
	b.add("# Generated. A closed forward proxy: who is not admitted below is refused.")
	b.add("http_port %d", c.Port)
	b.add("visible_hostname egress-proxy")
	b.add("")
	b.add("# One process in a read-only container.")
	b.add("pid_filename none")
	b.add("max_filedescriptors %d", maxFileDescriptors)
	b.add("shutdown_lifetime %d seconds", shutdownSeconds)
	b.add("coredump_dir none")
	b.add("netdb_filename none")
	b.add("pinger_enable off")
	b.add("cache_mem 8 MB")
	b.add("cache_log /dev/stderr")
	b.add("# Connections without a request are those of the kubelet's probes.")
	b.add("acl has_request has request")
	b.add("access_log stdio:/dev/stdout logformat=squid has_request")
	b.add("")
	b.add("# Nothing is kept and nothing is told about the client.")
	b.add("cache deny all")
	b.add("via off")
	b.add("forwarded_for delete")
	b.add("httpd_suppress_version_string on")
	b.add("# Squid adds a Cache-Control header to requests without one, by which origins know it.")
	b.add("acl sent_cache_control req_header Cache-Control .")
	b.add("request_header_access Cache-Control allow sent_cache_control")
	b.add("request_header_access Cache-Control deny all")
	b.add("")
	b.add("connect_timeout %d seconds", connectTimeoutSeconds)
	b.add("negative_dns_ttl %d seconds", dnsFloorSeconds)
	b.add("")
	b.add("acl tunnel method CONNECT")
	b.add("acl http proto HTTP")
	b.add("acl http_port port %d", httpPort)
	for _, port := range ports {
		b.add("acl connect_port port %d", port)
	}
	for _, prefix := range normalize(sources) {
		b.add("acl client src %s", prefix)
	}
	for _, prefix := range normalize(withNAT64(denied)) {
		b.add("acl denied_target dst %s", prefix)
	}
	if c.Authenticate {
		b.add("")
		b.add("auth_param basic program %s %s/%s", authHelper, authDir, passwordFile)
		b.add("auth_param basic children 4 startup=1 idle=1")
		b.add("auth_param basic realm egress-proxy")
		b.add("auth_param basic casesensitive on")
		b.add("auth_param basic credentialsttl 1 minute")
		b.add("acl authenticated proxy_auth REQUIRED")
	}
	b.add("")
	b.add("# The order is from cheap to dear: a stranger causes no password check, and no look-up of a name.")
	b.add("http_access deny manager")
	b.add("http_access deny !client")
	b.add("http_access deny tunnel !connect_port")
	b.add("http_access deny !tunnel !http")
	b.add("http_access deny !tunnel !http_port")
	if c.Authenticate {
		b.add("http_access deny !authenticated")
	}
	b.add("http_access deny denied_target")
	b.add("http_access allow client")
	b.add("http_access deny all")
	return b.String()
}

// lines collects lines of text.
type lines struct{ text []byte }

func (l *lines) add(format string, args ...any) {
	l.text = append(fmt.Appendf(l.text, format, args...), '\n')
}

func (l *lines) String() string { return string(l.text) }

func prefixes(texts ...string) []netip.Prefix {
	all := make([]netip.Prefix, 0, len(texts))
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// normalize sorts prefixes, clears their host bits and drops those that lie within another one: Squid warns of them.
func normalize(all []netip.Prefix) []netip.Prefix {
	masked := make([]netip.Prefix, 0, len(all))
	for _, prefix := range all {
		masked = append(masked, prefix.Masked())
	}
	slices.SortFunc(masked, func(a, b netip.Prefix) int {
		return cmp.Or(cmp.Compare(a.Addr().BitLen(), b.Addr().BitLen()), cmp.Compare(a.Bits(), b.Bits()), a.Addr().Compare(b.Addr()))
	})
	kept := make([]netip.Prefix, 0, len(masked))
	for _, prefix := range masked {
		within := func(other netip.Prefix) bool { return other.Contains(prefix.Addr()) }
		if !slices.ContainsFunc(kept, within) {
			kept = append(kept, prefix)
		}
	}
	slices.SortFunc(kept, func(a, b netip.Prefix) int {
		return cmp.Or(cmp.Compare(a.Addr().BitLen(), b.Addr().BitLen()), a.Addr().Compare(b.Addr()))
	})
	return kept
}

// withNAT64 adds the addresses under which IPv6-only networks reach the IPv4 ones.
func withNAT64(all []netip.Prefix) []netip.Prefix {
	both := slices.Clone(all)
	for _, prefix := range all {
		if !prefix.Addr().Is4() {
			continue
		}
		address := nat64.Addr().As16()
		v4 := prefix.Addr().As4()
		copy(address[12:], v4[:])
		both = append(both, netip.PrefixFrom(netip.AddrFrom16(address), nat64.Bits()+prefix.Bits()))
	}
	return both
}

// parseRanges reads CIDR ranges of a class.
func parseRanges(texts []string) ([]netip.Prefix, error) {
	all := make([]netip.Prefix, 0, len(texts))
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%s is not a CIDR range such as 10.0.0.0/8", strconv.Quote(text))
		}
		if prefix.Addr().Is4In6() {
			return nil, fmt.Errorf("%s must be written as an IPv4 range", strconv.Quote(text))
		}
		all = append(all, prefix)
	}
	return all, nil
}
