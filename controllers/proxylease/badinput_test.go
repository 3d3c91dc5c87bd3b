package proxylease

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

func asJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func numbered(n int, format string) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf(format, i)
	}
	return list
}

// What the HTTP front lets through the API server stores: nobody gets a 500 for what he sent. What it refuses has a code.
func TestH10_TheFrontAndTheSchemaAgree(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	c := f.start()
	label := strings.Repeat("l", 63)
	longHost := strings.Repeat(strings.Repeat("a", 49)+".", 5) + "abc" // 253 bytes
	manyLabels := map[string]string{}
	for i := range 32 {
		manyLabels[strings.Repeat("p", 253-8)+".example/"+fmt.Sprintf("%s%02d", label[:61], i)] = label
	}
	for name, body := range map[string]any{
		"IPv4 address":               map[string]any{"target": "192.0.2.1"},
		"IPv6 address":               map[string]any{"target": "2001:db8::1"},
		"IPv4-mapped address":        map[string]any{"target": "::ffff:192.0.2.1"},
		"unspecified address":        map[string]any{"target": "::"},
		"all zeros":                  map[string]any{"target": "0.0.0.0"},
		"address with leading zeros": map[string]any{"target": "192.0.02.1"},
		"numbers":                    map[string]any{"target": "1.2.3"},
		"number":                     map[string]any{"target": "1"},
		"long form of an address":    map[string]any{"target": "2001:db8:0:0:0:0:0:1"},
		"address with port":          map[string]any{"target": "192.0.2.1:80"},
		"xn--":                       map[string]any{"target": "xn--bcher-kva.example"},
		"underscore":                 map[string]any{"target": "_dmarc.a.example"},
		"longest host":               map[string]any{"target": longHost},
		"host too long":              map[string]any{"target": longHost + "d"},
		"long label of a host":       map[string]any{"target": strings.Repeat("a", 64) + ".example"},
		"16 hosts":                   map[string]any{"targets": numbered(16, "t%d.example")},
		"repeated hosts":             map[string]any{"targets": []string{"a.example", "a.example"}, "target": "a.example"},
		"longest TTL":                map[string]any{"ttlSeconds": 86400},
		"shortest TTL":               map[string]any{"ttlSeconds": 10},
		"exclusive":                  map[string]any{"mode": "Exclusive", "selector": map[string]string{"no": "such"}},
		"longest holder":             map[string]any{"holder": strings.Repeat("h", 253-len("token/"))},
		"holder in two-byte letters": map[string]any{"holder": strings.Repeat("ü", (253-len("token/"))/2)},
		"holder of symbols":          map[string]any{"holder": "\U0001F577 <a href=\"x\">&amp;\\u0000"},
		"holder with a tag of text":  map[string]any{"holder": "\u200b\ufeff\U000e0041"},
		"holder with a line":         map[string]any{"holder": "a\u2028b"},
		"32 excluded":                map[string]any{"exclude": numbered(32, "p%d")},
		"excluded twice":             map[string]any{"exclude": []string{"p", "p", f.ns + "/p"}},
		"longest proxy":              map[string]any{"proxy": strings.Repeat("p", 63)},
		"proxy with dots":            map[string]any{"proxy": "a.b.c"},
		"longest pool":               map[string]any{"pool": strings.Repeat("p", 40)},
		"pool with dots":             map[string]any{"pool": "a.b"},
		"longest selector":           map[string]any{"selector": manyLabels},
		"empty label value":          map[string]any{"selector": map[string]string{"geo": ""}},
		"pool by its label":          map[string]any{"selector": map[string]string{v1alpha1.LabelPool: "p"}},
		"nothing at all":             map[string]any{},
		"no such namespace":          map[string]any{"namespace": "no-such-namespace"},
	} {
		for key := range 2 { // with and without a key the name is made in two ways
			header := []string{}
			if key == 1 {
				header = []string{keyHeader, strings.Repeat("k", 220) + fmt.Sprint(len(name)) + strings.ReplaceAll(name, " ", "-")}
			}
			status, answer := c.call(http.MethodPost, "/v1/leases", asJSON(t, body), header...)
			switch p := decode[problem](t, answer); {
			case status == http.StatusCreated:
			case status == http.StatusServiceUnavailable && p.Code == wire.CodeNoProxy:
			case status == http.StatusUnprocessableEntity && p.Code == wire.CodeInvalidField && p.Field != "" && p.Detail != "":
			case status == http.StatusForbidden && p.Code == wire.CodeForbidden && name == "no such namespace":
			default:
				t.Errorf("%s: %d %s", name, status, answer)
			}
		}
	}
	// A follower stores what the leader would only look at.
	follower := f.start(following)
	for _, body := range []any{
		map[string]any{"selector": manyLabels}, map[string]any{"pool": strings.Repeat("p", 40)}, map[string]any{"pool": "p", "selector": map[string]string{"geo": "eu"}},
		map[string]any{"exclude": numbered(32, "p%d")}, map[string]any{"waitSeconds": 1, "proxy": strings.Repeat("p", 63)},
	} {
		if status, answer := follower.call(http.MethodPost, "/v1/leases", asJSON(t, body)); status != http.StatusCreated && status != http.StatusServiceUnavailable {
			t.Errorf("a follower: %s: %d %s", asJSON(t, body), status, answer)
		}
	}
}

// A namespace whose quota of leases is used up is no fault of the operator.
func TestH9_QuotaOfTheNamespace(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	c := f.start()
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "leases"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/proxyleases.crawl.example.com": resource.MustParse("0")}},
	}
	if err := f.Client.Create(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	// There is no quota controller here: what it would find out is said by hand.
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: quota.Spec.Hard}
	if err := f.Client.Status().Update(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the quota is in force", func() string {
		status, answer := c.call(http.MethodPost, "/v1/leases", `{}`)
		if status == http.StatusCreated {
			return "a lease was granted"
		}
		if p := decode[problem](t, answer); status != http.StatusTooManyRequests || p.Code != wire.CodeTooManyRequests {
			t.Fatalf("%d %s", status, answer)
		}
		return ""
	})
	follower := f.start(following)
	follower.refused(http.StatusTooManyRequests, wire.CodeTooManyRequests, http.MethodPost, "/v1/leases", `{}`)
	if err := f.Client.Delete(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its slot is free when the quota is gone", func() string {
		if status, answer := c.call(http.MethodPost, "/v1/leases", `{}`); status != http.StatusCreated {
			return string(answer)
		}
		return ""
	})
}

// Bad objects are refused by the schema, which names the field, or fail with a reason; no other lease notices.
func TestH10_BadObjectsDisturbNobody(t *testing.T) {
	f := newFleet(t)
	f.proxy("a", capacity(4))
	f.start()
	f.lease("before")
	before := f.awaitPhase("before", v1alpha1.LeaseBound)
	strict := client.WithFieldValidation(f.Client, client.FieldValidation(metav1.FieldValidationStrict))
	for spec, field := range map[string]string{
		`{selector: {}, ttlSeconds: -1}`:                                             "spec.ttlSeconds",
		`{selector: {}, ttlSeconds: 99999999999999999999}`:                           "spec.ttlSeconds",
		`{selector: {}, ttlSeconds: 4294967356}`:                                     "spec.ttlSeconds", // 60 after an overflow
		`{selector: {}, ttlSeconds: "60"}`:                                           "spec.ttlSeconds",
		`{selector: {}, waitSeconds: -1}`:                                            "spec.waitSeconds",
		`{selector: {}, ttlSecondsAfterFinished: 604801}`:                            "spec.ttlSecondsAfterFinished",
		`{selector: {}, targets: ["a.example:443"]}`:                                 "spec.targets",
		`{selector: {}, targets: ["https://a.example"]}`:                             "spec.targets",
		`{selector: {}, targets: ["A.example"]}`:                                     "spec.targets",
		`{selector: {}, targets: ["b\u00fccher.example"]}`:                           "spec.targets",
		`{selector: {}, targets: ["a\r\nb"]}`:                                        "spec.targets",
		`{selector: {}, targets: ["[2001:db8::1]"]}`:                                 "spec.targets",
		`{selector: {}, targets: [""]}`:                                              "spec.targets[0]",
		`{selector: {}, targets: [a.example, a.example]}`:                            "spec.targets[1]",
		`{selector: {}, targets: ` + asJSON(t, numbered(17, "t%d.x")) + `}`:          "spec.targets",
		`{selector: {}, excludedProxyNames: ` + asJSON(t, numbered(33, "p%d")) + `}`: "spec.excludedProxyNames",
		`{selector: {}, holder: "` + strings.Repeat("h", 254) + `"}`:                 "spec.holder",
		`{selector: {}, holder: "a\u0000b"}`:                                         "spec.holder",
		`{selector: {}, reports: [{target: "A:1", result: banned}]}`:                 "spec.reports[0].target",
		`{selector: {}, reports: [{target: a.example, result: banned, count: -1}]}`:  "spec.reports[0].count",
		`{selector: {}, mode: exclusive}`:                                            "spec.mode",
		`{selector: {}, pool: eu}`:                                                   "spec.pool",
		`{poolRef: {}}`:                                                              "spec.poolRef.name",
		`{}`:                                                                         "spec.selector",
	} {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte("{apiVersion: crawl.example.com/v1alpha1, kind: ProxyLease, metadata: {name: bad}, spec: "+spec+"}"), &object.Object); err != nil {
			t.Fatalf("%s: %v", spec, err)
		}
		object.SetNamespace(f.ns)
		err := strict.Create(t.Context(), object)
		if refused := apierrors.IsInvalid(err) || apierrors.IsBadRequest(err); !refused || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v, want a refusal that names %s", spec, err, field)
		}
	}
	expression := func(operator metav1.LabelSelectorOperator, key string, values ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
	}
	large := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for i := range 2000 {
		large.MatchLabels[fmt.Sprintf("k%d", i)] = strings.Repeat("v", 63)
	}
	selectors := map[string]*metav1.LabelSelector{
		"operator": expression("Like", "geo", "eu"), "in-nothing": expression(metav1.LabelSelectorOpIn, "geo"), "exists-with-values": expression(metav1.LabelSelectorOpExists, "geo", "x"),
		"key": expression(metav1.LabelSelectorOpExists, "a b"), "value": expression(metav1.LabelSelectorOpIn, "geo", "e u"),
		"label-key":   {MatchLabels: map[string]string{"a b": "c"}},
		"large":       large,
		"many-values": expression(metav1.LabelSelectorOpIn, "geo", numbered(5000, "v%d")...),
	}
	for name, selector := range selectors {
		f.lease(name, func(l *v1alpha1.ProxyLease) { l.Spec.Selector = selector })
	}
	for name := range selectors {
		if l := f.awaitPhase(name, v1alpha1.LeaseFailed); boundReason(l) != v1alpha1.ReasonInvalidSelector {
			t.Errorf("%s: reason %s", name, boundReason(l))
		}
	}
	f.lease("after")
	f.awaitPhase("after", v1alpha1.LeaseBound)
	if now := f.get("before"); now == nil || now.ResourceVersion != before.ResourceVersion {
		t.Errorf("the lease of before changed: %+v", now)
	}
}

// One holder who reports more hosts than a proxy can list makes no object grow and keeps nobody from it: another holder has
// the proxy, renews, reports and leases it for hosts of his own.
func TestC5_ManyTargetsLeaveOthersAlone(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	c := f.start()
	flooding, other := c.acquire(201, `{"holder":"flood"}`), c.acquire(201, `{"holder":"other","ttlSeconds":600}`)
	for i := range v1alpha1.MaxCooldowns + 32 {
		if status, body := c.call(http.MethodPost, "/v1/leases/"+flooding.LeaseID+"/report", fmt.Sprintf(`{"result":"rate_limited","target":"%s%d.example"}`, strings.Repeat("t", 60), i)); status != 204 {
			t.Fatalf("report %d: %d %s", i, status, body)
		}
	}
	size := func(o client.Object) int { return len(asJSON(t, o)) }
	if n := size(f.getProxy("a")); n > 32<<10 {
		t.Errorf("the proxy has %d bytes", n)
	}
	if n := size(f.get(flooding.name())); n > 16<<10 {
		t.Errorf("the lease has %d bytes", n)
	}
	c.acquire(201, `{"holder":"other","target":"mine.example"}`)
	if status, body := c.call(http.MethodPost, "/v1/leases/"+other.LeaseID+"/report", `{"result":"banned","target":"mine.example"}`); status != 204 {
		t.Errorf("report: %d %s", status, body)
	}
	c.refused(503, wire.CodeNoProxy, http.MethodPost, "/v1/leases", `{"holder":"other","target":"mine.example"}`)
	for _, action := range []string{http.MethodGet + " ", http.MethodPost + " /renew"} {
		method, suffix, _ := strings.Cut(action, " ")
		if status, body := c.call(method, "/v1/leases/"+other.LeaseID+suffix, ""); status != 200 || decode[httpLease](t, body).Proxy.ID != other.Proxy.ID {
			t.Errorf("%s of the other lease: %d %s", action, status, body)
		}
	}
}

// A password of every printable character reaches the holder as it is in the Secret.
func TestT28_HoldersGetEveryPrintableCharacter(t *testing.T) {
	const username = "!\"#$%&'()*+,-./0123456789;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~"
	const password = " :" + username + " "
	f := newFleet(t)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "login", Labels: map[string]string{v1alpha1.LabelProxyCredentials: "true"}},
		StringData: map[string]string{"username": username, "password": password},
	}
	if err := f.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	f.proxy("a", func(px *v1alpha1.Proxy) { px.Spec.CredentialsSecretRef = &v1alpha1.LocalSecretRef{Name: secret.Name} })
	for _, c := range []*core{f.start(), f.start(following)} {
		lease := c.acquire(201, `{}`)
		status, body := c.call(http.MethodGet, "/v1/leases/"+lease.LeaseID, "")
		again := decode[httpLease](t, body)
		for _, got := range []httpLease{lease, again} {
			if status != 200 || got.Proxy.Username != username || got.Proxy.Password != password || strings.Contains(got.Proxy.URL, "@") {
				t.Errorf("%d %+v", status, got.Proxy)
			}
		}
	}
}
