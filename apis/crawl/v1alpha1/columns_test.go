package v1alpha1_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

// table is what kubectl get shows of a resource: the columns, those of -o wide in brackets, and the first object's cells.
func table(t *testing.T, env *testenv.Env, namespace, resource string) (columns string, cells map[string]any) {
	t.Helper()
	client, err := rest.HTTPClientFor(env.Config)
	if err != nil {
		t.Fatal(err)
	}
	url := strings.TrimSuffix(env.Config.Host, "/") + "/apis/crawl.example.com/v1alpha1/namespaces/" + namespace + "/" + resource
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	shown := metav1.Table{}
	if err := json.NewDecoder(answer.Body).Decode(&shown); err != nil || len(shown.Rows) != 1 {
		t.Fatalf("%d rows, %v", len(shown.Rows), err)
	}
	var names []string
	cells = map[string]any{}
	for i, column := range shown.ColumnDefinitions {
		name := strings.ToUpper(column.Name)
		cells[name] = shown.Rows[0].Cells[i]
		if column.Priority > 0 {
			name = "[" + name + "]"
		}
		names = append(names, name)
	}
	return strings.Join(names, " "), cells
}

// Who lists leases or proxies sees why one is not what it should be.
func TestColumnsSayWhy(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	condition := func(kind, reason string) []metav1.Condition {
		return []metav1.Condition{
			{Type: "Other", Status: metav1.ConditionTrue, Reason: "Other", LastTransitionTime: metav1.Now()},
			{Type: kind, Status: metav1.ConditionFalse, Reason: reason, LastTransitionTime: metav1.Now()},
		}
	}
	lease := &v1alpha1.ProxyLease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "a"}}
	lease.Spec.ProxyName = "nosuch"
	proxy := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "a"}}
	proxy.Spec.Provider = "a"
	for _, err := range []error{env.Client.Create(t.Context(), lease), env.Client.Create(t.Context(), proxy)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	lease.Status.Phase, lease.Status.Conditions = v1alpha1.LeasePending, condition(v1alpha1.ConditionBound, v1alpha1.ReasonProxyNotFound)
	proxy.Status.Phase, proxy.Status.Conditions = v1alpha1.PhasePending, condition(v1alpha1.ConditionReady, v1alpha1.ReasonNotProvisioned)
	for _, err := range []error{env.Client.Status().Update(t.Context(), lease), env.Client.Status().Update(t.Context(), proxy)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for resource, want := range map[string]struct{ columns, phase, reason string }{
		"proxyleases": {"NAME PHASE REASON PROXY URL EXPIRES [HOLDER] [MODE] [AGE]", "Pending", v1alpha1.ReasonProxyNotFound},
		"proxies":     {"NAME MODE PROVIDER PHASE IP HEALTHY [REASON] [POOL] [ZONE] [EGRESS IP] [LEASING] [AGE]", "Pending", v1alpha1.ReasonNotProvisioned},
	} {
		columns, cells := table(t, env, namespace, resource)
		if columns != want.columns || cells["PHASE"] != want.phase || cells["REASON"] != want.reason {
			t.Errorf("%s: columns %s, want %s; cells %v", resource, columns, want.columns, cells)
		}
	}
}
