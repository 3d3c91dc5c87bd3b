package instance

import (
	"errors"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// simSpec is as much of a specification as an instance is made from.
type simSpec struct {
	content int
	zone    string
}

// hash by one way of computing it.
func (s simSpec) hash(version int) string {
	return "v" + strconv.Itoa(version) + "-" + strconv.Itoa(s.content) + s.zone
}

// simProxy is one version of the stored object.
type simProxy struct {
	uid                       types.UID
	version                   int
	spec                      simSpec
	onDelete                  bool
	deleting, finalizer, gone bool
	record                    v1alpha1.Instance
	// first is the first intent, which is no part of the status.
	first v1alpha1.Instance
}

// stored mirrors the function of that name.
func (p *simProxy) stored() v1alpha1.Instance {
	if recorded(p.record) {
		return p.record
	}
	return p.first
}

func (p *simProxy) name() string { return "n-" + string(p.uid) }

var (
	errConflict = errors.New("another resourceVersion")
	errGone     = errors.New("no such object")
)

const (
	// staleDepth is how many versions a cache may lag behind.
	staleDepth = 5
	foreignUID = types.UID("foreign")
)

// simAPI is the API server's part: one name, whose object may be made anew after it is gone.
type simAPI struct {
	*fate
	// versions are the last ones, the current one last.
	versions []simProxy
	version  int
	// onGone judges what is left when an object goes.
	onGone func(simProxy)
}

func (a *simAPI) current() simProxy { return a.versions[len(a.versions)-1] }

// read is what a cache shows: the current version or one of the last.
func (a *simAPI) read() simProxy {
	back := len(a.versions) - 1
	if a.chance(4) {
		back = max(0, back-a.random.IntN(staleDepth))
	}
	if back < len(a.versions)-1 {
		a.count(staleReads)
	}
	return a.versions[back]
}

func (a *simAPI) push(p simProxy) {
	// resourceVersions count on over objects of the same name.
	a.version++
	p.version = a.version
	if len(a.versions) == staleDepth {
		a.versions = slices.Delete(a.versions, 0, 1)
	}
	a.versions = append(a.versions, p)
}

// touch is a write of somebody else: a user, another manager.
func (a *simAPI) touch(change func(*simProxy)) {
	p := a.current()
	change(&p)
	if p.deleting && !p.finalizer && !p.gone {
		p.gone = true
		a.tell("api: %s is gone", p.uid)
	}
	went := p.gone && !a.current().gone
	a.push(p)
	if went {
		a.onGone(p)
	}
}

// write changes the object that seen is a version of. Locked, it fails when there is a newer one. Not locked, it meets
// whatever has the name now: the API server ignores metadata.uid in an apply to a status.
func (a *simAPI) write(seen *simProxy, locked bool, change func(*simProxy)) error {
	if locked && a.chance(40) {
		a.touch(func(*simProxy) {})
	}
	now := a.current()
	switch {
	case now.gone:
		return errGone
	case locked && now.version != seen.version:
		a.count(conflicts)
		return errConflict
	}
	a.touch(func(p *simProxy) {
		change(p)
		p.record, p.first = asStored(p.record), asStored(p.first)
	})
	next := a.current()
	seen.version, seen.record, seen.first, seen.finalizer = next.version, next.record, next.first, next.finalizer
	return nil
}

// asStored: times are stored in whole seconds.
func asStored(r v1alpha1.Instance) v1alpha1.Instance {
	for _, t := range []**metav1.Time{&r.IntentTime, &r.SubmittedTime, &r.StartedTime, &r.MissingTime} {
		if *t != nil && (*t).Nanosecond() != 0 {
			*t = stamp((*t).Truncate(time.Second))
		}
	}
	return r
}

// sameRecord compares as much as the simulation changes.
func sameRecord(a, b v1alpha1.Instance) bool {
	return a.ID == b.ID && a.State == b.State && a.Zone == b.Zone && a.Hash == b.Hash && a.DesiredHash == b.DesiredHash && a.Attempt == b.Attempt &&
		a.ClassGeneration == b.ClassGeneration && len(a.Addresses) == len(b.Addresses) && a.IntentTime.Equal(b.IntentTime) &&
		a.SubmittedTime.Equal(b.SubmittedTime) && a.StartedTime.Equal(b.StartedTime) && a.MissingTime.Equal(b.MissingTime)
}

// reasonOutcome is for the trace.
func reasonOutcome(err error) string {
	if err == nil {
		return "done"
	}
	return string(providers.ReasonOf(err))
}
