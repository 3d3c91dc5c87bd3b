package ledger

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
)

func TestARequestThatNothingMatchesIsToldWhatWasLookedFor(t *testing.T) {
	l := New(nil)
	l.Open()
	l.ObserveProxy(fixture.Proxy("team", "a"))
	l.Start(1, "")
	long := strings.Repeat("v", 63)
	values := make([]string, 0, 200)
	for i := range 200 {
		values = append(values, long[:62-i/26]+string(rune('a'+i%26)))
	}
	many, err := labels.Parse("geo in (" + strings.Join(values, ",") + ")")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		selector  labels.Selector
		namespace string
		excluded  []string
		want      string
		unmatched bool
	}{
		"labels":                {labels.Set{"z": "1", "geo": "us"}.AsSelector(), "team", nil, "No Proxy in namespace team has geo=us,z=1", true},
		"a set":                 {mustParse(t, "geo in (us,jp),!slow"), "team", nil, "No Proxy in namespace team has geo in (jp,us),!slow", true},
		"empty value":           {labels.Set{"geo": ""}.AsSelector(), "team", nil, "No Proxy in namespace team has geo=", true},
		"a pool":                {labels.Set{v1alpha1.LabelPool: "eu"}.AsSelector(), "team", nil, "No Proxy in namespace team is of pool eu", true},
		"a pool and labels":     {labels.Set{v1alpha1.LabelPool: "eu", "a": "b"}.AsSelector(), "team", nil, "No Proxy in namespace team is of pool eu and has a=b", true},
		"anything":              {labels.Everything(), "other", nil, "There is no Proxy in namespace other", true},
		"nothing":               {labels.Nothing(), "team", nil, "The lease selects no Proxy", true},
		"excluded":              {labels.Everything(), "team", []string{"a"}, "There is no Proxy in namespace team, but for those that are excluded", false},
		"excluded, not matched": {labels.Set{"geo": "us"}.AsSelector(), "team", []string{"a"}, "No Proxy in namespace team has geo=us", true},
		"more than is shown":    {many, "team", nil, "No Proxy in namespace team has " + many.String()[:maxSelectorShown] + "…", true},
	} {
		why := l.Explain(Request{
			Lease: types.NamespacedName{Namespace: c.namespace, Name: "l"}, Selector: c.selector, Mode: v1alpha1.LeaseShared, Excluded: c.excluded,
		}, fixture.Start)
		if why.Reason != v1alpha1.ReasonNoProxy || why.Message != c.want || why.Unmatched != c.unmatched {
			t.Errorf("%s: %+v, want %q", name, *why, c.want)
		}
	}
}

func mustParse(t *testing.T, text string) labels.Selector {
	t.Helper()
	selector, err := labels.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return selector
}
