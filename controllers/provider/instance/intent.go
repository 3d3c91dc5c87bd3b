package instance

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// The first intent of a Proxy is one write with our finalizer: it is never there without it, and the API server has one write
// less to do for each Proxy. The status cannot be written along with a finalizer, so that intent is in an annotation. It counts
// as the record until there is one in the status, which then says more; nobody takes it away. An attempt that moves to another
// place before the first one has settled changes it.

// firstIntent is what the annotation holds, as JSON.
type firstIntent struct {
	// UID of the Proxy: one that was copied to another Proxy says nothing.
	UID             types.UID   `json:"uid"`
	Zone            string      `json:"zone,omitempty"`
	Time            metav1.Time `json:"time"`
	DesiredHash     string      `json:"desiredHash,omitempty"`
	ClassGeneration int64       `json:"classGeneration,omitempty"`
}

// annotateIntent puts the first intent on a Proxy.
func annotateIntent(px *v1alpha1.Proxy, r v1alpha1.Instance) {
	// It is made of strings, numbers and a time, for which Marshal has no error.
	text, _ := json.Marshal(firstIntent{
		UID: px.UID, Zone: r.Zone, Time: *r.IntentTime, DesiredHash: r.DesiredHash, ClassGeneration: r.ClassGeneration,
	})
	metav1.SetMetaDataAnnotation(&px.ObjectMeta, v1alpha1.AnnotationFirstIntent, string(text))
}

// recorded tells whether a record knows of an attempt or of an instance.
func recorded(r v1alpha1.Instance) bool { return r.IntentTime != nil || r.ID != "" }

// statusRecorded tells whether the status has the record.
func statusRecorded(px *v1alpha1.Proxy) bool {
	return px.Status.Instance != nil && recorded(*px.Status.Instance)
}

// stored is the record that a Proxy carries: that in its status or, as long as there is none, its first intent. What
// cannot be read as one is none: then a new intent is stored, for an instance of the same name.
func stored(px *v1alpha1.Proxy) v1alpha1.Instance {
	if statusRecorded(px) {
		return *px.Status.Instance
	}
	first, ok := firstOf(px)
	if !ok {
		return v1alpha1.Instance{}
	}
	return v1alpha1.Instance{
		Zone: first.Zone, DesiredHash: first.DesiredHash, ClassGeneration: first.ClassGeneration, IntentTime: &first.Time, Attempt: 1,
	}
}

// firstOf reads the first intent of a Proxy; false when there is none that is its own.
func firstOf(px *v1alpha1.Proxy) (first firstIntent, ok bool) {
	text, ok := px.Annotations[v1alpha1.AnnotationFirstIntent]
	ok = ok && json.Unmarshal([]byte(text), &first) == nil && first.UID == px.UID && !first.Time.IsZero()
	return first, ok
}

// untouched tells whether nothing about a Proxy says that an attempt was ever made for it: neither the finalizer, without which
// none is made, nor the annotation that comes with it and stays, nor the status. An instance could only be there if somebody
// had taken away all three.
func untouched(px *v1alpha1.Proxy, finalizer string) bool {
	_, annotated := px.Annotations[v1alpha1.AnnotationFirstIntent]
	return !annotated && !statusRecorded(px) && !hasFinalizer(px, finalizer)
}
