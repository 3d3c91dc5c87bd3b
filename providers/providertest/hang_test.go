package providertest

import (
	"context"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// hangs waits until the check is over.
func (l *liar) hangs() { <-l.over }

// TestHangingCallIsNamed: of a method that never returns, the failure says which one it is, and where.
func TestHangingCallIsNamed(t *testing.T) {
	for method, c := range map[string]struct {
		check string
		set   func(*stage)
	}{
		"Open":     {"ClassIsAccepted", func(s *stage) { s.opened = func(*v1alpha1.ProviderClass) { <-s.over } }},
		"Validate": {"ClassIsAccepted", func(s *stage) { s.validate = func(*v1alpha1.ProviderClass) field.ErrorList { <-s.over; return nil } }},
		"Check": {"ClassIsAccepted", func(s *stage) {
			s.lie = func(l *liar) { l.check = func(context.Context) error { l.hangs(); return nil } }
		}},
		"ValidateSpec": {"SpecIsChecked", func(s *stage) {
			s.lie = func(l *liar) { l.validSpec = func(*v1alpha1.ProxySpec) error { l.hangs(); return nil } }
		}},
		"Place": {"PlaceIsStable", func(s *stage) {
			s.lie = func(l *liar) {
				l.place = func(*v1alpha1.ProxySpec, types.UID, []string) (string, error) { l.hangs(); return "", nil }
			}
		}},
		"Create": {"ManyAtOnce", func(s *stage) {
			s.lie = func(l *liar) {
				l.create = func(context.Context, providers.CreateRequest) (providers.Receipt, error) {
					l.hangs()
					return providers.Receipt{}, nil
				}
			}
		}},
		"Get": {"LifeOfAnInstance", func(s *stage) {
			s.lie = func(l *liar) {
				l.get = func(context.Context, providers.Ref) (providers.Instance, error) {
					l.hangs()
					return providers.Instance{}, nil
				}
			}
		}},
		"Delete": {"DeleteWhileStarting", func(s *stage) {
			s.lie = func(l *liar) { l.delete = func(context.Context, providers.Ref) error { l.hangs(); return nil } }
		}},
		"List": {"ListIsComplete", func(s *stage) {
			s.lie = func(l *liar) {
				l.list = func(context.Context) ([]providers.Instance, error) { l.hangs(); return nil, nil }
			}
		}},
		"Events": {"EventsNameOwners", func(s *stage) {
			s.lie = func(l *liar) { l.events = func() <-chan ownerEvent { l.hangs(); return nil } }
		}},
		"Hosts": {"HostsAreReported", func(s *stage) {
			s.lie = func(l *liar) { l.hosts = func() []providers.HostState { l.hangs(); return nil } }
		}},
		"Close": {"ClosedProviderAnswers", func(s *stage) {
			s.lie = func(l *liar) { l.close = func() error { l.hangs(); return nil } }
		}},
	} {
		t.Run(method, func(t *testing.T) {
			s := newStage()
			c.set(s)
			i := slices.IndexFunc(checks(), func(known check) bool { return known.name == c.check })
			failures, _ := checks()[i].verdict(t, s)
			if len(failures) == 0 || !strings.HasPrefix(failures[0], t.Name()+": "+method+" has not returned for "+callLimit.String()) {
				t.Fatalf("got %q, want it to say that %s hangs, and where", failures, method)
			}
			t.Log(failures)
		})
	}
}
