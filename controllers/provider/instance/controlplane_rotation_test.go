package instance

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

const newUserData = "#cloud-config new"

// rotation is a class with running Proxies whose user data is one Secret.
type rotation struct {
	*bed
	*queue
	secret  *corev1.Secret
	proxies int
	// most is how many Proxies were down at once, and down how many are.
	most, down int
}

// newRotation brings the Proxies up. limit is the class's maxConcurrentReplacements; 0 leaves it to the default.
func newRotation(t *testing.T, proxies int, limit int32, change ...func(*v1alpha1.Proxy)) *rotation {
	t.Helper()
	s := newBed(t, fake.Behaviour{Start: 20 * time.Second, Stop: 10 * time.Second})
	q, _ := s.newQueue()
	r := &rotation{bed: s, queue: q, proxies: proxies, secret: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: s.namespace, Name: "shared", Labels: map[string]string{v1alpha1.LabelCloudInit: "true"},
	}}}
	s.changeClass(func(class *v1alpha1.ProviderClass) {
		class.Spec.ProvisionTimeoutSeconds = ptr.To[int32](60)
		if limit > 0 {
			class.Spec.MaxConcurrentReplacements = &limit
		}
	})
	r.secret.StringData = map[string]string{"data": "#cloud-config old"}
	s.must(s.client.Create(t.Context(), r.secret))
	change = append(change, func(px *v1alpha1.Proxy) {
		px.Spec.CloudInit = &v1alpha1.CloudInit{SecretKeyRef: &v1alpha1.SecretKeyRef{Name: "shared", Key: "data"}}
	})
	for n := range proxies {
		s.proxy(fmt.Sprintf("px-%02d", n), change...)
	}
	q.run("the Proxies run", time.Hour, func() bool { return r.every(isProvisioned) })
	q.check = r.count
	return r
}

func isProvisioned(px *v1alpha1.Proxy) bool {
	return meta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionProvisioned)
}

func isUpToDate(px *v1alpha1.Proxy) bool {
	return isProvisioned(px) && meta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionUpToDate)
}

// changeClass changes the specification of the class.
func (s *bed) changeClass(change func(*v1alpha1.ProviderClass)) {
	s.t.Helper()
	class := &v1alpha1.ProviderClass{}
	s.must(s.client.Get(s.t.Context(), client.ObjectKeyFromObject(s.class), class))
	change(class)
	s.must(s.client.Update(s.t.Context(), class))
}

// rotate changes the user data under all Proxies.
func (r *rotation) rotate(data string) {
	r.bed.t.Helper()
	now := r.secret.DeepCopy()
	r.must(r.client.Get(r.bed.t.Context(), client.ObjectKeyFromObject(now), now))
	now.StringData = map[string]string{"data": data}
	r.must(r.client.Update(r.bed.t.Context(), now))
}

// count looks at the cloud itself: which Proxies have no running instance.
func (r *rotation) count() {
	up := map[types.UID]bool{}
	for _, instance := range r.cloud.Instances() {
		if instance.State == providers.StateRunning {
			up[instance.Owner.UID] = true
		}
	}
	r.down = 0
	for uid := range maps.Keys(r.known()) {
		if !up[uid] {
			r.down++
		}
	}
	r.most = max(r.most, r.down)
}

// made counts the instances that were made from user data and run.
func (r *rotation) made(data string) int {
	n := 0
	for _, instance := range r.cloud.Instances() {
		request, _ := r.cloud.Request(instance.Name)
		if instance.State == providers.StateRunning && string(request.UserData) == data {
			n++
		}
	}
	return n
}

func (r *rotation) done() bool { return r.made(newUserData) == r.proxies && r.every(isUpToDate) }

func TestA20_ASharedSecretReplacesNoMoreThanTheClassAllows(t *testing.T) {
	for _, c := range []struct {
		name     string
		limit    int32
		restarts bool
		want     int
	}{
		{"default, restarts", 0, true, int(DefaultMaxConcurrentReplacements)},
		{"1", 1, false, 1},
		{"3", 3, false, 3},
		{"3, restarts", 3, true, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRotation(t, 20, c.limit)
			mutations := r.cloud.Mutations()
			r.rotate(newUserData)
			if c.restarts {
				// Shorter than a replacement takes, so that every step of some of them is cut off.
				for n := 0; n < 200 && !r.done(); n++ {
					r.queue.run("", 17*time.Second, nil)
					r.start(r.bed, r.newReconciler(r.client))
				}
			}
			r.queue.run("all are replaced", 6*time.Hour, r.done)
			if r.most != c.want {
				t.Errorf("at most %d were down at once, want %d", r.most, c.want)
			}
			r.wantInstances(r.proxies)
			if n := r.cloud.Mutations() - mutations; n != 2*r.proxies && !c.restarts {
				t.Errorf("%d Creates and Deletes, want one of each for every Proxy", n)
			}
		})
	}
}

// TestA20_WhatNeverComesBackStopsTheRotation: a Proxy that does not come up again, for whatever reason, keeps its place, so
// that what is wrong with the new user data or with the provider does not take down the whole class. It ends with what is
// wrong, or with the Proxy.
func TestA20_WhatNeverComesBackStopsTheRotation(t *testing.T) {
	onCreate := func(r *rotation, f func()) { r.cloud.Hook(fake.MethodCreate, func(fake.Call) { f() }) }
	recovers := func(r *rotation) string {
		r.cloud.SetBehaviour(fake.Behaviour{})
		r.cloud.Hook(fake.MethodCreate, nil)
		return newUserData
	}
	takenBack := func(r *rotation) string {
		r.cloud.Hook(fake.MethodCreate, nil)
		r.cloud.Hook(fake.MethodGet, nil)
		r.rotate("#cloud-config mended")
		return "#cloud-config mended"
	}
	for name, c := range map[string]struct {
		breaks func(*rotation)
		// mends returns the user data of the instances that are made then.
		mends func(*rotation) string
	}{
		"never starts": {func(r *rotation) { r.cloud.SetBehaviour(fake.Behaviour{Start: 1000 * time.Hour}) }, recovers},
		"no capacity": {func(r *rotation) {
			onCreate(r, func() { r.cloud.Fail(fake.MethodCreate, providers.NewError(providers.Capacity, "", "", nil)) })
		}, recovers},
		"nothing comes of it": {func(r *rotation) { onCreate(r, func() { r.cloud.Vanish(1) }) }, recovers},
		"refused": {func(r *rotation) {
			onCreate(r, func() {
				r.cloud.Fail(fake.MethodCreate, providers.InvalidField("spec.cloudInit", "it is no user data"))
			})
		}, takenBack},
		"ends at once": {func(r *rotation) {
			r.cloud.Hook(fake.MethodGet, func(call fake.Call) {
				if request, ok := r.cloud.Request(call.Name); ok && string(request.UserData) == newUserData {
					r.cloud.SetState(call.Name, providers.StateFailed)
				}
			})
		}, takenBack},
	} {
		t.Run(name, func(t *testing.T) {
			const limit = 2
			r := newRotation(t, 6, limit)
			c.breaks(r)
			r.rotate(newUserData)
			for range 3 {
				r.queue.run("", 15*time.Minute, nil)
				r.start(r.bed, r.newReconciler(r.client))
			}
			if r.down != limit || r.most != limit {
				t.Errorf("%d are down, %d were at most, want %d", r.down, r.most, limit)
			}
			mended := c.mends(r)
			r.queue.run("all are replaced", 12*time.Hour, func() bool { return r.made(mended) == r.proxies && r.every(isUpToDate) })
			if r.most != limit {
				t.Errorf("at most %d were down at once, want %d", r.most, limit)
			}
		})
	}
}

// TestRotation_ADeletedProxyGivesItsPlaceBack: so does a user get a rotation going again that one Proxy holds up.
func TestRotation_ADeletedProxyGivesItsPlaceBack(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %v", restart), func(t *testing.T) {
			r := newRotation(t, 5, 1)
			stuck := ""
			// One worker: what the hook says is about the call that it was made for.
			r.workers = 1
			r.cloud.Hook(fake.MethodCreate, func(call fake.Call) {
				if stuck == "" {
					stuck = call.Name
				}
				if call.Name == stuck {
					r.cloud.Fail(fake.MethodCreate, providers.NewError(providers.Capacity, "", "", nil))
				}
			})
			r.rotate(newUserData)
			r.queue.run("", time.Hour, nil)
			if r.down != 1 || r.made(newUserData) != 0 {
				t.Fatalf("%d are down, %d were replaced", r.down, r.made(newUserData))
			}
			if restart {
				r.start(r.bed, r.newReconciler(r.client))
			}
			for _, px := range r.known() {
				if px.Status.Instance.Name == stuck {
					r.must(r.client.Delete(t.Context(), px))
				}
			}
			r.queue.run("the others are replaced", 12*time.Hour, func() bool {
				return r.made(newUserData) == r.proxies-1 && r.every(isUpToDate)
			})
			// The one that is going and the one whose turn it is.
			if r.most > 2 {
				t.Errorf("at most %d were down at once, want 2", r.most)
			}
		})
	}
}

// TestWaitingForATurnCostsLittle: those that wait for their turn leave what the class may ask the provider for to those
// whose turn it is.
func TestWaitingForATurnCostsLittle(t *testing.T) {
	const minutes = 20
	r := newRotation(t, 60, 1)
	calls := len(r.cloud.Calls())
	r.rotate(newUserData)
	r.queue.run("", minutes*time.Minute, nil)
	// A replacement takes about a minute and a dozen calls.
	if n := len(r.cloud.Calls()) - calls; n > 2*minutes*60 {
		t.Errorf("%d calls in %d minutes", n, minutes)
	}
	if n := r.made(newUserData); n < minutes*2/3 {
		t.Errorf("%d were replaced in %d minutes", n, minutes)
	}
}

func TestRotation_OnDeleteOnlyReports(t *testing.T) {
	r := newRotation(t, 20, 0, onDeletePolicy)
	before, mutations := r.cloud.Instances(), r.cloud.Mutations()
	r.rotate(newUserData)
	r.queue.run("all say so", time.Minute, func() bool {
		return r.every(func(px *v1alpha1.Proxy) bool {
			c := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionUpToDate)
			return c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonSpecChanged && isProvisioned(px)
		})
	})
	r.queue.run("", 2*time.Hour, nil)
	if n := r.cloud.Mutations() - mutations; n != 0 || r.most != 0 {
		t.Errorf("%d Creates and Deletes, %d Proxies down", n, r.most)
	}
	ids := func(instances []providers.Instance) (ids []string) {
		for _, i := range instances {
			ids = append(ids, i.ID)
		}
		return ids
	}
	if !slices.Equal(ids(before), ids(r.cloud.Instances())) {
		t.Error("instances were replaced")
	}
}
