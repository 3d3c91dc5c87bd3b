package instance

import (
	"crawl.example.com/egress-proxies-operator/providers"
)

// The functions here judge what happens by the truth, which no manager knows.

func (w *world) judgeCreate(m *machine) {
	p := w.api.current()
	m.doubted = p.spec != m.made
	switch {
	case p.gone || p.uid != m.uid:
		w.leak(m)
	case len(w.cloud.of(m.uid)) > 1:
		w.tell("!!! doubled")
		w.count(doubles)
	}
}

func (w *world) judgeDelete(m *machine, meant providers.Ref) {
	p := w.api.current()
	if m.ID != meant.ID {
		w.tell("!!! Delete of %s hits %s", meant.ID, m.ID)
		w.count(wrong)
	}
	switch {
	case m.uid == foreignUID:
		w.tell("!!! Delete of another owner's")
		w.count(foreignDeleted)
	case p.gone || p.deleting || p.uid != m.uid || m.state(w.now) != providers.StateRunning:
	case p.onDelete || !m.doubted:
		w.tell("!!! needless Delete of %s", m.ID)
		w.count(needless)
	}
}

// judgeGone is called when an object is gone: its instance must be gone, too.
func (w *world) judgeGone(p simProxy) {
	w.count(released)
	for _, m := range w.cloud.of(p.uid) {
		w.leak(m)
	}
	if w.reborn {
		w.after(w.upTo(restartMax), func() {
			w.reborn = false
			w.calm = false
			w.count(namesakes)
			w.born("u2", p.onDelete)
		})
	}
}

func (w *world) leak(m *machine) {
	if m.leaked {
		return
	}
	m.leaked = true
	w.tell("!!! %s of %s has leaked", m.ID, m.uid)
	w.count(leaks)
}

// judgeRunning is called after a long calm time.
func (w *world) judgeRunning() {
	p := w.api.current()
	machines := w.cloud.of(p.uid)
	want := p.spec.hash(w.hashVersion)
	if len(machines) == 1 && machines[0].state(w.now) == providers.StateRunning && len(p.record.Addresses) > 0 && p.record.ID == machines[0].ID &&
		(p.onDelete || !providers.HashDiffers(machines[0].hash, want)) {
		return
	}
	w.tell("!!! does not run what is asked for: %+v", p.record)
	w.count(unfinished)
}
