package statusapply_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }

func newProxy(t *testing.T, env *testenv.Env, name string) *v1alpha1.Proxy {
	t.Helper()
	px := &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{Namespace: env.Namespace(t), Name: name},
		Spec:       v1alpha1.ProxySpec{ProxyTemplateSpec: v1alpha1.ProxyTemplateSpec{Provider: "class"}},
	}
	if err := env.Client.Create(context.Background(), px); err != nil {
		t.Fatal(err)
	}
	return px
}

// TestA22_ThreeWritersLoseNothing: core, provider and leasing write one Proxy at the same time, a hundred rounds each, and
// at the end each slice is what its writer wrote last.
func TestA22_ThreeWritersLoseNothing(t *testing.T) {
	env := testenv.New(t)
	ctx := context.Background()
	px := newProxy(t, env, "shared")
	const rounds = 100
	provider := v1alpha1.ManagerProvider(v1alpha1.ProviderKubernetes)
	writers := map[string]func(status *v1alpha1.ProxyStatus, round int){
		v1alpha1.ManagerCore: func(s *v1alpha1.ProxyStatus, round int) {
			s.Phase = v1alpha1.ProxyPhase(fmt.Sprintf("P%d", round))
			meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: v1alpha1.ConditionHealthy, Status: metav1.ConditionTrue, Reason: fmt.Sprintf("R%d", round)})
		},
		provider: func(s *v1alpha1.ProxyStatus, round int) {
			s.Instance = &v1alpha1.Instance{Name: "i", Attempt: int32(round)}
			meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: v1alpha1.ConditionProvisioned, Status: metav1.ConditionTrue, Reason: fmt.Sprintf("R%d", round)})
		},
		v1alpha1.ManagerLeasing: func(s *v1alpha1.ProxyStatus, round int) {
			s.Cooldowns = []v1alpha1.Cooldown{{Target: "a.example", Hits: int32(round)}}
		},
	}
	var wg sync.WaitGroup
	for manager, write := range writers {
		wg.Go(func() {
			for round := 1; round <= rounds; round++ {
				if err := writeUntilAccepted(ctx, env, px, manager, func(s *v1alpha1.ProxyStatus) { write(s, round) }); err != nil {
					t.Errorf("%s round %d: %v", manager, round, err)
					return
				}
			}
		})
	}
	wg.Wait()

	got := &v1alpha1.Proxy{}
	if err := env.Client.Get(ctx, client.ObjectKeyFromObject(px), got); err != nil {
		t.Fatal(err)
	}
	last := fmt.Sprintf("R%d", rounds)
	healthy := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionHealthy)
	provisioned := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionProvisioned)
	switch {
	case got.Status.Phase != v1alpha1.ProxyPhase(fmt.Sprintf("P%d", rounds)) || healthy == nil || healthy.Reason != last:
		t.Errorf("core's slice was lost: %q %v", got.Status.Phase, healthy)
	case got.Status.Instance == nil || got.Status.Instance.Attempt != rounds || provisioned == nil || provisioned.Reason != last:
		t.Errorf("the provider's slice was lost: %v %v", got.Status.Instance, provisioned)
	case len(got.Status.Cooldowns) != 1 || got.Status.Cooldowns[0].Hits != rounds:
		t.Errorf("leasing's slice was lost: %v", got.Status.Cooldowns)
	}
	if got.Generation != px.Generation {
		t.Errorf("status writes moved the generation from %d to %d", px.Generation, got.Generation)
	}
	owners := map[string]int{}
	for _, entry := range got.ManagedFields {
		if entry.Subresource == "status" {
			owners[entry.Manager]++
		}
	}
	for manager := range writers {
		if owners[manager] != 1 {
			t.Errorf("field manager %s has %d status entries, want 1", manager, owners[manager])
		}
	}
}

// writeUntilAccepted does what every controller does: a conflict only says that another slice moved, so read and decide again.
func writeUntilAccepted(ctx context.Context, env *testenv.Env, px *v1alpha1.Proxy, manager string, write func(*v1alpha1.ProxyStatus)) error {
	for {
		current := &v1alpha1.Proxy{}
		if err := env.Client.Get(ctx, client.ObjectKeyFromObject(px), current); err != nil {
			return err
		}
		desired := current.Status.DeepCopy()
		write(desired)
		if err := statusapply.Proxy(ctx, env.Client, manager, current, desired); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// TestA24_UnchangedMakesNoCall: applying what is there already does not move the resourceVersion, and what a slice leaves
// out is removed without touching the others.
func TestA24_UnchangedMakesNoCall(t *testing.T) {
	env := testenv.New(t)
	ctx := context.Background()
	px := newProxy(t, env, "quiet")
	desired := px.Status.DeepCopy()
	desired.Phase = v1alpha1.PhaseReady
	meta.SetStatusCondition(&desired.Conditions, metav1.Condition{Type: v1alpha1.ConditionHealthy, Status: metav1.ConditionTrue, Reason: "Healthy"})
	if err := statusapply.Proxy(ctx, env.Client, v1alpha1.ManagerCore, px, desired); err != nil {
		t.Fatal(err)
	}
	if px.Status.Phase != v1alpha1.PhaseReady {
		t.Errorf("the object was not brought up to date: %q", px.Status.Phase)
	}
	version := px.ResourceVersion
	for range 50 {
		if err := statusapply.Proxy(ctx, env.Client, v1alpha1.ManagerCore, px, desired); err != nil {
			t.Fatal(err)
		}
	}
	if px.ResourceVersion != version {
		t.Errorf("resourceVersion moved from %s to %s", version, px.ResourceVersion)
	}

	cooling := px.Status.DeepCopy()
	cooling.Cooldowns = []v1alpha1.Cooldown{{Target: "a.example"}}
	if err := statusapply.Proxy(ctx, env.Client, v1alpha1.ManagerLeasing, px, cooling); err != nil {
		t.Fatal(err)
	}
	less := px.Status.DeepCopy()
	less.Conditions = nil
	if err := statusapply.Proxy(ctx, env.Client, v1alpha1.ManagerCore, px, less); err != nil {
		t.Fatal(err)
	}
	if len(px.Status.Conditions) != 0 || len(px.Status.Cooldowns) != 1 {
		t.Errorf("after leaving the conditions out: conditions %v, cooldowns %v", px.Status.Conditions, px.Status.Cooldowns)
	}
}

// TestLateWriterMissesTheNamesake: a status computed from a deleted object does not land on one that was re-created under
// its name, and a missing object is not created.
func TestLateWriterMissesTheNamesake(t *testing.T) {
	env := testenv.New(t)
	ctx := context.Background()
	old := newProxy(t, env, "namesake")
	if err := env.Client.Delete(ctx, old.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	desired := old.Status.DeepCopy()
	desired.Phase = v1alpha1.PhaseFailed
	if err := statusapply.Proxy(ctx, env.Client, v1alpha1.ManagerCore, old.DeepCopy(), desired); !apierrors.IsNotFound(err) {
		t.Errorf("status of a missing object: %v, want NotFound", err)
	}
	fresh := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: old.Namespace, Name: old.Name}, Spec: old.Spec}
	if err := env.Client.Create(ctx, fresh); err != nil {
		t.Fatal(err)
	}
	if err := statusapply.Proxy(ctx, env.Client, v1alpha1.ManagerCore, old.DeepCopy(), desired); !apierrors.IsConflict(err) {
		t.Errorf("status of a re-created namesake: %v, want Conflict", err)
	}
}
