package instance

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// That a provider accepted an attempt keeps this controller from asking a second time. A write for that alone is spared:
// it goes along with the next one. A process that dies before asks again, within the same window, under the same name,
// which is what it would do after a lost reply.

// attempt is one attempt that was accepted. The zero value is none.
type attempt struct {
	// proxy as it was then; it is read only.
	proxy     *v1alpha1.Proxy
	number    int32
	intent    time.Time
	submitted *metav1.Time
}

// addTo fills in what a record of the same attempt does not say.
func (a attempt) addTo(uid types.UID, r v1alpha1.Instance) v1alpha1.Instance {
	if a.proxy != nil && a.proxy.UID == uid && r.SubmittedTime == nil && r.IntentTime != nil && r.IntentTime.Time.Equal(a.intent) && r.Attempt == a.number {
		r.SubmittedTime = a.submitted
	}
	return r
}

// onlySubmitted tells whether all that is new in a record is that its attempt was accepted.
func onlySubmitted(before, after v1alpha1.Instance) bool {
	if before.SubmittedTime != nil || after.SubmittedTime == nil {
		return false
	}
	after.SubmittedTime = nil
	return equality.Semantic.DeepEqual(before, after)
}

// acceptedAttempts remembers the last accepted attempt of each Proxy.
type acceptedAttempts struct {
	mu       sync.Mutex
	attempts map[types.NamespacedName]attempt
}

func newAcceptedAttempts() *acceptedAttempts {
	return &acceptedAttempts{attempts: map[types.NamespacedName]attempt{}}
}

func (a *acceptedAttempts) note(px *v1alpha1.Proxy, r v1alpha1.Instance) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.attempts[client.ObjectKeyFromObject(px)] = attempt{proxy: px, number: r.Attempt, intent: r.IntentTime.Time, submitted: r.SubmittedTime}
}

func (a *acceptedAttempts) of(proxy types.NamespacedName) attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.attempts[proxy]
}

func (a *acceptedAttempts) forget(proxy types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.attempts, proxy)
}
