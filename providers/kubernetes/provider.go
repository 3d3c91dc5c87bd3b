package kubernetes

import (
	"context"
	"fmt"
	"strings"
	"sync"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// providerIDPrefix starts the self-contained id of a pod: pod://namespace/name.
	providerIDPrefix = "pod://"
	// listPage is how many pods one answer of a List holds.
	listPage = 500
)

// Provider is one class of type kubernetes.
type Provider struct {
	rt providers.Runtime
	settings

	pageSize int64
	watch    watch
	close    sync.Once
}

var (
	_ providers.Provider = &Provider{}
	_ providers.Eventer  = &Provider{}
)

func newProvider(rt providers.Runtime, s settings) *Provider {
	return &Provider{rt: rt, settings: s, pageSize: listPage, watch: newWatch()}
}

// Check implements providers.Provider: pods can be listed, and the operator may make and delete them.
func (p *Provider) Check(ctx context.Context) error {
	for _, namespace := range p.namespaces() {
		if err := p.rt.Reader.List(ctx, &corev1.PodList{}, client.InNamespace(namespace), p.selector(), client.Limit(1)); err != nil {
			return classify("list pods", err)
		}
		for _, verb := range []string{"create", "delete"} {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Resource: "pods"},
			}}
			if err := p.rt.Client.Create(ctx, review); err != nil {
				return classify("review own access", err)
			}
			if !review.Status.Allowed {
				return providers.NewError(providers.Auth, "review own access", "the operator's role does not allow it to "+verb+" pods", nil)
			}
		}
	}
	return nil
}

// ValidateSpec implements providers.Provider.
func (p *Provider) ValidateSpec(spec *v1alpha1.ProxySpec) error {
	if placement := spec.Placement; placement != nil {
		if placement.MachineType != "" {
			return providers.InvalidField("spec.placement.machineType", "must be empty for a class of type kubernetes, whose spec.kubernetes.resources size the pod")
		}
		if placement.Image != "" {
			return providers.InvalidField("spec.placement.image", "must be empty for a class of type kubernetes, whose spec.kubernetes.image runs")
		}
		if wrong := validation.IsValidLabelValue(placement.Zone); len(wrong) > 0 {
			return providers.InvalidField("spec.placement.zone", "must be a value of the node label "+corev1.LabelTopologyZone)
		}
	}
	if spec.CloudInit != nil && (spec.CloudInit.Inline != "" || spec.CloudInit.SecretKeyRef != nil) {
		return providers.InvalidField("spec.cloudInit", "must be empty for a class of type kubernetes: a pod has no cloud-init")
	}
	if wrong := validation.IsValidPortNum(int(spec.Port)); len(wrong) > 0 {
		return providers.InvalidField("spec.port", "%s", wrong[0])
	}
	return nil
}

// Place implements providers.Provider. The scheduler does the placing; a zone that the Proxy names is passed through.
func (p *Provider) Place(spec *v1alpha1.ProxySpec, _ types.UID, _ []string) (string, error) {
	if spec.Placement == nil {
		return "", nil
	}
	return spec.Placement.Zone, nil
}

// Create implements providers.Provider.
func (p *Provider) Create(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
	if err := p.ValidateSpec(&req.Spec); err != nil {
		return providers.Receipt{}, err
	}
	if req.Credentials != nil {
		if err := p.writePassword(ctx, req); err != nil {
			return providers.Receipt{}, err
		}
	}
	err := p.rt.Client.Create(ctx, newPod(p.settings, req))
	if !apierrors.IsAlreadyExists(err) {
		return providers.Receipt{}, createError(err)
	}
	have := &corev1.Pod{}
	if err := p.rt.Reader.Get(ctx, client.ObjectKey{Namespace: req.Owner.Namespace, Name: req.Name}, have); err != nil {
		// Even if it is gone by now: the caller looks again, and it must not take NotFound for an answer to Create.
		return providers.Receipt{}, providers.NewError(providers.AlreadyExists, "create pod", "", err)
	}
	if !sameOwner(have, req.Owner) {
		return providers.Receipt{}, providers.NewError(providers.Conflict, "create pod", "a pod of another owner has this name", nil)
	}
	return providers.Receipt{}, providers.NewError(providers.AlreadyExists, "create pod", "", nil)
}

// createError is classify, but for what two codes mean when something is created.
func createError(err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		return providers.NewError(providers.Unavailable, "create pod", "the namespace does not exist", err)
	case apierrors.IsConflict(err):
		// The quota plugin gave up on counting several creations at once.
		return providers.NewError(providers.Capacity, "create pod", "the namespace's resource quota is busy", err)
	default:
		return classify("create pod", err)
	}
}

// writePassword makes or renews the Secret with the password's hash. A Secret of another owner is left alone.
func (p *Provider) writePassword(ctx context.Context, req providers.CreateRequest) error {
	const op = "write password file"
	line, err := passwordLine(*req.Credentials)
	if err != nil {
		return err
	}
	secret := newPasswordSecret(p.settings, req, line)
	err = p.rt.Client.Create(ctx, secret)
	if !apierrors.IsAlreadyExists(err) {
		return createError(err)
	}
	have := &corev1.Secret{}
	if err := p.rt.Reader.Get(ctx, client.ObjectKeyFromObject(secret), have); err != nil {
		return providers.NewError(providers.Unavailable, op, "", err)
	}
	if !sameOwner(have, req.Owner) {
		return providers.NewError(providers.Conflict, op, "a Secret of another owner has this name", nil)
	}
	secret.ResourceVersion = have.ResourceVersion
	if err := p.rt.Client.Update(ctx, secret); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return providers.NewError(providers.Unavailable, op, "the Secret changed at the same time", err)
		}
		return classify(op, err)
	}
	return nil
}

// Get implements providers.Provider.
func (p *Provider) Get(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
	pod, err := p.read(ctx, ref)
	if err != nil {
		return providers.Instance{}, err
	}
	return instanceOf(pod), nil
}

func (p *Provider) read(ctx context.Context, ref providers.Ref) (*corev1.Pod, error) {
	key, err := keyOf(ref)
	if err != nil {
		return nil, err
	}
	pod := &corev1.Pod{}
	if err := p.rt.Reader.Get(ctx, key, pod); err != nil {
		return nil, classify("get pod", err)
	}
	return pod, nil
}

// Delete implements providers.Provider.
func (p *Provider) Delete(ctx context.Context, ref providers.Ref) error {
	pod, err := p.read(ctx, ref)
	if err != nil {
		return err
	}
	if owner := ownerOf(pod); owner.ClusterID != p.rt.ClusterID || owner.UID == "" {
		return providers.NewError(providers.Conflict, "delete pod", "a pod of another owner has this name", nil)
	}
	if ref.ID != "" && ref.ID != string(pod.UID) {
		return providers.NewError(providers.NotFound, "delete pod", "another incarnation has this name", nil)
	}
	if pod.DeletionTimestamp != nil {
		return nil
	}
	err = p.rt.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID})
	if apierrors.IsConflict(err) {
		return providers.NewError(providers.NotFound, "delete pod", "another incarnation has this name", err)
	}
	return classify("delete pod", err)
}

// List implements providers.Provider.
func (p *Provider) List(ctx context.Context) ([]providers.Instance, error) {
	var all []providers.Instance
	for _, namespace := range p.namespaces() {
		for next := ""; ; {
			page := &corev1.PodList{}
			if err := p.rt.Reader.List(ctx, page, client.InNamespace(namespace), p.selector(), client.Limit(p.pageSize), client.Continue(next)); err != nil {
				return nil, classify("list pods", err)
			}
			for i := range page.Items {
				all = append(all, instanceOf(&page.Items[i]))
			}
			if next = page.Continue; next == "" {
				break
			}
		}
	}
	return all, nil
}

// Close implements providers.Provider.
func (p *Provider) Close() error {
	p.close.Do(p.watch.stop)
	return nil
}

func (p *Provider) namespaces() []string {
	if len(p.rt.Namespaces) == 0 {
		return []string{metav1.NamespaceAll}
	}
	return p.rt.Namespaces
}

// selector selects the pods of this cluster's mark and this class.
func (p *Provider) selector() client.MatchingLabels {
	return client.MatchingLabels{v1alpha1.LabelClusterID: p.rt.ClusterID, v1alpha1.LabelClass: p.class}
}

// sameOwner tells whether an object was made for this Proxy. The name may be that of a namesake that was re-created.
func sameOwner(object metav1.Object, owner providers.Owner) bool {
	have := ownerOf(object)
	return have.ClusterID == owner.ClusterID && have.UID == owner.UID
}

// keyOf finds a pod by what a Ref has: the Proxy's namespace and the name, or the self-contained id.
func keyOf(ref providers.Ref) (client.ObjectKey, error) {
	key := client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}
	if id, ok := strings.CutPrefix(ref.ProviderID, providerIDPrefix); ok && (key.Namespace == "" || key.Name == "") {
		key.Namespace, key.Name, _ = strings.Cut(id, "/")
	}
	if key.Namespace == "" || key.Name == "" {
		return key, providers.NewError(providers.Unavailable, "find pod", "the reference names no pod",
			fmt.Errorf("namespace %q, name %q, provider id %q", ref.Namespace, ref.Name, ref.ProviderID))
	}
	return key, nil
}
