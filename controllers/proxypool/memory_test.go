package proxypool

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// at is a member as it was at a version of the API server.
func at(name, version string, options ...option) *v1alpha1.Proxy {
	px := memberOf(newPool(1), name, options...)
	px.ResourceVersion = version
	return px
}

// versions are the members of a view with their versions.
func versions(view []*v1alpha1.Proxy) []string {
	var out []string
	for _, px := range view {
		out = append(out, px.Name+"@"+px.ResourceVersion)
	}
	slices.Sort(out)
	return out
}

// A cache that lags shows, after the API server was asked, what was already over then: members that are gone since, and
// members as they were before.
func TestP10_WhatIsOlderThanTheLastLookIsNotBelieved(t *testing.T) {
	mem := (&memories{}).of(newPool(1))
	mem.verify(nil, liveView{members: []*v1alpha1.Proxy{at("a", "50", deleting), at("b", "30")}, version: "60"}, start)
	for i, step := range []struct {
		cached []*v1alpha1.Proxy
		want   []string
	}{
		{nil, []string{"a@50", "b@30"}},
		{[]*v1alpha1.Proxy{at("ghost", "20"), at("a", "10")}, []string{"a@50", "b@30"}},
		{[]*v1alpha1.Proxy{at("ghost", "20"), at("ghost-2", "60"), at("a", "10"), at("b", "30")}, []string{"a@50", "b@30"}},
		{[]*v1alpha1.Proxy{at("a", "50", deleting), at("b", "30"), at("new", "70")}, []string{"a@50", "b@30", "new@70"}},
		// It has caught up and knows better from now on.
		{[]*v1alpha1.Proxy{at("b", "80"), at("new", "70")}, []string{"b@80", "new@70"}},
	} {
		if got := versions(mem.view(step.cached, start)); !slices.Equal(got, step.want) {
			t.Errorf("step %d: the view is %v, want %v", i, got, step.want)
		}
	}
}

// A member that is changed before the cache shows it at all is seen with its change.
func TestPatchesOfNewMembersAreSeen(t *testing.T) {
	mem := (&memories{}).of(newPool(1))
	mem.noteCreated(at("a", "5"), start)
	mem.notePatched("5", at("a", "6"))
	for _, step := range []struct {
		cached []*v1alpha1.Proxy
		want   string
	}{{nil, "a@6"}, {[]*v1alpha1.Proxy{at("a", "5")}, "a@6"}, {[]*v1alpha1.Proxy{at("a", "7")}, "a@7"}} {
		if got := versions(mem.view(step.cached, start)); !slices.Equal(got, []string{step.want}) {
			t.Errorf("the view is %v, want %s", got, step.want)
		}
	}
}

// A member that was made and deleted before the cache showed it does not come back when the cache does.
func TestP10_DeletedMembersStayDeletedUnderALongLag(t *testing.T) {
	pool := newPool(2)
	mem := (&memories{}).of(pool)
	active := func(cached ...*v1alpha1.Proxy) int {
		view := mem.view(cached, start)
		return int(MakePlan(Input{Pool: pool, Members: view, Deleted: mem.deleted, Now: start}).Status.Replicas)
	}
	mem.noteCreated(at("a", "5"), start)
	mem.noteCreated(at("b", "6"), start)
	mem.noteDeleted(types.UID("uid-a"), start)
	if n := active(); n != 1 {
		t.Errorf("%d active, want 1", n)
	}
	mem.verify(nil, liveView{members: []*v1alpha1.Proxy{at("b", "6")}, version: "9"}, start.Add(time.Minute))
	if n := active(); n != 1 {
		t.Errorf("after a look: %d active, want 1", n)
	}
	if n := active(at("a", "5"), at("b", "6")); n != 1 {
		t.Errorf("when the cache shows what was made: %d active, want 1", n)
	}
	if n := active(at("b", "6"), at("c", "10")); n != 2 {
		t.Errorf("at last: %d active, want 2", n)
	}
}
