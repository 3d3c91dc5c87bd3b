package cooldown

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

var start = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func limited(target string) Hit {
	return Hit{Target: target, Result: v1alpha1.ReportRateLimited, InstanceID: "i1"}
}

func mustAdd(t *testing.T, list []v1alpha1.Cooldown, hit Hit, now time.Time) []v1alpha1.Cooldown {
	t.Helper()
	out, changed, _ := Add(list, hit, now)
	if !changed {
		t.Fatalf("report of %s changed nothing", hit.Target)
	}
	return out
}

func TestDefaultIsFifteenMinutes(t *testing.T) {
	list := mustAdd(t, nil, limited("a.example"), start)
	if got := Until(list, "i1", "a.example", start); !got.Equal(start.Add(15 * time.Minute)) {
		t.Fatalf("cools until %v", got)
	}
	if got := Until(list, "i1", "b.example", start); !got.IsZero() {
		t.Fatalf("another target cools until %v", got)
	}
}

func TestC2_ShortReportNeverShortensALongBan(t *testing.T) {
	ban := Hit{Target: "a.example", Result: v1alpha1.ReportBanned, InstanceID: "i1", RetryAfter: 20 * time.Hour}
	list := mustAdd(t, nil, ban, start)
	want := start.Add(20 * time.Hour)
	again, changed, _ := Add(list, limited("a.example"), start.Add(time.Minute))
	if changed || !Until(again, "i1", "a.example", start).Equal(want) {
		t.Fatalf("short report moved the end to %v", Until(again, "i1", "a.example", start))
	}
}

// A wait of hours that a target asks for is stored to the minute, although a slightly shorter one is stored already.
func TestLongRetryAfterIsNotShortened(t *testing.T) {
	hit := limited("a.example")
	hit.RetryAfter = 20 * time.Hour
	list := mustAdd(t, nil, hit, start)
	hit.RetryAfter = 21 * time.Hour
	list = mustAdd(t, list, hit, start)
	if got := Until(list, "i1", "a.example", start); !got.Equal(start.Add(21 * time.Hour)) {
		t.Fatalf("cools until %v", got)
	}
}

func TestC2_EscalatesOncePerEndedCooldownAndResetsAfterQuiet(t *testing.T) {
	now := start
	list := mustAdd(t, nil, limited("a.example"), now)
	for _, want := range []time.Duration{30 * time.Minute, time.Hour, 2 * time.Hour} {
		now = Until(list, "i1", "a.example", now).Add(time.Minute)
		list = mustAdd(t, list, limited("a.example"), now)
		if got := Until(list, "i1", "a.example", now).Sub(now); got != want {
			t.Fatalf("escalated to %v, want %v", got, want)
		}
	}
	now = Until(list, "i1", "a.example", now).Add(Quiet + time.Second)
	list = mustAdd(t, list, limited("a.example"), now)
	if got := Until(list, "i1", "a.example", now).Sub(now); got != Default {
		t.Fatalf("after a quiet time %v, want %v", got, Default)
	}
}

func TestManyHoldersReportingOneIncidentDoNotEscalate(t *testing.T) {
	list := mustAdd(t, nil, limited("a.example"), start)
	for i := range 100 {
		list, _, _ = Add(list, limited("a.example"), start.Add(time.Duration(i)*time.Second))
	}
	if list[0].Hits != 1 || Until(list, "i1", "a.example", start).After(start.Add(Default+100*time.Second)) {
		t.Fatalf("hits %d until %v", list[0].Hits, list[0].UntilTime)
	}
}

func TestRepetitionByOneLeaseDoesNotEscalate(t *testing.T) {
	list := mustAdd(t, nil, limited("a.example"), start)
	now := start.Add(Default + time.Minute)
	again := limited("a.example")
	again.Repeat = true
	list = mustAdd(t, list, again, now)
	if list[0].Hits != 1 || Until(list, "i1", "a.example", now).Sub(now) != Default {
		t.Fatalf("hits %d until %v", list[0].Hits, list[0].UntilTime)
	}
}

func TestC4_AnotherInstanceStartsClean(t *testing.T) {
	list := mustAdd(t, nil, limited("a.example"), start)
	if got := Until(list, "i2", "a.example", start); !got.IsZero() {
		t.Fatalf("the new instance cools until %v", got)
	}
	if got := Prune(list, "i2", start); len(got) != 0 {
		t.Fatalf("kept %v", got)
	}
}

func TestC5_ManyTargetsStayBounded(t *testing.T) {
	var list []v1alpha1.Cooldown
	evictions := 0
	for i := range 10_000 {
		target := fmt.Sprintf("t%d.example", i)
		var evicted int
		list, _, evicted = Add(list, limited(target), start.Add(time.Duration(i)*time.Millisecond))
		evictions += evicted
		if len(list) > v1alpha1.MaxCooldowns {
			t.Fatalf("%d cooldowns", len(list))
		}
		if Until(list, "i1", target, start).IsZero() {
			t.Fatalf("the report of %s was promised and is not there", target)
		}
	}
	if evictions != 10_000-v1alpha1.MaxCooldowns {
		t.Fatalf("%d evictions", evictions)
	}
}

func TestCarryMergesByTheLaterEnd(t *testing.T) {
	gone := mustAdd(t, mustAdd(t, nil, limited("a.example"), start), Hit{
		Target: "b.example", Result: v1alpha1.ReportBanned, InstanceID: "i1",
	}, start)
	other := mustAdd(t, nil, Hit{
		Target: "a.example", Result: v1alpha1.ReportRateLimited, InstanceID: "i2", RetryAfter: 5 * time.Hour,
	}, start)
	out, changed := Carry(other, "i2", gone, start)
	if !changed || !Until(out, "i2", "a.example", start).Equal(start.Add(5*time.Hour)) ||
		!Until(out, "i2", "b.example", start).Equal(start.Add(Banned)) {
		t.Fatalf("carried %v", out)
	}
	if _, changed := Carry(out, "i2", gone, start); changed {
		t.Fatal("a second carry changed something")
	}
}

// The end of a target's cooldown never moves to an earlier moment, lists stay sorted and bounded, nothing beyond Max.
func TestAddInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list []v1alpha1.Cooldown
		now := start
		t.Repeat(map[string]func(*rapid.T){
			"report": func(t *rapid.T) {
				hit := Hit{
					Target:     rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "target"),
					Result:     rapid.SampledFrom([]v1alpha1.ReportResult{v1alpha1.ReportRateLimited, v1alpha1.ReportBanned}).Draw(t, "result"),
					InstanceID: "i1",
					RetryAfter: time.Duration(rapid.IntRange(0, 200_000).Draw(t, "retryAfter")) * time.Second,
					Repeat:     rapid.Bool().Draw(t, "repeat"),
				}
				before := Until(list, "i1", hit.Target, now)
				stored := slices.Clone(list)
				out, changed, _ := Add(list, hit, now)
				after := Until(out, "i1", hit.Target, now)
				if after.Before(before) || !after.After(now) || after.After(now.Add(Max+time.Second)) {
					t.Fatalf("moved from %v to %v at %v", before, after, now)
				}
				if !changed && !slices.Equal(stored, out) {
					t.Fatal("unchanged, but another list")
				}
				if !slices.IsSortedFunc(out, func(a, b v1alpha1.Cooldown) int { return cmp.Compare(a.Target, b.Target) }) {
					t.Fatal("not sorted")
				}
				list = out
			},
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 20_000).Draw(t, "seconds")) * time.Second)
			},
		})
	})
}
