package libvirttest

import (
	"fmt"
	"strings"
	"testing"
)

// verdict is a test that only says how it ended.
type verdict struct {
	testing.TB
}

func (v *verdict) Helper() {}

func (v *verdict) Skip(args ...any) { panic("skip: " + fmt.Sprint(args...)) }

func (v *verdict) Fatal(args ...any) { panic("fail: " + fmt.Sprint(args...)) }

// TestRigSaysWhatIsMissing: without its programs a test is skipped, but where all tests are required it fails; with -short it
// is skipped before anybody looks.
func TestRigSaysWhatIsMissing(t *testing.T) {
	ending := func() (ended string) {
		defer func() { ended = fmt.Sprint(recover()) }()
		find(&verdict{TB: t}, "no-such-daemon")
		return ""
	}
	if testing.Short() {
		if got := ending(); !strings.HasPrefix(got, "skip: ") || !strings.Contains(got, "-short") {
			t.Errorf("with -short: %s", got)
		}
		return
	}
	for value, want := range map[string]string{"": "skip: ", "1": "fail: "} {
		t.Setenv("EGRESS_REQUIRE_ALL", value)
		if got := ending(); !strings.HasPrefix(got, want) || !strings.Contains(got, "no-such-daemon is not installed: apt-get install") {
			t.Errorf("EGRESS_REQUIRE_ALL=%s: %s", value, got)
		}
	}
}
