package seed

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// base60 is what YAML 1.1 reads as a number, and cloud-init's reader with it.
var base60 = regexp.MustCompile(`(?m)macaddress: [-+]?[0-9][0-9_]*(:[0-5]?[0-9])+$`)

// TestV3_HardwareAddressesStayTexts: one of digits only is a number to the base of 60 for cloud-init when it is not quoted.
func TestV3_HardwareAddressesStayTexts(t *testing.T) {
	for _, mac := range []string{"52:54:00:11:22:33", "52:54:00:00:00:00", "52:54:00:ab:cd:ef", "52:54:00:12:34:5e"} {
		text := files(t, Input{MAC: mac})["network-config"]
		if base60.MatchString(text) {
			t.Errorf("it is a number: %s", text)
		}
		var config struct {
			Version   int
			Ethernets map[string]struct {
				Match          struct{ MACAddress string }
				DHCP4          bool
				DHCPIdentifier string `json:"dhcp-identifier"`
			}
		}
		if err := yaml.UnmarshalStrict([]byte(text), &config); err != nil {
			t.Fatal(err)
		}
		nic, ok := config.Ethernets["proxy"]
		if len(config.Ethernets) != 1 || !ok || config.Version != 2 || nic.Match.MACAddress != mac || !nic.DHCP4 || nic.DHCPIdentifier != "mac" {
			t.Errorf("%+v is read from %s", config, text)
		}
	}
}

// TestV3_NamesWithSpecials: neither a name nor an identity can add a key to meta-data or become another type.
func TestV3_NamesWithSpecials(t *testing.T) {
	for _, s := range []string{"a: b", "x\ny: z", "#c", "'\"", "1e5", "0x10", "null", "yes", "12:30", "- a", "{a}", "é"} {
		var meta map[string]any
		text := files(t, Input{InstanceID: s, Hostname: s})["meta-data"]
		if err := yaml.Unmarshal([]byte(text), &meta); err != nil || meta["instance-id"] != s || meta["local-hostname"] != s || len(meta) != 2 {
			t.Errorf("%q is read as %v, %v", s, meta, err)
		}
	}
}

// TestV3_KindsOfVendorData: each part is declared as what cloud-init would take it for by itself.
func TestV3_KindsOfVendorData(t *testing.T) {
	for text, want := range map[string]string{
		"#cloud-config\nx: 1":               "text/cloud-config",
		"#cloud-config-archive\n- x":        "text/cloud-config-archive",
		"#!/bin/sh\ntrue":                   "text/x-shellscript",
		"#include\nhttps://x":               "text/x-include-url",
		"#cloud-boothook\ntrue":             "text/cloud-boothook",
		"#part-handler\n":                   "text/part-handler",
		"## template: jinja\n#cloud-config": "text/jinja2",
	} {
		if got := files(t, Input{VendorData: text, InstallGuestAgent: true})["vendor-data"]; !strings.Contains(got, "\nContent-Type: "+want+"; charset") {
			t.Errorf("%q is not declared as %s: %q", text, want, got)
		}
	}
	for _, text := range []string{"packages: [x]", "Content-Type: multipart/mixed; boundary=b\nMIME-Version: 1.0\n\n--b--\n"} {
		if _, err := Build(Input{VendorData: text, InstallGuestAgent: true}); err == nil {
			t.Errorf("%q has no place beside the script, and is put there", text)
		}
	}
}

// TestSeedsKeepTheirParts: the four files are always there, whatever is asked for.
func TestSeedsKeepTheirParts(t *testing.T) {
	for _, in := range []Input{{}, {InstallGuestAgent: true}, {VendorData: "#cloud-config\n"}, {VendorData: "#!/bin/sh\n", InstallGuestAgent: true}} {
		got := files(t, in)
		for _, name := range []string{"user-data", "meta-data", "vendor-data", "network-config"} {
			if got[name] == "" {
				t.Errorf("%+v: %s is missing or empty", in, name)
			}
		}
		if len(got) != 4 {
			t.Errorf("%d files", len(got))
		}
		image, err := Build(in)
		if err != nil || len(image)%2048 != 0 || !bytes.Contains(image[:40<<10], []byte("CD001")) {
			t.Errorf("the image has %d bytes, %v", len(image), err)
		}
	}
}
