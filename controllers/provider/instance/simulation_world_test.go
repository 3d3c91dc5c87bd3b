package instance

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// busy is the time in which users change things and trouble begins.
	busy = 12 * time.Minute
	// calmRun is how long after the last trouble a Proxy must run what is asked for, calmRelease how long until one that
	// is deleted must be released.
	calmRun     = 35 * time.Minute
	calmRelease = 30 * time.Minute
	// simProvisionTimeout is longer than a start may take and shorter than pauseMax.
	simProvisionTimeout = 5 * time.Minute
)

type simEvent struct {
	at time.Time
	do func()
}

// world is what goes on around the manager: the user, the class, the cloud's outages.
type world struct {
	*fate
	api   *simAPI
	cloud *simCloud
	// events are what is to come, in order.
	events []simEvent
	// woken tells that the controller's watches saw the last event.
	woken bool

	// hashVersion is that of the operator; generation that of the class.
	hashVersion int
	generation  int64
	// spread makes the class place instances in turn; turn is its next zone.
	spread bool
	turn   int
	// unresolvable user data, a class that is going, and one that is gone, as of now.
	unresolvable, terminating, classGone bool

	// reborn tells that a namesake is still to come; long that there is time to see it run.
	reborn, long bool
	end          time.Time
}

func (w *world) after(d time.Duration, do func()) {
	e := simEvent{w.now.Add(d), do}
	i, _ := slices.BinarySearchFunc(w.events, e, func(a, b simEvent) int { return a.at.Compare(b.at) })
	w.events = slices.Insert(w.events, i, e)
}

// spell switches something on for a time, once in n lives.
func (w *world) spell(n int, longest time.Duration, name string, set func(on bool)) {
	if !w.chance(n) {
		return
	}
	length := w.upTo(longest)
	w.after(w.upTo(busy), func() {
		if w.calm {
			return
		}
		w.tell("* %s for %v", name, length)
		set(true)
		w.after(length, func() { set(false); w.woken = true })
	})
}

// over tells that nothing is left to do.
func (w *world) over() bool { return w.api.current().gone && !w.reborn }

// plan lays out what will happen.
func (w *world) plan() {
	w.cloud.quotaFirst, w.cloud.namesConflict, w.spread = w.chance(2), w.chance(2), w.chance(2)
	w.cloud.onCreate, w.cloud.onDelete, w.api.onGone = w.judgeCreate, w.judgeDelete, w.judgeGone
	w.hashVersion, w.generation = 1, 1

	w.reborn = w.chance(3)
	w.long = !w.reborn && w.chance(4)
	w.born("u1", w.chance(6))
	for range w.random.IntN(4) {
		w.after(w.upTo(busy), w.changeSpec)
	}
	w.spell(3, time.Second, "class changes", func(bool) { w.generation++; w.turn++ })
	for range 2 {
		down := []providers.Reason{providers.Unavailable, providers.Unavailable, providers.Auth, providers.RateLimited}[w.random.IntN(4)]
		w.spell(3, 2*time.Minute, string(down), func(on bool) {
			w.cloud.down = ""
			if on {
				w.cloud.down = down
			}
		})
	}
	w.spell(8, 4*time.Minute, "invalid specification", func(on bool) {
		w.cloud.invalid = on
		w.generation++
	})
	w.spell(3, 3*time.Minute, "user data unresolvable", func(on bool) { w.unresolvable = on })
	w.spell(8, 3*time.Minute, "class terminating", func(on bool) { w.terminating = on })
	w.spell(6, 3*time.Minute, "class gone", func(on bool) { w.classGone = on })
	w.spell(8, time.Second, "operator upgrade", func(on bool) {
		if on {
			w.hashVersion++
			w.count(upgrades)
		}
	})
	w.spell(10, time.Second, "record lost", func(on bool) { w.loseRecord(on) })
	w.spell(6, time.Second, "intruder", func(bool) { w.intrude(simZones[w.random.IntN(len(simZones))], 2*time.Minute) })
}

// born stores a Proxy of the name, and plans its deletion.
func (w *world) born(uid types.UID, onDelete bool) {
	w.tell("* user creates %s", uid)
	w.api.push(simProxy{uid: uid, onDelete: onDelete})
	deletion := w.upTo(busy)
	switch {
	case w.long:
		deletion = busy + calmRun
		w.after(busy, w.calmDown)
	case w.chance(3):
		deletion = w.upTo(20 * time.Second)
	case w.chance(4):
		deletion = w.upTo(2 * time.Minute)
	}
	w.end = w.now.Add(deletion + busy + calmRelease)
	w.after(deletion, func() { w.remove(uid) })
	w.woken = true
}

func (w *world) calmDown() {
	w.tell("* calm")
	w.calm = true
	w.cloud.forgive()
	w.unresolvable, w.terminating, w.classGone = false, false, false
	w.generation++
	w.cloud.machines = slices.DeleteFunc(w.cloud.machines, func(m *machine) bool { return m.uid == foreignUID })
	w.woken = true
}

// remove is the user's deletion.
func (w *world) remove(uid types.UID) {
	if w.long {
		w.judgeRunning()
	}
	w.tell("* user deletes %s", uid)
	w.calm = false
	w.api.touch(func(p *simProxy) { p.deleting = true })
	w.after(busy, func() {
		if w.api.current().uid == uid {
			w.calmDown()
		}
	})
	w.woken = true
}

func (w *world) changeSpec() {
	p := w.api.current()
	if p.gone || w.calm {
		return
	}
	spec := p.spec
	if w.random.IntN(2) == 0 {
		spec.zone = []string{"", "a", "b"}[w.random.IntN(3)]
	} else {
		spec.content = w.random.IntN(3)
	}
	w.tell("* user changes %s to %v", p.uid, spec)
	w.api.touch(func(p *simProxy) { p.spec = spec })
	for _, m := range w.cloud.of(p.uid) {
		m.doubted = m.doubted || m.made != spec
	}
	w.woken = true
}

// loseRecord empties the status, as a restore may do; not while an attempt is under way, of which only the record tells.
func (w *world) loseRecord(on bool) {
	p := w.api.current()
	machines := w.cloud.of(p.uid)
	if !on || p.gone || p.deleting || len(machines) != 1 || machines[0].ID != p.record.ID || unsettled(p.record, w.now, simTiming) {
		return
	}
	machines[0].hiddenUntil = time.Time{}
	w.count(wipes)
	w.tell("* record of %s lost", p.uid)
	w.api.touch(func(p *simProxy) { p.record = v1alpha1.Instance{} })
}

// intrude gives the name in a zone to another owner's instance for a time.
func (w *world) intrude(zone string, longest time.Duration) {
	p := w.api.current()
	if p.gone || w.calm || w.cloud.holder(p.name(), zone) != nil {
		return
	}
	m := &machine{uid: foreignUID, hash: "v1-other", visible: w.now, runs: w.now}
	m.Name, m.Zone, m.ID = p.name(), zone, "f"
	m.gone = w.now.Add(w.upTo(longest))
	w.tell("* another owner holds the name in %s", zone)
	w.cloud.machines = append(w.cloud.machines, m)
}

// desired mirrors gather: what is asked for as far as it can be told now.
func (w *world) desired(p *simProxy) Desired {
	d := Desired{
		UID: p.uid, ClassGeneration: w.generation, ProvisionTimeout: simProvisionTimeout,
		Deleting: p.deleting, Finalizer: p.finalizer, OnDelete: p.onDelete,
	}
	switch {
	case w.classGone:
		d.Blind = &Finding{v1alpha1.ReasonClassNotFound, "no class"}
	case p.deleting:
	case w.unresolvable:
		w.count(unresolved)
		d.Hold = &Finding{v1alpha1.ReasonCloudInitError, "no Secret"}
	default:
		d.Hash = p.spec.hash(w.hashVersion)
		if w.terminating {
			d.Hold = &Finding{v1alpha1.ReasonClassTerminating, "class is going"}
		}
	}
	return d
}

// placements are the specifications as chooseZone reads them.
var placements = map[string]*v1alpha1.ProxySpec{
	"":  {},
	"a": placedIn("a"),
	"b": placedIn("b"),
}

func placedIn(zone string) *v1alpha1.ProxySpec {
	return &v1alpha1.ProxySpec{ProxyTemplateSpec: v1alpha1.ProxyTemplateSpec{Placement: &v1alpha1.Placement{Zone: zone}}}
}

func (p *simProxy) placement() *v1alpha1.ProxySpec { return placements[p.spec.zone] }

func proxyOf(uid types.UID) *v1alpha1.Proxy {
	return &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{UID: uid}}
}
