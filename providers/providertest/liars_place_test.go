package providertest

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

var placeLiars = []liarCase{
	lies("PlaceIsStable", "takes turns", func(l *liar) {
		n := 0
		l.place = func(*v1alpha1.ProxySpec, types.UID, []string) (string, error) {
			n++
			return []string{"a", "b", "c"}[n%3], nil
		}
	}),
	lies("PlaceIsStable", "gives up", func(l *liar) {
		l.place = func(spec *v1alpha1.ProxySpec, owner types.UID, tried []string) (string, error) {
			if len(tried) >= 3 {
				return "", said(providers.Capacity, "")
			}
			return l.Provider.Place(spec, owner, tried)
		}
	}),
	lies("PlaceIsStable", "knows better than the specification", func(l *liar) {
		l.place = func(_ *v1alpha1.ProxySpec, owner types.UID, tried []string) (string, error) {
			return l.Provider.Place(&v1alpha1.ProxySpec{}, owner, tried)
		}
	}),
	lies("PlaceIsStable", "begins somewhere else in each process", func(l *liar) {
		l.opens++
		own := l.opens
		l.place = func(spec *v1alpha1.ProxySpec, owner types.UID, tried []string) (string, error) {
			return l.Provider.Place(spec, owner+types.UID(fmt.Sprint(own)), tried)
		}
	}),
	lies("PlaceSpreads", "goes by the specification", func(l *liar) {
		l.place = func(spec *v1alpha1.ProxySpec, _ types.UID, tried []string) (string, error) {
			return l.Provider.Place(spec, "", tried)
		}
	}),
	lies("PlaceSpreads", "knows two places that are full", func(l *liar) {
		l.place = func(spec *v1alpha1.ProxySpec, owner types.UID, tried []string) (string, error) {
			first, err := l.Provider.Place(spec, owner, nil)
			if slices.Contains(tried, first) {
				return l.Provider.Place(spec, owner, append([]string{"z"}, tried...))
			}
			return first, err
		}
	}),
	lies("LostPlacesAreAsked", "lists what the class names", func(l *liar) {
		honest := l.list
		l.list = func(ctx context.Context) ([]providers.Instance, error) {
			all, err := honest(ctx)
			if l.shrunk {
				all = slices.DeleteFunc(all, func(i providers.Instance) bool { return i.Zone == "c" })
			}
			return all, err
		}
	}),
	lies("LostPlacesAreAsked", "does not know a place any more", func(l *liar) {
		l.get = func(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
			if l.shrunk && ref.Zone == "c" {
				return providers.Instance{}, said(providers.Unavailable, "the class does not name the place")
			}
			return l.Provider.Get(ctx, ref)
		}
	}),
	lies("LostPlacesAreAsked", "takes a place that is not named for absence", func(l *liar) {
		l.get = func(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
			if l.shrunk && ref.Zone == "c" {
				return providers.Instance{}, said(providers.NotFound, "")
			}
			return l.Provider.Get(ctx, ref)
		}
	}),
	lies("LostPlacesAreAsked", "deletes where the class is only", func(l *liar) {
		l.delete = func(ctx context.Context, ref providers.Ref) error {
			if l.shrunk && ref.Zone == "c" {
				return said(providers.NotFound, "")
			}
			return l.Provider.Delete(ctx, ref)
		}
	}),
	lies("LostPlacesAreAsked", "goes on to place there", func(l *liar) {
		l.place = func(spec *v1alpha1.ProxySpec, owner types.UID, tried []string) (string, error) {
			if spec.Placement != nil && spec.Placement.Zone != "" {
				return spec.Placement.Zone, nil
			}
			return providers.Spread(owner, []string{"a", "b", "c"}, tried), nil
		}
	}),
	lies("PlaceLeavesOutTried", "insists", func(l *liar) {
		l.place = func(spec *v1alpha1.ProxySpec, owner types.UID, _ []string) (string, error) {
			return l.Provider.Place(spec, owner, nil)
		}
	}),
}
