package proxypool

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newPool(replicas int32) *v1alpha1.ProxyPool {
	return &v1alpha1.ProxyPool{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "crawl", Name: "eu", UID: "pool-uid", Generation: 1, CreationTimestamp: metav1.NewTime(start.Add(-time.Hour)),
		},
		Spec: v1alpha1.ProxyPoolSpec{
			Replicas: &replicas,
			Template: v1alpha1.ProxyTemplate{
				Metadata: v1alpha1.TemplateMetadata{Labels: map[string]string{"geo": "eu"}},
				Spec:     v1alpha1.ProxyTemplateSpec{Provider: "kubernetes", Protocol: "HTTP", Port: 3128},
			},
		},
	}
}

// option changes a member for a test.
type option func(*v1alpha1.Proxy)

func condition(name string, status metav1.ConditionStatus) option {
	return func(px *v1alpha1.Proxy) {
		meta.SetStatusCondition(&px.Status.Conditions, metav1.Condition{
			Type: name, Status: status, Reason: "Test", LastTransitionTime: metav1.NewTime(start.Add(-time.Minute)),
		})
	}
}

func ready(px *v1alpha1.Proxy) {
	condition(v1alpha1.ConditionProvisioned, metav1.ConditionTrue)(px)
	condition(v1alpha1.ConditionReady, metav1.ConditionTrue)(px)
	px.Status.Instance = &v1alpha1.Instance{ID: "i-" + string(px.UID)}
}

func unhealthy(px *v1alpha1.Proxy) {
	ready(px)
	condition(v1alpha1.ConditionReady, metav1.ConditionFalse)(px)
}

func failed(px *v1alpha1.Proxy) { px.Status.Phase = v1alpha1.PhaseFailed }

func deleting(px *v1alpha1.Proxy) { px.DeletionTimestamp = new(metav1.NewTime(start)) }

func old(px *v1alpha1.Proxy) { px.Spec.Placement = &v1alpha1.Placement{Zone: "old"} }

func cost(n int) option {
	return func(px *v1alpha1.Proxy) {
		if px.Annotations == nil {
			px.Annotations = map[string]string{}
		}
		px.Annotations[v1alpha1.AnnotationDeletionCost] = strconv.Itoa(n)
	}
}

func created(ago time.Duration) option {
	return func(px *v1alpha1.Proxy) { px.CreationTimestamp = metav1.NewTime(start.Add(-ago)) }
}

func cooling(n int) option {
	return func(px *v1alpha1.Proxy) {
		for i := range n {
			px.Status.Cooldowns = append(px.Status.Cooldowns, v1alpha1.Cooldown{
				Target: fmt.Sprintf("t%d.example", i), UntilTime: new(metav1.NewTime(start.Add(time.Minute))),
			})
		}
	}
}

// memberOf makes a member as the pool would have made it, an hour ago.
func memberOf(pool *v1alpha1.ProxyPool, name string, options ...option) *v1alpha1.Proxy {
	px := newProxy(pool, name, RevisionOf(&pool.Spec.Template.Spec))
	px.UID, px.CreationTimestamp = types.UID("uid-"+name), metav1.NewTime(start.Add(-time.Hour))
	for _, o := range options {
		o(px)
	}
	px.Labels[v1alpha1.LabelRevision] = RevisionOf(&px.Spec.ProxyTemplateSpec)
	return px
}

func members(pool *v1alpha1.ProxyPool, n int, options ...option) []*v1alpha1.Proxy {
	revision := RevisionOf(&pool.Spec.Template.Spec)
	var out []*v1alpha1.Proxy
	for i := range n {
		out = append(out, memberOf(pool, memberName(pool.Name, revision, i), options...))
	}
	return out
}

func deletedNames(plan Plan) []string {
	var out []string
	for _, d := range plan.Deletes {
		out = append(out, d.Proxy.Name)
	}
	slices.Sort(out)
	return out
}

func TestA37_PlanScales(t *testing.T) {
	for _, tt := range []struct {
		name             string
		replicas         int32
		have, leaving    int
		creates, deletes int
	}{
		{name: "from nothing", replicas: 20, creates: 20},
		{name: "up", replicas: 5, have: 3, creates: 2},
		{name: "down", replicas: 3, have: 20, deletes: 17},
		{name: "to zero", replicas: 0, have: 4, deletes: 4},
		{name: "zero stays", replicas: 0},
		{name: "steady", replicas: 3, have: 3},
		{name: "leaving ones are not replicas", replicas: 4, have: 2, leaving: 1, creates: 2},
		// 20 + maxSurge 5 + 5 for leaving ones.
		{name: "leaving ones count towards what may exist", replicas: 20, have: 3, leaving: 17, creates: 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pool := newPool(tt.replicas)
			list := members(pool, tt.have+tt.leaving, ready)
			for _, px := range list[tt.have:] {
				deleting(px)
			}
			plan := MakePlan(Input{Pool: pool, Members: list, Now: start})
			if len(plan.Creates) != tt.creates || len(plan.Deletes) != tt.deletes {
				t.Errorf("plan makes %d and deletes %d, want %d and %d", len(plan.Creates), len(plan.Deletes), tt.creates, tt.deletes)
			}
			for _, name := range plan.Creates {
				if slices.ContainsFunc(list, func(px *v1alpha1.Proxy) bool { return px.Name == name }) {
					t.Errorf("plan makes %s, which exists", name)
				}
			}
			if plan.Status.Selector != "crawl.example.com/pool=eu" {
				t.Errorf("selector %q", plan.Status.Selector)
			}
			if want := int32(tt.have); plan.Status.Replicas != want {
				t.Errorf("replicas %d, want %d", plan.Status.Replicas, want)
			}
		})
	}
}

func TestA40_PoolBeingDeletedPlansNothing(t *testing.T) {
	pool := newPool(20)
	pool.DeletionTimestamp = new(metav1.NewTime(start))
	plan := MakePlan(Input{Pool: pool, Members: members(pool, 2, ready), Now: start})
	if plan.acts() {
		t.Errorf("a pool that is being deleted plans %d creates and %d deletes", len(plan.Creates), len(plan.Deletes))
	}
	if c := meta.FindStatusCondition(plan.Status.Conditions, v1alpha1.ConditionReady); c == nil || c.Reason != v1alpha1.ReasonTerminating {
		t.Errorf("Ready is %+v, want Terminating", c)
	}
}

// Names stay the same from plan to plan, fill the lowest slots, and step over what is taken.
func TestPlanNames(t *testing.T) {
	pool := newPool(4)
	revision := RevisionOf(&pool.Spec.Template.Spec)
	name := func(i int) string { return memberName("eu", revision, i) }
	list := []*v1alpha1.Proxy{memberOf(pool, name(1), ready), memberOf(pool, name(2), deleting)}
	plan := MakePlan(Input{Pool: pool, Members: list, Blocked: map[string]bool{name(3): true}, Now: start})
	if want := []string{name(0), name(4), name(5)}; !slices.Equal(plan.Creates, want) {
		t.Errorf("creates %v, want %v", plan.Creates, want)
	}
	if longest := memberName(strings.Repeat("x", 40), revision, 99999); len(longest) > 63 {
		t.Errorf("the longest name has %d characters", len(longest))
	}
}

func TestA41_P2_ScaleDownOrder(t *testing.T) {
	pool := newPool(0)
	leases := map[types.UID]int{"uid-leased": 1, "uid-leased-twice": 2, "uid-leased-unhealthy": 1}
	// From the first to go to the last.
	list := []*v1alpha1.Proxy{
		memberOf(pool, "cheap", ready, cost(-1)),
		memberOf(pool, "failed", failed),
		memberOf(pool, "creating"),
		memberOf(pool, "unhealthy", unhealthy),
		memberOf(pool, "old", ready, old),
		memberOf(pool, "cooled-2", ready, cooling(2)),
		memberOf(pool, "cooled-1", ready, cooling(1)),
		memberOf(pool, "newest", ready, created(time.Minute)),
		memberOf(pool, "tie-b", ready),
		memberOf(pool, "tie-a", ready),
		memberOf(pool, "oldest", ready, created(2*time.Hour)),
		memberOf(pool, "dear", unhealthy, cost(10)),
		memberOf(pool, "leased-unhealthy", unhealthy),
		memberOf(pool, "leased", ready),
		memberOf(pool, "leased-twice", ready),
	}
	leasesOf := func(uid types.UID) int { return leases[uid] }
	for keep := range len(list) {
		pool.Spec.Replicas = new(int32(keep))
		// "old" makes it a rollout, whose surge would keep some; scaling alone is what is tested.
		pool.Spec.Strategy = &v1alpha1.PoolStrategy{MaxSurge: new(intstr.FromInt32(0)), MaxUnavailable: new(intstr.FromInt32(1))}
		shuffled := slices.Clone(list)
		slices.Reverse(shuffled)
		var want []string
		for _, px := range list[:len(list)-keep] {
			want = append(want, px.Name)
		}
		slices.Sort(want)
		plan := MakePlan(Input{Pool: pool, Members: shuffled, Leases: leasesOf, Now: start})
		if got := deletedNames(plan); !slices.Equal(got, want) {
			t.Errorf("keeping %d: deletes %v, want %v", keep, got, want)
		}
	}
}

// A member that is going already is not picked again, and no other in its place.
func TestP2_LeavingMembersAreNotPickedTwice(t *testing.T) {
	pool := newPool(3)
	list := members(pool, 5, ready)
	deleting(list[0])
	plan := MakePlan(Input{Pool: pool, Members: list, Deleted: map[types.UID]bool{list[1].UID: true}, Now: start})
	if len(plan.Deletes) != 0 {
		t.Errorf("deletes %v, want none", deletedNames(plan))
	}
}

func TestFenceposts(t *testing.T) {
	strategy := func(surge, unavailable string) *v1alpha1.PoolStrategy {
		s, u := intstr.Parse(surge), intstr.Parse(unavailable)
		return &v1alpha1.PoolStrategy{MaxSurge: &s, MaxUnavailable: &u}
	}
	for _, tt := range []struct {
		strategy           *v1alpha1.PoolStrategy
		replicas           int
		surge, unavailable int
	}{
		{nil, 10, 3, 2},
		{nil, 1, 1, 0},
		{nil, 0, 0, 1},
		{strategy("0", "25%"), 2, 0, 1},
		{strategy("0%", "0"), 2, 0, 1},
		{strategy("100%", "100%"), 7, 7, 7},
		{strategy("0", "50"), 5, 0, 5},
	} {
		surge, unavailable := fenceposts(tt.strategy, tt.replicas)
		if surge != tt.surge || unavailable != tt.unavailable {
			t.Errorf("%d replicas: surge %d and unavailable %d, want %d and %d", tt.replicas, surge, unavailable, tt.surge, tt.unavailable)
		}
	}
}

func TestPropagation(t *testing.T) {
	pool := newPool(1)
	pool.Spec.Template.Metadata = v1alpha1.TemplateMetadata{
		Labels: map[string]string{"geo": "eu", "tier": "a"}, Annotations: map[string]string{"note": "x"},
	}
	px := memberOf(pool, "m", ready)
	px.Labels["mine"] = "kept"
	px.Annotations["own"] = "kept"

	plan := MakePlan(Input{Pool: pool, Members: []*v1alpha1.Proxy{px}, Now: start})
	if len(plan.Updates) != 0 {
		t.Fatalf("an unchanged template causes %+v", plan.Updates[0].Ops)
	}

	pool.Spec.Template.Metadata.Labels = map[string]string{"geo": "us"}
	pool.Spec.Template.Metadata.Annotations = nil
	pool.Spec.Template.Spec.Capacity = new(int32(3))
	plan = MakePlan(Input{Pool: pool, Members: []*v1alpha1.Proxy{px}, Now: start})
	if len(plan.Updates) != 1 || len(plan.Creates)+len(plan.Deletes) != 0 {
		t.Fatalf("labels and capacity cause %d updates, %d creates and %d deletes", len(plan.Updates), len(plan.Creates), len(plan.Deletes))
	}
	ops := map[string]any{}
	for _, op := range plan.Updates[0].Ops {
		ops[op.Path] = op.Value
	}
	labels, _ := ops["/metadata/labels"].(map[string]string)
	if labels["geo"] != "us" || labels["mine"] != "kept" || labels["tier"] != "" || labels[v1alpha1.LabelPool] != "eu" {
		t.Errorf("labels become %v", labels)
	}
	annotations, _ := ops["/metadata/annotations"].(map[string]string)
	if annotations["own"] != "kept" || annotations["note"] != "" {
		t.Errorf("annotations become %v", annotations)
	}
	if got, _ := ops["/spec/capacity"].(*int32); got == nil || *got != 3 {
		t.Errorf("capacity becomes %v", ops["/spec/capacity"])
	}
}

// The revision of a template must never move, or an upgrade of the operator replaces every fleet.
func TestP9_RevisionIsStable(t *testing.T) {
	plain := v1alpha1.ProxyTemplateSpec{Provider: "kubernetes"}
	full := v1alpha1.ProxyTemplateSpec{
		Provider: "gcp-eu", Port: 8080, Protocol: "HTTP",
		Placement:            &v1alpha1.Placement{Zone: "europe-west1-b", MachineType: "e2-micro", Image: "debian-12"},
		CloudInit:            &v1alpha1.CloudInit{SecretKeyRef: &v1alpha1.SecretKeyRef{Name: "init", Key: "user-data"}},
		CredentialsSecretRef: &v1alpha1.LocalSecretRef{Name: "login"},
	}
	for _, tt := range []struct {
		name string
		spec v1alpha1.ProxyTemplateSpec
		want string
	}{
		{"plain", plain, "jw5c7ql7"},
		{"full", full, "xn73yrkw"},
	} {
		if got := RevisionOf(&tt.spec); got != tt.want {
			t.Errorf("revision of the %s template is %s, and must stay %s", tt.name, got, tt.want)
		}
	}
	same := plain
	same.Port, same.Protocol, same.Capacity, same.EgressGroup = 3128, "HTTP", new(int32(7)), "g"
	same.Deletion = &v1alpha1.ProxyDeletion{DrainTimeoutSeconds: new(int32(60))}
	if RevisionOf(&same) != RevisionOf(&plain) {
		t.Error("defaults, capacity, group and drain timeout move the revision")
	}
	for name, change := range map[string]func(*v1alpha1.ProxyTemplateSpec){
		"port":        func(s *v1alpha1.ProxyTemplateSpec) { s.Port = 3129 },
		"zone":        func(s *v1alpha1.ProxyTemplateSpec) { s.Placement = &v1alpha1.Placement{Zone: "b"} },
		"cloudInit":   func(s *v1alpha1.ProxyTemplateSpec) { s.CloudInit = &v1alpha1.CloudInit{Inline: "#!/bin/sh"} },
		"provider":    func(s *v1alpha1.ProxyTemplateSpec) { s.Provider = "other" },
		"credentials": func(s *v1alpha1.ProxyTemplateSpec) { s.CredentialsSecretRef = &v1alpha1.LocalSecretRef{Name: "c"} },
	} {
		changed := plain
		change(&changed)
		if RevisionOf(&changed) == RevisionOf(&plain) {
			t.Errorf("a change of %s does not move the revision", name)
		}
	}
}
