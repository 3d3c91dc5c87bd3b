package ledger

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// Names are used again: a key whose request failed, an object that is created anew. Whatever is seen late of a namesake while
// a binding is being written, its slot stays taken until the answer, and what is seen has its own.
func TestL8_NamesakesDoNotTakeTheSlotOfWhatIsBeingWritten(t *testing.T) {
	key := types.NamespacedName{Namespace: ns, Name: "x"}
	elsewhere := func(uid, rv string, change ...func(*v1alpha1.ProxyLease)) *v1alpha1.ProxyLease {
		lease := granted(Reservation{Lease: key, Binding: record.Binding{ProxyName: "b", ProxyUID: ns + "-b", Epoch: 7, Seq: 7}}, rv)
		lease.UID = types.UID(uid)
		for _, c := range change {
			c(lease)
		}
		return lease
	}
	waiting := func(l *v1alpha1.ProxyLease) { l.Spec.Grant = nil }
	over := func(l *v1alpha1.ProxyLease) { l.Status.Phase = v1alpha1.LeaseExpired }
	for name, see := range map[string]func(l *Ledger){
		"it waited":           func(l *Ledger) { l.ObserveLease(elsewhere("old", "3", waiting)) },
		"it had a proxy":      func(l *Ledger) { l.ObserveLease(elsewhere("old", "3")) },
		"it had ended":        func(l *Ledger) { l.ObserveLease(elsewhere("old", "3", over)) },
		"it was deleted":      func(l *Ledger) { l.DeleteLease(elsewhere("old", "3")) },
		"it came and went":    func(l *Ledger) { l.ObserveLease(elsewhere("old", "3")); l.DeleteLease(elsewhere("old", "3")) },
		"it was given back":   func(l *Ledger) { l.Released(key, "old", fixture.Start) },
		"a write to it ended": func(l *Ledger) { l.Finish(elsewhere("old", "3", over)) },
	} {
		for _, uid := range []types.UID{"", ns + "-x"} {
			t.Run(name+" "+string(uid), func(t *testing.T) {
				l := newLedger(fixture.Proxy(ns, "a"), fixture.Proxy(ns, "b"))
				res := mustReserve(t, l, request("x", exclusive, pinned("a"), func(r *Request) { r.UID = uid }))
				see(l)
				if l.Load(ns+"-a") != 1 {
					t.Fatal("the slot is free while the write is under way")
				}
				if !l.Commit(granted(res, "9")) || l.Load(ns+"-a") != 1 || l.Load(ns+"-b") != 0 {
					t.Fatalf("after the answer: load %d, namesake %d", l.Load(ns+"-a"), l.Load(ns+"-b"))
				}
				if see(l); l.Load(ns+"-a") != 1 || l.Load(ns+"-b") != 0 {
					t.Fatalf("after late events: load %d, namesake %d", l.Load(ns+"-a"), l.Load(ns+"-b"))
				}
			})
		}
	}
	t.Run("another leader's lease is in the way", func(t *testing.T) {
		l := newLedger(fixture.Proxy(ns, "a"), fixture.Proxy(ns, "b"))
		res := mustReserve(t, l, request("x", pinned("a")))
		l.ObserveLease(elsewhere("other", "8"))
		if l.Load(ns+"-a") != 1 || l.Load(ns+"-b") != 1 {
			t.Fatal("one of the two is not counted")
		}
		l.Cancel(res)
		if got, ok := l.Lookup(key); !ok || got.UID != "other" || l.Load(ns+"-a") != 0 || l.Load(ns+"-b") != 1 {
			t.Fatalf("after the refusal: %+v", got)
		}
	})
}

// A creation that was carried out, seen and deleted may be carried out again: it was not answered, so it is repeated.
func TestL5_DeletedBeforeItsCreatorHadTheAnswer(t *testing.T) {
	start := func() (*Ledger, Reservation) {
		l := newLedger(fixture.Proxy(ns, "a"))
		res := mustReserve(t, l, request("x"))
		l.DeleteLease(granted(res, "5"))
		l.ObserveLease(granted(res, "4"))
		if l.Load(ns+"-a") != 1 {
			t.Fatal("the slot is free while a creation may be under way")
		}
		return l, res
	}
	l, res := start()
	if l.Commit(granted(res, "5")) || l.Load(ns+"-a") != 0 {
		t.Fatal("the answer to the creation brought the deleted lease back")
	}
	l, res = start()
	again := granted(res, "9")
	again.UID = "second"
	if !l.Commit(again) || l.Load(ns+"-a") != 1 {
		t.Fatal("the second creation has no slot")
	}
}
