package proxy

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The labels of namespaces are watched in the whole cluster; the cache of proxies knows only those that are watched, and a
// look at others would be an error in the log for each of them.
func TestNamespacesThatAreNotWatchedWakeNobody(t *testing.T) {
	r := &Reconciler{Options: Options{Namespaces: []string{"watched"}}} // without a client any look would panic
	other := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
	if requests := r.ofNamespace(t.Context(), other); len(requests) != 0 {
		t.Errorf("got %v", requests)
	}
}
