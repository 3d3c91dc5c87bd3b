package fsm

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var (
	start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	key   = Key{UID: "u", InstanceID: "i", Address: "a", Credentials: "c", Settings: "s"}
	one   = Config{Fall: 3, Rise: 2, Targets: 1}
	two   = Config{Fall: 3, Rise: 2, Targets: 2}
)

func ok() Observation { return Observation{Kind: Success, Reason: "OK", Message: "ok"} }

func bad(target int) Observation {
	return Observation{Kind: Failure, Reason: "Bad", Message: "bad", AboutTarget: true, Target: target}
}

// feed observes a row of results a second apart: S success, F failure, A and B failures at the first and second
// target, P the proxy's own failure, I an immediate one, N neutral, H held. It returns the transitions as "index:status".
func feed(m *Machine, from time.Time, cfg Config, row string) []string {
	var out []string
	for i, c := range row {
		o := ok()
		switch c {
		case 'F', 'A':
			o = bad(0)
		case 'B':
			o = bad(1)
		case 'P':
			o = Observation{Kind: Failure, Reason: "Refused", Message: "refused"}
		case 'I':
			o = Observation{Kind: Failure, Reason: "Immediate", Message: "immediate", Immediate: true}
		case 'J':
			o = bad(0)
			o.Immediate = true
		case 'N':
			o = Observation{Kind: Neutral, Reason: "Neutral", Message: "neutral"}
		case 'H':
			o = Observation{Kind: Held}
		}
		before := m.Status()
		m.Observe(from.Add(time.Duration(i)*time.Second), cfg, o)
		if m.Status() != before {
			out = append(out, fmt.Sprintf("%d:%s", i, m.Status()))
		}
	}
	return out
}

func TestE29_Rows(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  Config
		row  string
		want []string
	}{
		{"E29 interrupted row", one, "SFFSFF", []string{"0:healthy"}},
		{"E29 third failure falls", one, "SFFF", []string{"0:healthy", "3:unhealthy"}},
		{"E29 first success promotes", one, "FFS", []string{"2:healthy"}},
		{"E29 never judged needs the threshold to fall", one, "FFF", []string{"2:unhealthy"}},
		{"E29 second success rises", one, "FFFSS", []string{"2:unhealthy", "4:healthy"}},
		{"E29 interrupted rise", one, "FFFSFSS", []string{"2:unhealthy", "6:healthy"}},
		{"E19 neutral results change nothing", one, "SFFNNNF", []string{"0:healthy", "6:unhealthy"}},
		{"E19 neutral results alone", one, "NNNNNN", nil},
		{"E20 held results change nothing", one, "SHHHHHHHHH", []string{"0:healthy"}},
		{"E23 one of two targets failing", two, "SAAAAAAAA", []string{"0:healthy"}},
		{"E23 both targets failing", two, "SABA", []string{"0:healthy", "3:unhealthy"}},
		{"E23 the second target late", two, "SAAAB", []string{"0:healthy", "4:unhealthy"}},
		{"E23 alternating targets of which one works", two, "SASASASASASAS", []string{"0:healthy"}},
		{"the proxy's own failures need no second target", two, "SPPP", []string{"0:healthy", "3:unhealthy"}},
		{"E11 immediate", one, "SI", []string{"0:healthy", "1:unhealthy"}},
		{"E11 immediate at one of two targets waits for the other", two, "SJSJS", []string{"0:healthy"}},
		{"thresholds of one", Config{Fall: 1, Rise: 1, Targets: 1}, "SFSF", []string{"0:healthy", "1:unhealthy", "2:healthy", "3:unhealthy"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := New(key, start)
			if got := feed(&m, start, tc.cfg, tc.row); fmt.Sprint(got) != fmt.Sprint(tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// For all thresholds and rows: no fall with fewer counted failures in a row than the threshold, no rise with fewer
// successes, and every change is reported exactly once.
func TestE29_NeverEarly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{Fall: rapid.IntRange(1, 5).Draw(t, "fall"), Rise: rapid.IntRange(1, 5).Draw(t, "rise"), Targets: rapid.IntRange(1, 3).Draw(t, "targets")}
		m := New(key, start)
		now, failures, successes := start, 0, 0
		for range rapid.IntRange(1, 200).Draw(t, "probes") {
			now = now.Add(time.Duration(rapid.IntRange(1, 120).Draw(t, "gap")) * time.Second)
			o := Observation{Kind: Kind(rapid.IntRange(0, 3).Draw(t, "kind")), Reason: rapid.SampledFrom([]string{"X", "Y"}).Draw(t, "reason"), AboutTarget: true, Target: rapid.IntRange(0, cfg.Targets-1).Draw(t, "target")}
			switch o.Kind {
			case Success:
				successes++
				failures = 0
			case Failure:
				failures++
				successes = 0
			}
			before, beforeReason := m.Status(), m.reason
			changed := m.Observe(now, cfg, o)
			if m.Status() == Unhealthy && before != Unhealthy && failures < cfg.Fall {
				t.Fatalf("fell after %d failures of %d", failures, cfg.Fall)
			}
			if before == Unhealthy && m.Status() == Healthy && successes < cfg.Rise {
				t.Fatalf("rose after %d successes of %d", successes, cfg.Rise)
			}
			if changed != (before != m.Status() || beforeReason != m.reason) {
				t.Fatalf("reported change %v, from %s %s to %s %s", changed, before, beforeReason, m.Status(), m.reason)
			}
			if before != m.Status() && !m.Since().Equal(now) {
				t.Fatalf("transition at %s dated %s", now, m.Since())
			}
		}
	})
}

// A proxy that alternates is damped: it takes ever more successes to come back, and says so.
func TestE30_FlappingIsDamped(t *testing.T) {
	m := New(key, start)
	now := start
	step := func(o Observation) {
		now = now.Add(5 * time.Second)
		m.Observe(now, one, o)
	}
	step(ok())
	var needed []int
	for range 6 {
		for m.Status() == Healthy {
			step(bad(0))
		}
		n := 0
		for m.Status() != Healthy {
			step(ok())
			n++
		}
		needed = append(needed, n)
	}
	if fmt.Sprint(needed) != "[2 4 8 16 32 32]" {
		t.Errorf("successes needed: %v", needed)
	}
	for m.Status() == Healthy {
		step(bad(0))
	}
	if reason, message := m.Reason(); reason != ReasonFlapping || message == "" {
		t.Errorf("reason %s", reason)
	}
	for m.Status() != Healthy {
		step(ok())
	}
	now = now.Add(FlapWindow + time.Hour)
	for m.Status() == Healthy {
		step(bad(0))
	}
	if reason, _ := m.Reason(); reason != "Bad" {
		t.Errorf("after a quiet time the reason is still %s", reason)
	}
}

// While Unhealthy, another reason is told at most every ten minutes.
func TestReasonChangesAreRare(t *testing.T) {
	m := New(key, start)
	feed(&m, start, one, "FFF")
	other := Observation{Kind: Failure, Reason: "Other", Message: "other"}
	if m.Observe(start.Add(time.Minute), one, other) {
		t.Error("changed its reason after a minute")
	}
	if !m.Observe(start.Add(11*time.Minute), one, other) {
		t.Error("kept its reason after eleven minutes")
	}
	if got, _ := m.Reason(); got != "Other" || m.Status() != Unhealthy {
		t.Errorf("got %s %s", m.Status(), got)
	}
}

// Before the first verdict users see why there is none.
func TestUnknownShowsReason(t *testing.T) {
	m := New(key, start)
	if !m.Observe(start, one, bad(0)) || m.Observe(start, one, bad(0)) {
		t.Error("the first failure is news, the same one again is not")
	}
	if reason, _ := m.Reason(); reason != "Bad" || m.Status() != Unknown {
		t.Errorf("got %s %s", m.Status(), reason)
	}
}

func TestE35_Rekey(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Key)
		status Status
	}{
		{"E35 another instance", func(k *Key) { k.InstanceID = "j" }, Unknown},
		{"E35 another address", func(k *Key) { k.Address = "b" }, Unknown},
		{"E35 another object", func(k *Key) { k.UID = "v" }, Unknown},
		{"E35 other credentials", func(k *Key) { k.Credentials = "d" }, Healthy},
		{"E53 other settings", func(k *Key) { k.Settings = "t" }, Healthy},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := New(key, start)
			feed(&m, start, one, "SFF")
			k := key
			tc.change(&k)
			if changed := m.Rekey(k, start); changed != (tc.status == Unknown) {
				t.Errorf("reported change %v", changed)
			}
			if m.Status() != tc.status || m.Key() != k || m.failures != 0 || !m.FirstFailure().IsZero() {
				t.Errorf("got %+v", m)
			}
			if m.Rekey(k, start) {
				t.Error("the same key again changed something")
			}
		})
	}
}

func TestE27_RestoreFlipsNothing(t *testing.T) {
	m := Restore(key, Healthy, "OK", "ok", start)
	if m.Observe(start.Add(time.Hour), one, ok()) {
		t.Error("a success after a restart was reported as a change")
	}
	if got := feed(&m, start.Add(time.Hour), one, "FF"); got != nil {
		t.Errorf("fell early after a restart: %v", got)
	}
	if !m.Since().Equal(start) {
		t.Errorf("the verdict is dated %s", m.Since())
	}
}

func TestDelay(t *testing.T) {
	timing := Timing{Period: time.Minute, Fast: 5 * time.Second, UnhealthyMax: 5 * time.Minute}
	for _, tc := range []struct {
		name  string
		row   string
		after time.Duration // since the end of the row
		last  Last
		want  time.Duration
	}{
		{"never probed successfully", "F", 0, Last{Kind: Failure}, 5 * time.Second},
		{"healthy", "S", 0, Last{Kind: Success}, time.Minute},
		{"challenged", "SF", 0, Last{Kind: Failure}, 5 * time.Second},
		{"E3 wrong credentials", "SF", 0, Last{Kind: Failure, NoFast: true}, time.Minute},
		{"E3 wrong credentials from the start", "F", 0, Last{Kind: Failure, NoFast: true}, time.Minute},
		{"just fallen", "FFF", 0, Last{Kind: Failure}, 5 * time.Second},
		{"down for 40 s", "FFF", 40 * time.Second, Last{Kind: Failure}, 40 * time.Second},
		{"down for an hour", "FFF", time.Hour, Last{Kind: Failure}, 5 * time.Minute},
		{"down for an hour with wrong credentials", "FFF", time.Hour, Last{Kind: Failure, NoFast: true}, 5 * time.Minute},
		{"rising", "FFFS", time.Hour, Last{Kind: Success}, 5 * time.Second},
		{"neutral", "SN", 0, Last{Kind: Neutral}, time.Minute},
		{"held", "SH", 0, Last{Kind: Held}, time.Minute},
		{"local", "S", 0, Last{Local: true}, 5 * time.Second},
		{"E6 throttled", "SN", 0, Last{Kind: Neutral, RetryAfter: 3 * time.Minute}, 3 * time.Minute},
		{"E6 throttled for a second", "SN", 0, Last{Kind: Neutral, RetryAfter: time.Second}, time.Minute},
		{"E6 throttled for a year", "SN", 0, Last{Kind: Neutral, RetryAfter: 365 * 24 * time.Hour}, 10 * time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := New(key, start)
			feed(&m, start, one, tc.row)
			at := start.Add(time.Duration(len(tc.row)-1)*time.Second + tc.after)
			if got := m.Delay(at, timing, tc.last); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}
