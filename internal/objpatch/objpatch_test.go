package objpatch

import (
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

func TestPatchLandsOnlyOnWhatWasRead(t *testing.T) {
	env := testenv.New(t)
	px := &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{Namespace: env.Namespace(t), Name: "p"},
		Spec:       v1alpha1.ProxySpec{ProxyTemplateSpec: v1alpha1.ProxyTemplateSpec{Provider: "none"}},
	}
	if err := env.Client.Create(t.Context(), px); err != nil {
		t.Fatal(err)
	}
	stale := px.DeepCopy()
	if err := Finalizers(t.Context(), env.Client, px, []string{"example.com/a", "example.com/b"}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(px.Finalizers, []string{"example.com/a", "example.com/b"}) || px.ResourceVersion == stale.ResourceVersion {
		t.Errorf("finalizers %v", px.Finalizers)
	}
	if err := Finalizers(t.Context(), env.Client, stale, []string{"example.com/c"}); !apierrors.IsConflict(err) {
		t.Errorf("a patch of an older object: %v, want a conflict", err)
	}
	version := px.ResourceVersion
	if err := Finalizers(t.Context(), env.Client, px, slices.Clone(px.Finalizers)); err != nil || px.ResourceVersion != version {
		t.Errorf("an unchanged list was written: %v", err)
	}

	if err := env.Client.Delete(t.Context(), px.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(px), px); err != nil {
		t.Fatal(err)
	}
	if err := Finalizers(t.Context(), env.Client, px, nil); err != nil {
		t.Fatal(err)
	}
	again := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: px.Namespace, Name: px.Name}, Spec: stale.Spec}
	if err := env.Client.Create(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	if err := Finalizers(t.Context(), env.Client, stale, []string{"example.com/c"}); err == nil {
		t.Error("a late patch landed on a re-created namesake")
	}
}
