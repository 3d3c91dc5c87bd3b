package fault

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/host"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/sshdial"
)

// TestClassify: what each error of a host means for a Proxy, in the words that libvirt uses; and the message does not repeat them.
func TestClassify(t *testing.T) {
	libvirt := func(code int, text string) error {
		return fmt.Errorf("create: %w", &rpc.Error{Procedure: "DomainCreate", Code: code, Err: errors.New(text)})
	}
	for name, c := range map[string]struct {
		err    error
		reason providers.Reason
		says   string
	}{
		"no pool":                 {libvirt(rpc.NoPool, "Storage pool not found: no storage pool with matching name 'x7'"), providers.Capacity, "storage pool"},
		"pool not active":         {libvirt(rpc.OperationInvalid, "storage pool 'x7' is not active"), providers.Capacity, "storage pool"},
		"no network":              {libvirt(rpc.NoNetwork, "Network not found: no network with matching name 'x7'"), providers.Capacity, "network"},
		"network not active":      {libvirt(rpc.OperationFailed, "network 'x7' is not active"), providers.Capacity, "network"},
		"no bridge":               {libvirt(rpc.SystemError, "Cannot get interface MTU on 'x7': No such device"), providers.Capacity, "network"},
		"volume gone":             {libvirt(rpc.NoVolume, "Storage volume not found: x7"), providers.Capacity, "volume"},
		"disk full":               {libvirt(rpc.SystemError, "cannot write data to file 'x7': No space left on device"), providers.Capacity, "no space"},
		"quota":                   {libvirt(rpc.SystemError, "Disk quota exceeded"), providers.Capacity, "no space"},
		"memory":                  {libvirt(rpc.InternalError, "qemu: cannot set up guest memory 'pc.ram': Cannot allocate memory"), providers.Capacity, "memory"},
		"AppArmor":                {libvirt(rpc.InternalError, "qemu-system-x86_64: -blockdev ...: Could not open '/x7': Permission denied"), providers.Capacity, "AppArmor"},
		"polkit":                  {libvirt(rpc.AuthUnavailable, "authentication unavailable: no polkit agent available to authenticate action 'org.libvirt.unix.manage'"), providers.Auth, "group libvirt"},
		"authentication failed":   {libvirt(rpc.AuthFailed, "authentication failed"), providers.Auth, "group libvirt"},
		"cancelled":               {libvirt(rpc.AuthCancelled, "authentication cancelled"), providers.Auth, "group libvirt"},
		"access denied":           {libvirt(rpc.AccessDenied, "access denied"), providers.Auth, "group libvirt"},
		"no hardware":             {libvirt(rpc.ConfigUnsupported, "unsupported configuration: KVM is not supported"), providers.InvalidSpec, "domainType"},
		"definition":              {libvirt(rpc.XMLError, "XML error: x7"), providers.InvalidSpec, "definition"},
		"anything":                {libvirt(rpc.InternalError, "internal error: x7"), providers.Unavailable, "log"},
		"lost":                    {&rpc.Error{Procedure: "DomainCreate", Lost: true, Err: errors.New("EOF")}, providers.Unavailable, "cannot be reached"},
		"given up":                {fmt.Errorf("x: %w", context.DeadlineExceeded), providers.Unavailable, "cannot be reached"},
		"another machine":         {fmt.Errorf("x: %w", host.ErrOtherMachine), providers.Unavailable, "another machine"},
		"closing":                 {host.ErrClosed, providers.Unavailable, "closing"},
		"host key":                {&sshdial.Error{Kind: sshdial.HostKeyMismatch}, providers.Auth, "knownHostsFile"},
		"key":                     {&sshdial.Error{Kind: sshdial.AuthRefused}, providers.Auth, "sshKeyFile"},
		"host that is off":        {&sshdial.Error{Kind: sshdial.Unreachable}, providers.Unavailable, "cannot be reached"},
		"what was sorted already": {providers.InvalidField("spec.x", "is wrong"), providers.InvalidSpec, "is wrong"},
	} {
		known, ok := errors.AsType[*providers.Error](Classify("op", c.err))
		if !ok || known.Reason != c.reason || !strings.Contains(known.Message, c.says) || strings.Contains(known.Message, "x7") {
			t.Errorf("%s: %v, want %s saying %q", name, known, c.reason, c.says)
		}
		if known.Reason == providers.InvalidSpec && known.Field == "" {
			t.Errorf("%s names no field", name)
		}
	}
	if Classify("op", nil) != nil {
		t.Error("nil is an error")
	}
}
