package kubernetes

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

func TestSquidConfigGolden(t *testing.T) {
	for name, config := range goldenConfigs {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join("testdata", name+".conf")
			got := squidConfig(config)
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("differs from %s (go test -update writes it):\n%s", file, diff)
			}
		})
	}
}

// goldenConfigs are one plain proxy and one that uses everything.
var goldenConfigs = map[string]Config{
	"default": {Port: 3128},
	"everything": {
		Port:                8080,
		SourceRanges:        prefixes("203.0.113.7/24", "203.0.113.0/25", "2001:db8::/32", "10.1.0.0/16"),
		ConnectPorts:        []int32{8443, 443, 8443},
		AllowPrivateTargets: true,
		Authenticate:        true,
	},
}

func TestSquidConfigIsClosed(t *testing.T) {
	for name, config := range goldenConfigs {
		t.Run(name, func(t *testing.T) {
			text := squidConfig(config)
			rules := linesWith(text, "http_access ")
			if last := rules[len(rules)-1]; last != "http_access deny all" {
				t.Errorf("last rule is %q", last)
			}
			for _, rule := range rules[:len(rules)-2] {
				if !strings.HasPrefix(rule, "http_access deny ") {
					t.Errorf("rule %q admits before everything is checked", rule)
				}
			}
			for _, target := range neverTargets {
				if !slices.Contains(linesWith(text, "acl denied_target "), "acl denied_target dst "+target.String()) && !covered(text, target) {
					t.Errorf("%s is not denied", target)
				}
			}
			if private := covered(text, netip.MustParsePrefix("10.0.0.0/8")); private == config.AllowPrivateTargets {
				t.Errorf("private targets denied: %t, allowed by class: %t", private, config.AllowPrivateTargets)
			}
			if asks := strings.Contains(text, "http_access deny !authenticated"); asks != config.Authenticate {
				t.Errorf("asks for credentials: %t, want %t", asks, config.Authenticate)
			}
		})
	}
}

func TestNormalize(t *testing.T) {
	got := normalize(prefixes("10.1.2.3/16", "10.0.0.0/8", "fd00::/16", "fc00::/7", "192.0.2.1/32", "10.0.0.0/8"))
	want := prefixes("10.0.0.0/8", "192.0.2.1/32", "fc00::/7")
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	all := normalize(prefixes("0.0.0.0/0", "10.0.0.0/8", "::/0", "fc00::/7"))
	if want := prefixes("0.0.0.0/0", "::/0"); !slices.Equal(all, want) {
		t.Errorf("got %v, want %v", all, want)
	}
}

func TestWithNAT64(t *testing.T) {
	got := withNAT64(prefixes("127.0.0.0/8", "::1/128"))
	want := prefixes("127.0.0.0/8", "::1/128", "64:ff9b::7f00:0/104")
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestParseRanges(t *testing.T) {
	for _, wrong := range []string{"10.0.0.0", "10.0.0.0/33", "::ffff:10.0.0.0/104", "all", "10.0.0.0/8 # x", "10.0.0.0/8\nhttp_access allow all"} {
		if _, err := parseRanges([]string{wrong}); err == nil {
			t.Errorf("%q was taken", wrong)
		}
	}
	if _, err := parseRanges([]string{"10.0.0.0/8", "2001:db8::/32"}); err != nil {
		t.Error(err)
	}
}

func linesWith(text, prefix string) []string {
	var found []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSuffix(line, "\n"); strings.HasPrefix(line, prefix) {
			found = append(found, line)
		}
	}
	return found
}

// covered tells whether the denied targets contain a prefix.
func covered(text string, prefix netip.Prefix) bool {
	for _, line := range linesWith(text, "acl denied_target dst ") {
		denied := netip.MustParsePrefix(strings.TrimPrefix(line, "acl denied_target dst "))
		if denied.Bits() <= prefix.Bits() && denied.Contains(prefix.Addr()) {
			return true
		}
	}
	return false
}
