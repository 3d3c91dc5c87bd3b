package instance

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

func TestFirstIntentCountsUntilTheStatusKnows(t *testing.T) {
	want := v1alpha1.Instance{Zone: "a", IntentTime: stamp(tableNow), DesiredHash: "v1-x", ClassGeneration: 3, Attempt: 1}
	none := v1alpha1.Instance{}
	attempted := v1alpha1.Instance{Zone: "b", IntentTime: stamp(tableNow.Add(time.Hour)), Attempt: 2}
	adopted := v1alpha1.Instance{ID: "i-1", Zone: "c"}
	for name, test := range map[string]struct {
		change func(*v1alpha1.Proxy)
		want   v1alpha1.Instance
	}{
		"no status":                   {func(*v1alpha1.Proxy) {}, want},
		"a status without an attempt": {func(px *v1alpha1.Proxy) { px.Status.Instance = &v1alpha1.Instance{Message: "waits"} }, want},
		"a later attempt":             {func(px *v1alpha1.Proxy) { px.Status.Instance = &attempted }, attempted},
		"an instance that was found":  {func(px *v1alpha1.Proxy) { px.Status.Instance = &adopted }, adopted},
		"copied to another Proxy":     {func(px *v1alpha1.Proxy) { px.UID = "u-2" }, none},
		"no annotation":               {func(px *v1alpha1.Proxy) { px.Annotations = nil }, none},
		"no JSON":                     {func(px *v1alpha1.Proxy) { px.Annotations[v1alpha1.AnnotationFirstIntent] = "soon" }, none},
		"no time":                     {func(px *v1alpha1.Proxy) { px.Annotations[v1alpha1.AnnotationFirstIntent] = `{"uid":"u-1"}` }, none},
	} {
		t.Run(name, func(t *testing.T) {
			px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Name: "px", UID: "u-1", Annotations: map[string]string{"mine": "too"}}}
			annotateIntent(px, want)
			if px.Annotations["mine"] != "too" {
				t.Error("another annotation is lost")
			}
			test.change(px)
			if diff := cmp.Diff(test.want, stored(px)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Where an instance is, only the status says: after that was lost, the first intent may be an old one.
func TestFirstIntentDoesNotSayWhereToLook(t *testing.T) {
	px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Name: "px", UID: "u-1"}}
	annotateIntent(px, v1alpha1.Instance{Zone: "a", IntentTime: stamp(tableNow)})
	s := &subject{px: px, name: "px-1"}
	if ref := s.ref(); ref.Zone != "" || ref.Name != "px-1" {
		t.Errorf("looks at %+v", ref)
	}
	if r := s.record(); r.Zone != "a" || r.Name != "px-1" {
		t.Errorf("the record is %+v", r)
	}
	px.Status.Instance = &v1alpha1.Instance{Zone: "b", ID: "i-1"}
	if ref := s.ref(); ref.Zone != "b" {
		t.Errorf("looks at %+v", ref)
	}
}
