package seed

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"strings"
	"testing"

	"github.com/kdomanski/iso9660"
	"sigs.k8s.io/yaml"
)

// files reads a seed as a guest does.
func files(t *testing.T, in Input) map[string]string {
	t.Helper()
	data, err := Build(in)
	if err != nil {
		t.Fatal(err)
	}
	image, err := iso9660.OpenImage(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if label, err := image.Label(); err != nil || label != Label {
		t.Fatalf("the label is %q, %v", label, err)
	}
	root, err := image.RootDir()
	if err != nil {
		t.Fatal(err)
	}
	children, err := root.GetChildren()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, child := range children {
		text, err := io.ReadAll(child.Reader())
		if err != nil {
			t.Fatal(err)
		}
		out[child.Name()] = string(text)
	}
	return out
}

// TestV3_SeedHasItsFiles: user data, meta-data with a new identity, and a network that knows the machine by its address.
func TestV3_SeedHasItsFiles(t *testing.T) {
	user := "#cloud-config\nruncmd: [\"echo <&>\"]\n# é\n"
	got := files(t, Input{InstanceID: "id-1", Hostname: "px-a", MAC: "52:54:00:01:02:03", UserData: []byte(user)})
	if got["user-data"] != user {
		t.Errorf("user-data is %q", got["user-data"])
	}
	var meta map[string]string
	if err := yaml.Unmarshal([]byte(got["meta-data"]), &meta); err != nil || meta["instance-id"] != "id-1" || meta["local-hostname"] != "px-a" {
		t.Errorf("meta-data is %q, %v", got["meta-data"], err)
	}
	for _, want := range []string{"version: 2", "macaddress: \"52:54:00:01:02:03\"", "dhcp-identifier: mac", "dhcp4: true"} {
		if !strings.Contains(strings.ReplaceAll(got["network-config"], "'", `"`), want) && !strings.Contains(got["network-config"], strings.ReplaceAll(want, `"`, "")) {
			t.Errorf("network-config lacks %q: %s", want, got["network-config"])
		}
	}
	if got["vendor-data"] == "" {
		t.Error("there is no vendor-data, which cloud-init reports as broken")
	}
}

// TestV3_AgentScriptStandsBesideVendorData: the class's vendor data and the agent's script are parts of their own, and a
// script by itself is sent as it is.
func TestV3_AgentScriptStandsBesideVendorData(t *testing.T) {
	vendor := "#cloud-config\npackages: [chrony]\n"
	text := files(t, Input{VendorData: vendor, InstallGuestAgent: true})["vendor-data"]
	message, err := mail.ReadMessage(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	_, parameters, err := mime.ParseMediaType(message.Header.Get("Content-Type"))
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]string{}
	for r := multipart.NewReader(message.Body, parameters["boundary"]); ; {
		part, err := r.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(part)
		if err != nil {
			t.Fatal(err)
		}
		kind, _, _ := mime.ParseMediaType(part.Header.Get("Content-Type"))
		parts[kind] = string(body)
	}
	if parts["text/cloud-config"] != vendor || parts["text/x-shellscript"] != agentScript || len(parts) != 2 {
		t.Errorf("the parts are %q", parts)
	}
	if got := files(t, Input{InstallGuestAgent: true})["vendor-data"]; got != agentScript {
		t.Errorf("the script alone is %q", got)
	}
	if got := files(t, Input{VendorData: vendor})["vendor-data"]; got != vendor {
		t.Errorf("the vendor data alone are %q", got)
	}
}

// TestSeedHoldsUserDataOfAnySize: up to the largest that a Secret can hold.
func TestSeedHoldsUserDataOfAnySize(t *testing.T) {
	for _, size := range []int{0, 1, 2047, 2048, 2049, 1 << 20} {
		user := strings.Repeat("x", size)
		if got := files(t, Input{UserData: []byte(user)})["user-data"]; size > 0 && got != user {
			t.Errorf("of %d bytes there are %d", size, len(got))
		}
	}
}
