package libvirt

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A manager without keys starts, and says so.
func TestAManagerWithoutKeysSaysSo(t *testing.T) {
	root := t.TempDir()
	f := &Factory{Root: root}
	wants := func(when string, n int) {
		t.Helper()
		got := f.Warnings()
		if len(got) != n || n > 0 && (!strings.Contains(got[0], "kvm-ssh") || !strings.Contains(got[0], "sshSecretRef")) {
			t.Errorf("%s: %q", when, got)
		}
	}
	wants("nothing is mounted", 1)
	dir := filepath.Join(root, CredentialsDir)
	if err := os.MkdirAll(filepath.Join(dir, "..data"), 0o755); err != nil {
		t.Fatal(err)
	}
	wants("an optional Secret that is not there", 1)
	if err := os.WriteFile(filepath.Join(dir, "id_ed25519"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wants("a key", 0)
}
