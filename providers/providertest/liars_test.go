package providertest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

type ownerEvent = event.TypedGenericEvent[providers.Owner]

// TestHonest: a provider that keeps the contract passes, and nothing is left out.
func TestHonest(t *testing.T) {
	for _, c := range checks() {
		t.Run(c.name, func(t *testing.T) {
			if failures, skipped := c.verdict(t, newStage()); len(failures) > 0 || skipped != "" {
				t.Errorf("failed: %q, skipped: %q", failures, skipped)
			}
		})
	}
}

// TestLiars: a provider that breaks one rule is caught by the check of that rule, and each check catches somebody.
func TestLiars(t *testing.T) {
	all := slices.Concat(classLiars, placeLiars, lifeLiars, eventLiars, createLiars, deleteLiars, listLiars, failureLiars)
	for _, c := range checks() {
		if !slices.ContainsFunc(all, func(l liarCase) bool { return l.by == c.name }) {
			t.Errorf("nobody shows that %s can fail", c.name)
		}
	}
	for _, l := range all {
		t.Run(l.by+"/"+l.who, func(t *testing.T) {
			i := slices.IndexFunc(checks(), func(c check) bool { return c.name == l.by })
			if i < 0 {
				t.Fatalf("there is no check %s", l.by)
			}
			s := newStage()
			l.set(s)
			failures, skipped := checks()[i].verdict(t, s)
			if len(failures) == 0 || skipped != "" {
				t.Fatalf("not caught; skipped: %q", skipped)
			}
			t.Log(failures[0])
		})
	}
}

// liarCase is one broken rule: who breaks it, the check that must notice, and how it is broken.
type liarCase struct {
	who, by string
	set     func(*stage)
}

// lies makes a case of what is put around each Provider.
func lies(by, who string, lie func(l *liar)) liarCase {
	return liarCase{who, by, func(s *stage) { s.lie = lie }}
}

// alters makes a case of a Provider whose instances are not as they are, in Get and List.
func alters(by, who string, alter func(*liar, *providers.Instance)) liarCase {
	return lies(by, who, func(l *liar) {
		l.get = func(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
			i, err := l.Provider.Get(ctx, ref)
			if err == nil {
				alter(l, &i)
			}
			return i, err
		}
		honest := l.list
		l.list = func(ctx context.Context) ([]providers.Instance, error) {
			all, err := honest(ctx)
			for n := range all {
				alter(l, &all[n])
			}
			return all, err
		}
	})
}

// answers makes a case of a Provider that turns errors of one reason into something else, in all methods.
func answers(by, who string, reason providers.Reason, instead error) liarCase {
	turn := func(err error) error {
		if err != nil && providers.ReasonOf(err) == reason {
			return instead
		}
		return err
	}
	return lies(by, who, func(l *liar) {
		l.check = func(ctx context.Context) error { return turn(l.Provider.Check(ctx)) }
		l.get = func(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
			i, err := l.Provider.Get(ctx, ref)
			return i, turn(err)
		}
		l.create = func(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
			receipt, err := l.Provider.Create(ctx, req)
			return receipt, turn(err)
		}
		l.delete = func(ctx context.Context, ref providers.Ref) error { return turn(l.Provider.Delete(ctx, ref)) }
		honest := l.list
		l.list = func(ctx context.Context) ([]providers.Instance, error) {
			all, err := honest(ctx)
			return all, turn(err)
		}
	})
}

func said(reason providers.Reason, message string) error {
	return providers.NewError(reason, "", message, nil)
}

var classLiars = []liarCase{
	{"refuses a valid class", "ClassIsAccepted", func(s *stage) {
		s.validate = func(*v1alpha1.ProviderClass) field.ErrorList {
			return field.ErrorList{field.Required(field.NewPath("spec"), "")}
		}
	}},
	{"changes the class", "ClassIsAccepted", func(s *stage) {
		s.opened = func(class *v1alpha1.ProviderClass) { class.Spec.Kubernetes.Image = "default" }
	}},
	lies("ClassIsAccepted", "never answers a check", func(l *liar) {
		l.check = func(context.Context) error { return said(providers.Unavailable, "") }
	}),
	{"accepts any class", "InvalidClassNamesItsField", func(s *stage) {
		s.validate = func(*v1alpha1.ProviderClass) field.ErrorList { return nil }
	}},
	{"names no field", "InvalidClassNamesItsField", func(s *stage) {
		s.validate = func(*v1alpha1.ProviderClass) field.ErrorList {
			return field.ErrorList{field.Required(field.NewPath("spec"), "")}
		}
	}},
	{"says it differently each time", "InvalidClassNamesItsField", func(s *stage) {
		n := 0
		s.validate = func(*v1alpha1.ProviderClass) field.ErrorList {
			n++
			return field.ErrorList{field.Invalid(field.NewPath("spec", "kubernetes", "image"), n, "")}
		}
	}},
	{"settles before the window is over", "TimingIsSound", func(s *stage) {
		s.times = providers.Timing{Window: time.Minute, Settle: 30 * time.Second}
	}},
	{"has no window to speak of", "TimingIsSound", func(s *stage) { s.times = providers.Timing{Window: time.Millisecond} }},
	{"allows no call", "TimingIsSound", func(s *stage) { s.rate = providers.Limits{Burst: -1} }},
	{"dials to open", "LocalMethodsMakeNoCalls", func(s *stage) {
		s.lie = func(l *liar) { _ = l.Provider.Check(context.Background()) }
	}},
	lies("LocalMethodsMakeNoCalls", "asks to validate", func(l *liar) {
		l.validSpec = func(*v1alpha1.ProxySpec) error { return l.Provider.Check(context.Background()) }
	}),
	lies("SpecIsChecked", "accepts any specification", func(l *liar) { l.validSpec = func(*v1alpha1.ProxySpec) error { return nil } }),
	lies("SpecIsChecked", "names another field", func(l *liar) {
		l.validSpec = func(spec *v1alpha1.ProxySpec) error {
			if l.Provider.ValidateSpec(spec) != nil {
				return providers.InvalidField("spec", "is wrong")
			}
			return nil
		}
	}),
	lies("SpecIsChecked", "fills defaults in", func(l *liar) {
		l.validSpec = func(spec *v1alpha1.ProxySpec) error {
			err := l.Provider.ValidateSpec(spec)
			spec.Port = 3128
			return err
		}
	}),
	lies("SpecIsChecked", "needs a placement to look at", func(l *liar) {
		l.validSpec = func(spec *v1alpha1.ProxySpec) error {
			_ = spec.Placement.Zone
			return l.Provider.ValidateSpec(spec)
		}
	}),
	{"ignores user data", "SpecIsChecked", func(s *stage) { s.noUserData = true }},
	lies("SpecIsChecked", "wants user data inline", func(l *liar) {
		l.validSpec = func(spec *v1alpha1.ProxySpec) error {
			if spec.CloudInit != nil && spec.CloudInit.Inline == "" {
				return providers.InvalidField("spec.cloudInit.inline", "is required")
			}
			return l.Provider.ValidateSpec(spec)
		}
	}),
}

var lifeLiars = []liarCase{
	answers("UnknownIsNotFound", "is not sure", providers.NotFound, said(providers.Unavailable, "")),
	answers("UnknownIsNotFound", "has errors of its own", providers.NotFound, fmt.Errorf("404")),
	answers("UnknownIsNotFound", "has reasons of its own", providers.NotFound, said("Gone", "")),
	lies("UnknownIsNotFound", "finds anything", func(l *liar) {
		l.get = func(_ context.Context, ref providers.Ref) (providers.Instance, error) {
			return providers.Instance{Ref: ref, State: providers.StatePending}, nil
		}
	}),
	alters("LifeOfAnInstance", "forgets the owner", func(_ *liar, i *providers.Instance) { i.Owner.UID = "" }),
	alters("LifeOfAnInstance", "forgets the hash", func(_ *liar, i *providers.Instance) { i.Hash = "" }),
	alters("LifeOfAnInstance", "forgets the zone", func(_ *liar, i *providers.Instance) { i.Zone = "" }),
	alters("LifeOfAnInstance", "does not know its age", func(_ *liar, i *providers.Instance) { i.CreatedAt = time.Time{} }),
	alters("LifeOfAnInstance", "is always new", func(l *liar, i *providers.Instance) { i.CreatedAt = l.clock.Now() }),
	alters("LifeOfAnInstance", "has an id once it runs", func(_ *liar, i *providers.Instance) {
		if i.State != providers.StateRunning {
			i.ID = ""
		}
	}),
	alters("LifeOfAnInstance", "has the name for an id", func(_ *liar, i *providers.Instance) { i.ID = i.Name }),
	lies("LifeOfAnInstance", "has a zone of its own choice", func(l *liar) {
		l.create = func(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
			req.Zone = "a"
			return l.Provider.Create(ctx, req)
		}
	}),
	alters("LifeOfAnInstance", "has an id that needs the class", func(_ *liar, i *providers.Instance) { i.ProviderID = i.Name }),
	alters("LifeOfAnInstance", "has states of its own", func(_ *liar, i *providers.Instance) { i.State = "Booting" }),
	alters("LifeOfAnInstance", "has an address with a port", func(_ *liar, i *providers.Instance) {
		for n := range i.Addresses {
			i.Addresses[n] += ":3128"
		}
	}),
	alters("LifeOfAnInstance", "talks too much", func(_ *liar, i *providers.Instance) { i.Message = strings.Repeat("x", maxMessage+1) }),
	{"settles before Get sees it", "LifeOfAnInstance", func(s *stage) {
		s.times = providers.Timing{Window: 10 * time.Second, Settle: 10 * time.Second}
	}},
	lies("LifeOfAnInstance", "changes the request", func(l *liar) {
		l.create = func(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
			req.Labels["class"] = l.class
			return l.Provider.Create(ctx, req)
		}
	}),
	lies("NamesOfFullLength", "cuts names", func(l *liar) {
		cut := func(name string) string { return name[:min(len(name), 40)] }
		l.create = func(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
			req.Name = cut(req.Name)
			return l.Provider.Create(ctx, req)
		}
		l.get = func(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
			ref.Name = cut(ref.Name)
			return l.Provider.Get(ctx, ref)
		}
	}),
	alters("NamesOfFullLength", "has labels without dots", func(_ *liar, i *providers.Instance) {
		i.Owner.Name = strings.ReplaceAll(i.Owner.Name, ".", "-")
	}),
	alters("MessagesAreStable", "counts", func(l *liar, i *providers.Instance) {
		i.Message = fmt.Sprintf("%s for %v", i.State, l.clock.Now().Sub(i.CreatedAt))
	}),
	alters("MessagesAreStable", "counts at the start", func(l *liar, i *providers.Instance) {
		if i.State == providers.StatePending {
			i.Message = fmt.Sprintf("waited %v", l.clock.Now().Sub(i.CreatedAt))
		}
	}),
	alters("MessagesAreStable", "names itself", func(_ *liar, i *providers.Instance) { i.Message = i.ID + " is well" }),
	alters("ManyAtOnce", "has one id for all", func(_ *liar, i *providers.Instance) { i.ID = "1" }),
	alters("ManyAtOnce", "mixes owners up", func(l *liar, i *providers.Instance) {
		i.Owner = l.cloud.Instances()[0].Owner
	}),
	lies("AnotherProviderSeesAll", "keeps books in memory", func(l *liar) {
		var mu sync.Mutex
		mine := map[string]bool{}
		l.create = func(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
			mu.Lock()
			mine[req.Name] = true
			mu.Unlock()
			return l.Provider.Create(ctx, req)
		}
		l.get = func(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
			mu.Lock()
			defer mu.Unlock()
			if !mine[ref.Name] {
				return providers.Instance{}, said(providers.NotFound, "")
			}
			return l.Provider.Get(ctx, ref)
		}
	}),
	lies("AnotherProviderSeesAll", "marks by the UID of the class", func(l *liar) {
		honest := l.list
		l.list = func(ctx context.Context) ([]providers.Instance, error) {
			if l.uid != "uid-a" {
				return nil, nil
			}
			return honest(ctx)
		}
	}),
	lies("HostsAreReported", "asks the hosts", func(l *liar) {
		l.hosts = func() []providers.HostState {
			return []providers.HostState{{Name: "a", Checked: true, Err: l.Provider.Check(context.Background())}}
		}
	}),
	lies("HostsAreReported", "has hosts without names", func(l *liar) {
		l.hosts = func() []providers.HostState { return []providers.HostState{{Checked: true}} }
	}),
	lies("HostsAreReported", "has errors of its own", func(l *liar) {
		l.hosts = func() []providers.HostState {
			return []providers.HostState{{Name: "a", Checked: true, Err: fmt.Errorf("dial tcp")}}
		}
	}),
}
