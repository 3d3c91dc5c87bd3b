package proxy

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/health"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func acceptedClass() *v1alpha1.ProviderClass {
	return &v1alpha1.ProviderClass{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", UID: "class-1"},
		Spec: v1alpha1.ProviderClassSpec{
			Type: v1alpha1.ProviderKubernetes, ControllerName: v1alpha1.DefaultControllerName,
			AllowedNamespaces: v1alpha1.NamespaceAccess{From: v1alpha1.NamespacesFromAll},
		},
		Status: v1alpha1.ProviderClassStatus{Conditions: []metav1.Condition{{
			Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAccepted,
		}}},
	}
}

func managed() *v1alpha1.Proxy {
	return &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "crawl", Name: "p", UID: "proxy-1", Generation: 3},
		Spec: v1alpha1.ProxySpec{
			Mode: v1alpha1.ModeManaged, Leasing: v1alpha1.LeasingEnabled,
			ProxyTemplateSpec: v1alpha1.ProxyTemplateSpec{Provider: "kubernetes", Port: 3128},
		},
	}
}

// running is a bound proxy whose instance i-1 has an address.
func running() *v1alpha1.Proxy {
	px := managed()
	px.Status.Binding = &v1alpha1.Binding{Type: v1alpha1.ProviderKubernetes, ClassName: "kubernetes", ClassUID: "class-1"}
	px.Status.Instance = &v1alpha1.Instance{ID: "i-1", ProviderID: "pod://crawl/p", Addresses: []string{"10.0.0.7"}}
	setCondition(px, v1alpha1.ConditionProvisioned, metav1.ConditionTrue, v1alpha1.ReasonRunning)
	return px
}

func setCondition(px *v1alpha1.Proxy, name string, status metav1.ConditionStatus, reason string) {
	meta.SetStatusCondition(&px.Status.Conditions, metav1.Condition{
		Type: name, Status: status, Reason: reason, Message: "m", LastTransitionTime: metav1.NewTime(start.Add(-time.Hour)),
	})
}

func healthy(instance string) *health.Verdict {
	return &health.Verdict{
		InstanceID: instance, Known: true, Healthy: true, Reason: "ProbeSucceeded", Message: "ok",
		AccessRestricted: new(true), AccessReason: "ForbiddenTargetsRefused", LastTransition: start,
	}
}

func input() Input { return Input{Class: acceptedClass(), LeasesKnown: true, Now: start} }

func status(out v1alpha1.ProxyStatus, name string) (metav1.ConditionStatus, string) {
	if c := meta.FindStatusCondition(out.Conditions, name); c != nil {
		return c.Status, c.Reason
	}
	return "", ""
}

func TestAccept(t *testing.T) {
	selected := func(in *Input) {
		in.Class.Spec.AllowedNamespaces = v1alpha1.NamespaceAccess{
			From: v1alpha1.NamespacesFromSelector, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}},
		}
	}
	withCloudInit := func(px *v1alpha1.Proxy) { px.Spec.CloudInit = &v1alpha1.CloudInit{Inline: "x"} }
	denies := func(in *Input) { in.Class.Spec.UserCloudInit = v1alpha1.UserCloudInitDenied }
	for _, tt := range []struct {
		name          string
		px            *v1alpha1.Proxy
		change        func(*v1alpha1.Proxy)
		in            func(*Input)
		status        metav1.ConditionStatus
		reason, ready string
		bound         bool
	}{
		{name: "A15 class accepted", status: metav1.ConditionTrue, reason: v1alpha1.ReasonBound, ready: v1alpha1.ReasonNotProvisioned, bound: true},
		{name: "class missing", in: func(in *Input) { in.Class = nil }, status: metav1.ConditionFalse, reason: v1alpha1.ReasonClassNotFound, ready: v1alpha1.ReasonNotAccepted},
		{name: "A17 no provider manager", in: func(in *Input) {
			in.Class.Status.Conditions[0].Status, in.Class.Status.Conditions[0].Reason = metav1.ConditionUnknown, v1alpha1.ReasonPending
		}, status: metav1.ConditionFalse, reason: v1alpha1.ReasonClassNotAccepted, ready: v1alpha1.ReasonWaitingForProviderManager},
		{name: "class refused", in: func(in *Input) { in.Class.Status.Conditions[0].Status = metav1.ConditionFalse }, status: metav1.ConditionFalse, reason: v1alpha1.ReasonClassNotAccepted, ready: v1alpha1.ReasonNotAccepted},
		{name: "class terminating", in: func(in *Input) { in.Class.DeletionTimestamp = new(metav1.NewTime(start)) }, status: metav1.ConditionFalse, reason: v1alpha1.ReasonClassTerminating, ready: v1alpha1.ReasonNotAccepted},
		{name: "namespace not selected", in: selected, status: metav1.ConditionFalse, reason: v1alpha1.ReasonNamespaceNotAllowed, ready: v1alpha1.ReasonNotAccepted},
		{name: "namespace selected", in: func(in *Input) { selected(in); in.NamespaceLabels = map[string]string{"team": "a"} }, status: metav1.ConditionTrue, reason: v1alpha1.ReasonBound, ready: v1alpha1.ReasonNotProvisioned, bound: true},
		{name: "user data denied", change: withCloudInit, in: denies, status: metav1.ConditionFalse, reason: v1alpha1.ReasonCloudInitDenied, ready: v1alpha1.ReasonNotAccepted},
		{name: "user data allowed", change: withCloudInit, status: metav1.ConditionTrue, reason: v1alpha1.ReasonBound, ready: v1alpha1.ReasonNotProvisioned, bound: true},
		{name: "instance of another type behind a finalizer", change: func(px *v1alpha1.Proxy) { px.Finalizers = []string{v1alpha1.FinalizerInstance("gcp")} }, status: metav1.ConditionFalse, reason: v1alpha1.ReasonClassReplaced, ready: v1alpha1.ReasonNotAccepted},
		{name: "being deleted", change: func(px *v1alpha1.Proxy) { px.DeletionTimestamp = new(metav1.NewTime(start)) }, status: metav1.ConditionFalse, reason: v1alpha1.ReasonTerminating, ready: v1alpha1.ReasonTerminating},

		{name: "A15 bound, class of another type now", px: running(), in: func(in *Input) { in.Class.UID, in.Class.Spec.Type = "class-2", v1alpha1.ProviderGCP }, status: metav1.ConditionTrue, reason: v1alpha1.ReasonClassReplaced, ready: v1alpha1.ReasonHealthUnknown, bound: true},
		{name: "bound, class gone", px: running(), in: func(in *Input) { in.Class = nil }, status: metav1.ConditionTrue, reason: v1alpha1.ReasonClassNotFound, ready: v1alpha1.ReasonHealthUnknown, bound: true},
		{name: "bound, namespace no longer selected", px: running(), in: selected, status: metav1.ConditionTrue, reason: v1alpha1.ReasonBound, ready: v1alpha1.ReasonHealthUnknown, bound: true},
		{name: "bound, user data comes and is denied", px: running(), change: withCloudInit, in: denies, status: metav1.ConditionFalse, reason: v1alpha1.ReasonCloudInitDenied, ready: v1alpha1.ReasonNotAccepted, bound: true},
		{name: "bound, denied after this generation was accepted", px: running(), change: func(px *v1alpha1.Proxy) {
			withCloudInit(px)
			meta.SetStatusCondition(&px.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonBound, ObservedGeneration: px.Generation})
		}, in: denies, status: metav1.ConditionTrue, reason: v1alpha1.ReasonBound, ready: v1alpha1.ReasonHealthUnknown, bound: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			px, in := tt.px, input()
			if px == nil {
				px = managed()
			}
			if tt.change != nil {
				tt.change(px)
			}
			if tt.in != nil {
				tt.in(&in)
			}
			before := px.Status.Binding.DeepCopy()
			out := Compose(px, in)
			gotStatus, gotReason := status(out, v1alpha1.ConditionAccepted)
			if gotStatus != tt.status || gotReason != tt.reason {
				t.Errorf("Accepted is %s/%s, want %s/%s", gotStatus, gotReason, tt.status, tt.reason)
			}
			if _, ready := status(out, v1alpha1.ConditionReady); ready != tt.ready {
				t.Errorf("Ready has reason %s, want %s", ready, tt.ready)
			}
			if (out.Binding != nil) != tt.bound {
				t.Errorf("binding %+v", out.Binding)
			}
			if before != nil && !equality.Semantic.DeepEqual(before, out.Binding) {
				t.Errorf("the binding changed from %+v to %+v", before, out.Binding)
			}
		})
	}
}

func TestComposeReadyAndPhase(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*v1alpha1.Proxy)
		in     func(*Input)
		ready  string
		phase  v1alpha1.ProxyPhase
	}{
		{name: "healthy", ready: v1alpha1.ReasonReady, phase: v1alpha1.PhaseReady},
		{name: "unhealthy", in: func(in *Input) { in.Verdict.Healthy = false }, ready: v1alpha1.ReasonNotHealthy, phase: v1alpha1.PhaseUnhealthy},
		{name: "not decided", in: func(in *Input) { in.Verdict.Known = false }, ready: v1alpha1.ReasonHealthUnknown, phase: v1alpha1.PhaseProvisioning},
		{name: "not watched", in: func(in *Input) { in.Verdict = nil }, ready: v1alpha1.ReasonHealthUnknown, phase: v1alpha1.PhaseProvisioning},
		{name: "A26 health of the previous instance", in: func(in *Input) { in.Verdict.InstanceID = "i-0" }, ready: v1alpha1.ReasonHealthUnknown, phase: v1alpha1.PhaseProvisioning},
		{name: "A26 no instance", change: func(px *v1alpha1.Proxy) { px.Status.Instance = nil }, ready: v1alpha1.ReasonHealthUnknown, phase: v1alpha1.PhaseProvisioning},
		{name: "check disabled", in: func(in *Input) { in.Problem = &Problem{Reason: v1alpha1.ReasonCheckDisabled, Message: "m"} }, ready: v1alpha1.ReasonHealthUnknown, phase: v1alpha1.PhaseProvisioning},
		{name: "creating", change: func(px *v1alpha1.Proxy) {
			setCondition(px, v1alpha1.ConditionProvisioned, metav1.ConditionFalse, v1alpha1.ReasonCreating)
		}, ready: v1alpha1.ReasonNotProvisioned, phase: v1alpha1.PhaseProvisioning},
		{name: "replacing", change: func(px *v1alpha1.Proxy) {
			setCondition(px, v1alpha1.ConditionProvisioned, metav1.ConditionFalse, v1alpha1.ReasonReplacing)
		}, ready: v1alpha1.ReasonNotProvisioned, phase: v1alpha1.PhaseReplacing},
		{name: "invalid specification", change: func(px *v1alpha1.Proxy) {
			setCondition(px, v1alpha1.ConditionProvisioned, metav1.ConditionFalse, v1alpha1.ReasonInvalidSpec)
		}, ready: v1alpha1.ReasonNotProvisioned, phase: v1alpha1.PhaseFailed},
		{name: "drain request", change: func(px *v1alpha1.Proxy) { px.Spec.DrainRequests = []v1alpha1.DrainRequest{{Requester: "x"}} }, ready: v1alpha1.ReasonReady, phase: v1alpha1.PhaseDraining},
		{name: "deleting", change: func(px *v1alpha1.Proxy) { px.DeletionTimestamp = new(metav1.NewTime(start)) }, ready: v1alpha1.ReasonTerminating, phase: v1alpha1.PhaseTerminating},
		{name: "deleting with leases", change: func(px *v1alpha1.Proxy) {
			px.DeletionTimestamp, px.Finalizers = new(metav1.NewTime(start)), []string{v1alpha1.FinalizerLeaseDrain}
		}, in: func(in *Input) { in.Leases = 2 }, ready: v1alpha1.ReasonTerminating, phase: v1alpha1.PhaseDraining},
		// AccessRestricted gates leasing, not Ready.
		{name: "open", in: func(in *Input) { in.Verdict.AccessRestricted = new(false) }, ready: v1alpha1.ReasonReady, phase: v1alpha1.PhaseReady},
	} {
		t.Run(tt.name, func(t *testing.T) {
			px, in := running(), input()
			in.Verdict = healthy("i-1")
			if tt.change != nil {
				tt.change(px)
			}
			if tt.in != nil {
				tt.in(&in)
			}
			out := Compose(px, in)
			gotStatus, gotReason := status(out, v1alpha1.ConditionReady)
			if gotReason != tt.ready || (gotStatus == metav1.ConditionTrue) != (tt.ready == v1alpha1.ReasonReady) {
				t.Errorf("Ready is %s/%s, want %s", gotStatus, gotReason, tt.ready)
			}
			if out.Phase != tt.phase {
				t.Errorf("phase %s, want %s", out.Phase, tt.phase)
			}
			if gotStatus != metav1.ConditionTrue && out.Health != nil && out.Health.InstanceID != "i-1" {
				t.Errorf("health of instance %q was recorded", out.Health.InstanceID)
			}
		})
	}
}

func TestComposeOwnsItsSliceOnly(t *testing.T) {
	px, in := running(), input()
	in.Verdict = healthy("i-1")
	px.Status.Cooldowns = []v1alpha1.Cooldown{{Target: "example.com"}}
	setCondition(px, v1alpha1.ConditionUpToDate, metav1.ConditionTrue, v1alpha1.ReasonUpToDate)
	before := px.DeepCopy()
	out := Compose(px, in)
	if !equality.Semantic.DeepEqual(px, before) {
		t.Error("Compose changed the proxy")
	}
	slice := v1alpha1.ProxySlice(v1alpha1.ManagerCore, v1alpha1.ModeManaged)
	for _, c := range out.Conditions {
		was := meta.FindStatusCondition(px.Status.Conditions, c.Type)
		if !slices.Contains(slice.Conditions, c.Type) && (was == nil || *was != c) {
			t.Errorf("Compose touched condition %s", c.Type)
		}
	}
	// Two of the provider's, and no word about draining: nobody asks for it.
	if len(out.Conditions) != len(slice.Conditions)-1+2 || meta.FindStatusCondition(out.Conditions, v1alpha1.ConditionDrained) != nil {
		t.Errorf("conditions %+v", out.Conditions)
	}
	px.Status = out
	if again := Compose(px, in); !equality.Semantic.DeepEqual(again, out) {
		t.Error("Compose of its own result differs")
	}
}

func TestA28_ObservedGenerationMovesEverywhere(t *testing.T) {
	px, in := running(), input()
	in.Verdict = healthy("i-1")
	px.Spec.DrainRequests = []v1alpha1.DrainRequest{{Requester: "test"}}
	px.Status = Compose(px, in)
	px.Spec.DrainRequests = nil
	px.Generation++
	out := Compose(px, in)
	if out.ObservedGeneration != px.Generation {
		t.Errorf("observedGeneration %d, want %d", out.ObservedGeneration, px.Generation)
	}
	for _, name := range v1alpha1.ProxySlice(v1alpha1.ManagerCore, v1alpha1.ModeManaged).Conditions {
		if c := meta.FindStatusCondition(out.Conditions, name); c == nil || c.ObservedGeneration != px.Generation {
			t.Errorf("condition %s is of %+v", name, c)
		}
	}
}

func TestA36_ExternalInstance(t *testing.T) {
	px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: "crawl", Name: "x", Generation: 1}, Spec: v1alpha1.ProxySpec{
		Mode: v1alpha1.ModeExternal, External: &v1alpha1.External{Host: "203.0.113.9"}, ProxyTemplateSpec: v1alpha1.ProxyTemplateSpec{Port: 3128},
	}}
	first := Compose(px, Input{LeasesKnown: true, Now: start})
	if first.Instance == nil || first.Instance.Addresses[0] != "203.0.113.9" || first.Binding != nil || first.Phase != v1alpha1.PhasePending {
		t.Fatalf("status %+v", first)
	}
	if got, _ := status(first, v1alpha1.ConditionProvisioned); got != metav1.ConditionTrue {
		t.Errorf("Provisioned is %s", got)
	}
	px.Status = first
	in := Input{LeasesKnown: true, Now: start, Verdict: healthy(first.Instance.ID)}
	in.Verdict.AccessRestricted = nil
	ready := Compose(px, in)
	if ready.Phase != v1alpha1.PhaseReady {
		t.Errorf("phase %s, want Ready", ready.Phase)
	}
	px.Status = ready
	px.Spec.Port = 8080
	moved := Compose(px, in)
	if moved.Instance.ID == first.Instance.ID {
		t.Error("another port is the same instance")
	}
	if got, reason := status(moved, v1alpha1.ConditionHealthy); got != metav1.ConditionUnknown || reason != v1alpha1.ReasonInstanceChanged {
		t.Errorf("after the move Healthy is %s/%s", got, reason)
	}
}

func TestEgressIdentity(t *testing.T) {
	withIP := func(px *v1alpha1.Proxy, in *Input) { in.Verdict.EgressIP = "198.51.100.4" }
	scope := func(s v1alpha1.EgressScope) func(*v1alpha1.Proxy, *Input) {
		return func(_ *v1alpha1.Proxy, in *Input) { in.Class.Spec.EgressScope = s }
	}
	vm := func(px *v1alpha1.Proxy, in *Input) {
		in.Class.Spec.Type, px.Status.Binding.Type = v1alpha1.ProviderGCP, v1alpha1.ProviderGCP
	}
	external := func(px *v1alpha1.Proxy, in *Input) {
		px.Spec.Mode, px.Spec.Provider, px.Spec.External = v1alpha1.ModeExternal, "", &v1alpha1.External{Host: "h"}
		in.Verdict.InstanceID = externalInstance(px).ID
	}
	for _, tt := range []struct {
		name    string
		changes []func(*v1alpha1.Proxy, *Input)
		want    string
	}{
		{"kubernetes shares the cluster's exit", []func(*v1alpha1.Proxy, *Input){withIP}, "class:class-1"},
		{"kubernetes, said to be per instance", []func(*v1alpha1.Proxy, *Input){scope(v1alpha1.EgressPerInstance)}, "instance:i-1"},
		{"per instance and measured", []func(*v1alpha1.Proxy, *Input){scope(v1alpha1.EgressPerInstance), withIP}, "ip:198.51.100.4"},
		{"machines have exits of their own", []func(*v1alpha1.Proxy, *Input){vm}, "instance:i-1"},
		{"machines behind one exit", []func(*v1alpha1.Proxy, *Input){vm, scope(v1alpha1.EgressShared), withIP}, "class:class-1"},
		{"rotating", []func(*v1alpha1.Proxy, *Input){vm, scope(v1alpha1.EgressRotating), withIP}, "instance:i-1"},
		{"as the provider manager says", []func(*v1alpha1.Proxy, *Input){func(_ *v1alpha1.Proxy, in *Input) { in.Class.Status.EgressScope = "PerInstance" }}, "instance:i-1"},
		{"group", []func(*v1alpha1.Proxy, *Input){withIP, func(px *v1alpha1.Proxy, _ *Input) { px.Spec.EgressGroup = "isp" }}, "group:crawl/isp"},
		{"external and measured", []func(*v1alpha1.Proxy, *Input){external, withIP}, "ip:198.51.100.4"},
		{"address measured at the previous instance", []func(*v1alpha1.Proxy, *Input){vm, withIP, func(_ *v1alpha1.Proxy, in *Input) { in.Verdict.InstanceID = "i-0" }}, "instance:i-1"},
		{"class gone, identity per instance", []func(*v1alpha1.Proxy, *Input){withIP, func(px *v1alpha1.Proxy, in *Input) {
			in.Class, px.Status.EgressIdentity = nil, "ip:198.51.100.4"
		}}, "ip:198.51.100.4"},
		{"class gone, identity shared", []func(*v1alpha1.Proxy, *Input){withIP, func(px *v1alpha1.Proxy, in *Input) {
			in.Class, px.Status.EgressIdentity = nil, "class:class-1"
		}}, "class:class-1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			px, in := running(), input()
			in.Verdict = healthy("i-1")
			for _, change := range tt.changes {
				change(px, &in)
			}
			if got := Compose(px, in).EgressIdentity; got != tt.want {
				t.Errorf("identity %q, want %q", got, tt.want)
			}
		})
	}
}

func TestPlanFinalizers(t *testing.T) {
	drain := func(seconds int32) *v1alpha1.ProxyDeletion {
		return &v1alpha1.ProxyDeletion{DrainTimeoutSeconds: &seconds}
	}
	instance := v1alpha1.FinalizerInstance("kvm")
	for _, tt := range []struct {
		name      string
		have      []string
		deletion  *v1alpha1.ProxyDeletion
		deleted   time.Duration // ago; 0 is not
		skip      bool
		leases    int
		unknown   bool
		drainBy   time.Duration // from now; 0 is no deadline
		want      []string
		abandoned bool
		recheck   time.Duration
	}{
		{name: "no timeout"},
		{name: "timeout", deletion: drain(60), want: []string{v1alpha1.FinalizerLeaseDrain}},
		{name: "timeout taken back", have: []string{v1alpha1.FinalizerLeaseDrain, instance}, deletion: drain(0), want: []string{instance}},
		{name: "deleted, leases left", have: []string{v1alpha1.FinalizerLeaseDrain}, deletion: drain(60), deleted: 10 * time.Second, leases: 1, want: []string{v1alpha1.FinalizerLeaseDrain}, recheck: DrainPollInterval},
		{name: "deleted, no leases", have: []string{v1alpha1.FinalizerLeaseDrain, instance}, deletion: drain(60), deleted: time.Second, want: []string{instance}},
		{name: "deleted, leases unknown", have: []string{v1alpha1.FinalizerLeaseDrain}, deletion: drain(60), deleted: time.Second, unknown: true, want: []string{v1alpha1.FinalizerLeaseDrain}, recheck: DrainPollInterval},
		{name: "close to the deadline", have: []string{v1alpha1.FinalizerLeaseDrain}, deletion: drain(60), deleted: 59 * time.Second, leases: 1, want: []string{v1alpha1.FinalizerLeaseDrain}, recheck: time.Second},
		{name: "deadline passed", have: []string{v1alpha1.FinalizerLeaseDrain}, deletion: drain(60), deleted: time.Minute, leases: 3},
		{name: "drained before, and close to that deadline", have: []string{v1alpha1.FinalizerLeaseDrain}, deletion: drain(60), deleted: time.Second, drainBy: time.Second, leases: 1, want: []string{v1alpha1.FinalizerLeaseDrain}, recheck: time.Second},
		{name: "drained before, and past that deadline", have: []string{v1alpha1.FinalizerLeaseDrain}, deletion: drain(60), deleted: time.Second, drainBy: -time.Second, leases: 1},
		{name: "drained before, with a later deadline", have: []string{v1alpha1.FinalizerLeaseDrain}, deletion: drain(60), deleted: time.Minute, drainBy: time.Hour, leases: 1},
		{name: "deleted before the finalizer came", deletion: drain(60), deleted: time.Second, leases: 1},
		{name: "A14 skip-cleanup before deletion", have: []string{instance}, skip: true, want: []string{instance}},
		{name: "A14 skip-cleanup", have: []string{instance, "other"}, skip: true, deleted: time.Second, want: []string{"other"}, abandoned: true},
		{name: "A14 skip-cleanup while leases are left", have: []string{instance, v1alpha1.FinalizerLeaseDrain}, deletion: drain(60), skip: true, deleted: time.Second, leases: 1, want: []string{v1alpha1.FinalizerLeaseDrain}, abandoned: true, recheck: DrainPollInterval},
	} {
		t.Run(tt.name, func(t *testing.T) {
			px := running()
			px.Finalizers, px.Spec.Deletion = tt.have, tt.deletion
			if tt.deleted > 0 {
				px.DeletionTimestamp = new(metav1.NewTime(start.Add(-tt.deleted)))
			}
			if tt.drainBy != 0 {
				px.Spec.DrainRequests = []v1alpha1.DrainRequest{{Requester: "pool", DeadlineTime: new(metav1.NewTime(start.Add(tt.drainBy)))}}
			}
			if tt.skip {
				px.Annotations = map[string]string{v1alpha1.AnnotationSkipCleanup: "true"}
			}
			plan := planFinalizers(px, Input{Leases: tt.leases, LeasesKnown: !tt.unknown, Now: start})
			if !slices.Equal(plan.want, tt.want) || (len(plan.abandoned) > 0) != tt.abandoned || plan.recheck != tt.recheck {
				t.Errorf("finalizers %v, abandoned %v, recheck %s; want %v, %v, %s", plan.want, plan.abandoned, plan.recheck, tt.want, tt.abandoned, tt.recheck)
			}
		})
	}
}
