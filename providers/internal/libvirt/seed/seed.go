// Package seed builds the disk that cloud-init reads on first boot: its NoCloud data source, an ISO 9660 image of the label
// cidata.
package seed

import (
	"bytes"
	"errors"
	"fmt"
	"mime/multipart"
	"net/textproto"

	"github.com/kdomanski/iso9660"
	"sigs.k8s.io/yaml"
)

// Label of the image, by which cloud-init knows it.
const Label = "cidata"

// Input is what goes into a seed.
type Input struct {
	// InstanceID tells cloud-init that this is a first boot.
	InstanceID string
	Hostname   string
	// MAC of the machine's only interface.
	MAC string
	// UserData is the user's cloud-init; it may be empty.
	UserData []byte
	// VendorData is the class's cloud-init.
	VendorData string
	// InstallGuestAgent has the QEMU guest agent installed and started.
	InstallGuestAgent bool
}

// agentScript installs the agent with whatever package manager there is. It is a script and not a list of packages, since
// user data that has such a list replaces it.
//
//nolint:dupword // a shell closes its ifs
const agentScript = `#!/bin/sh
if ! command -v qemu-ga >/dev/null 2>&1; then
  if command -v apt-get >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update && apt-get install -y --no-install-recommends qemu-guest-agent
  elif command -v dnf >/dev/null 2>&1; then
    dnf install -y qemu-guest-agent
  elif command -v zypper >/dev/null 2>&1; then
    zypper --non-interactive install qemu-guest-agent
  elif command -v apk >/dev/null 2>&1; then
    apk add qemu-guest-agent
  fi
fi
if command -v systemctl >/dev/null 2>&1; then
  systemctl enable --now qemu-guest-agent || systemctl start qemu-guest-agent
elif command -v rc-service >/dev/null 2>&1; then
  rc-update add qemu-guest-agent
  rc-service qemu-guest-agent start
fi
`

// boundary of the parts of vendor data; fixed, so that equal seeds are equal.
const boundary = "egress-proxies-vendor-data-1f0c9e7a"

// Build makes the image. It needs a temporary directory that can be written.
func Build(in Input) (image []byte, err error) {
	meta, err := yaml.Marshal(map[string]string{"instance-id": in.InstanceID, "local-hostname": in.Hostname})
	if err != nil {
		return nil, fmt.Errorf("write meta-data: %w", err)
	}
	network, err := networkConfig(in.MAC)
	if err != nil {
		return nil, err
	}
	vendor, err := vendorData(in)
	if err != nil {
		return nil, err
	}
	user := in.UserData
	if len(user) == 0 {
		// An empty file would be reported as broken.
		user = []byte("#cloud-config\n{}\n")
	}
	w, err := iso9660.NewWriter()
	if err != nil {
		return nil, fmt.Errorf("begin the seed: %w", err)
	}
	defer func() { err = errors.Join(err, w.Cleanup()) }()
	for _, file := range []struct {
		name string
		data []byte
	}{{"user-data", user}, {"meta-data", meta}, {"vendor-data", vendor}, {"network-config", network}} {
		if err := w.AddFile(bytes.NewReader(file.data), file.name); err != nil {
			return nil, fmt.Errorf("add %s to the seed: %w", file.name, err)
		}
	}
	var out bytes.Buffer
	if err := w.WriteTo(&out, Label); err != nil {
		return nil, fmt.Errorf("write the seed: %w", err)
	}
	return out.Bytes(), nil
}

// networkConfig asks for an address by DHCP. The identifier is the hardware address: images with a machine id baked in would
// all be the same client, and get one address.
func networkConfig(mac string) ([]byte, error) {
	out, err := yaml.Marshal(map[string]any{
		"version": 2,
		"ethernets": map[string]any{"proxy": map[string]any{
			"match": map[string]any{"macaddress": mac}, "dhcp4": true, "dhcp-identifier": "mac",
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("write network-config: %w", err)
	}
	return out, nil
}

// vendorData is the class's, the script's, or both as parts of one message.
func vendorData(in Input) ([]byte, error) {
	switch {
	case !in.InstallGuestAgent && in.VendorData == "":
		return []byte("#cloud-config\n{}\n"), nil
	case !in.InstallGuestAgent:
		return []byte(in.VendorData), nil
	case in.VendorData == "":
		return []byte(agentScript), nil
	}
	kind := Kind([]byte(in.VendorData))
	if kind == "" || kind == Message {
		return nil, errors.New("write vendor-data: what is not one of cloud-init's kinds, or a message already, has no place beside the agent's script")
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "Content-Type: multipart/mixed; boundary=%q\nMIME-Version: 1.0\n\n", boundary)
	w := multipart.NewWriter(&out)
	if err := w.SetBoundary(boundary); err != nil {
		return nil, fmt.Errorf("write vendor-data: %w", err)
	}
	for _, part := range []struct{ name, kind, text string }{
		{"vendor-data", kind, in.VendorData}, {"guest-agent", "text/x-shellscript", agentScript},
	} {
		header := textproto.MIMEHeader{}
		header.Set("Content-Type", part.kind+`; charset="utf-8"`)
		header.Set("Content-Disposition", `attachment; filename="`+part.name+`"`)
		body, err := w.CreatePart(header)
		if err == nil {
			_, err = body.Write([]byte(part.text))
		}
		if err != nil {
			return nil, fmt.Errorf("write vendor-data: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("write vendor-data: %w", err)
	}
	return out.Bytes(), nil
}
