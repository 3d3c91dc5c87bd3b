package breaker

import (
	"testing"
	"time"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

func TestE20_OpensWhenNobodySucceeds(t *testing.T) {
	var b Breaker
	for s := range 60 {
		for range 10 {
			b.Record(at(s), true)
		}
	}
	// From second 60 on everything fails. A proxy that failed first then asks after each of its failures.
	for s := 60; s <= 70; s++ {
		b.Record(at(s), false)
		b.Record(at(s), false)
		b.Record(at(s), false)
		if open := b.Suspect(at(s), at(60)); open != (s >= 64) {
			t.Errorf("second %d: suspect %v", s, open)
		}
	}
	if !b.Open() {
		t.Error("not open")
	}
	if !b.Record(at(71), true) || b.Open() {
		t.Error("a success did not close it")
	}
	if b.Record(at(72), true) {
		t.Error("closed twice")
	}
}

// Losses of a part of a fleet are never held back.
func TestE21_PartialLossStaysClosed(t *testing.T) {
	for _, dead := range []int{10, 30, 70, 85} {
		var b Breaker
		for s := range 60 {
			for i := range 100 {
				b.Record(at(s), i >= dead)
			}
			if b.Suspect(at(s), start) {
				t.Fatalf("%d %% dead: suspect in second %d", dead, s)
			}
		}
	}
}

func TestSmallFleetsDecideNothing(t *testing.T) {
	var b Breaker
	for s := range MinSamples - 1 {
		b.Record(at(s+1), false)
	}
	if b.Suspect(at(60), start) {
		t.Error("suspect with too few samples")
	}
}

// What happened before the trouble began does not count, nor what is older than the history.
func TestOldSamplesDoNotCount(t *testing.T) {
	var b Breaker
	for range 100 {
		b.Record(start, false)
	}
	if b.Suspect(at(1), start) {
		t.Error("samples of the first second counted")
	}
	later := start.Add(History)
	for range MinSamples {
		b.Record(later, true)
	}
	if ok, all := b.count(later, start.Add(-time.Second)); ok != MinSamples || all != MinSamples {
		t.Errorf("counted %d of %d", ok, all)
	}
}

// The hold is bounded: a fleet that is really gone is reported in the end.
func TestHoldEnds(t *testing.T) {
	var b Breaker
	if b.Exhausted(start) {
		t.Error("exhausted before it opened")
	}
	for s := range 20 {
		b.Record(at(s), false)
	}
	if !b.Suspect(at(20), start) {
		t.Fatal("not suspect")
	}
	if b.Exhausted(at(20).Add(MaxHold)) {
		t.Error("given up early")
	}
	if after := at(21).Add(MaxHold); !b.Exhausted(after) || !b.Open() || !b.Record(after, true) || b.Exhausted(after) {
		t.Error("not exhausted, or not ended by a success")
	}
}

func TestTrialsAreRare(t *testing.T) {
	var b Breaker
	trials := 0
	for s := range 60 {
		if b.TryTrial(at(s)) {
			trials++
		}
	}
	if want := int(time.Minute / TrialInterval); trials != want {
		t.Errorf("%d trials in a minute, want %d", trials, want)
	}
}
