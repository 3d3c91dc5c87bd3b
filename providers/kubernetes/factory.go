package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// createWindow is how long after an intent its Create may be called.
const createWindow = 5 * time.Second

// Factory opens classes of type kubernetes.
type Factory struct{}

// NewFactory makes a Factory. Of its Runtime, Client and Reader are required; Informers must have the pods with the label
// crawl.example.com/proxy-uid.
func NewFactory() *Factory { return &Factory{} }

var (
	_ providers.Factory = &Factory{}
	_ providers.Timed   = &Factory{}
	_ providers.Limited = &Factory{}
)

// Type implements providers.Factory.
func (f *Factory) Type() v1alpha1.ProviderType { return v1alpha1.ProviderKubernetes }

// Timing implements providers.Timed. What the API server has accepted, the next Get sees. A Create that is still under way
// when its Proxy is released leaks nothing either: Kubernetes' own garbage collector takes away a pod whose owner is
// gone, and the name forbids a second pod. So nobody has to wait for it.
func (f *Factory) Timing() providers.Timing {
	return providers.Timing{
		Window:  createWindow,
		Settle:  createWindow,
		Confirm: time.Second,
	}
}

// Limits implements providers.Limited. The API server protects itself; these stop a runaway loop.
func (f *Factory) Limits() providers.Limits {
	return providers.Limits{CallsPerSecond: 100, Burst: 300}
}

// Validate implements providers.Factory.
func (f *Factory) Validate(class *v1alpha1.ProviderClass) field.ErrorList {
	_, problems := read(class)
	return problems
}

// Open implements providers.Factory.
func (f *Factory) Open(_ context.Context, class *v1alpha1.ProviderClass, rt providers.Runtime) (providers.Provider, error) {
	if rt.Client == nil || rt.Reader == nil {
		return nil, errors.New("open kubernetes provider: it needs a client of the cluster and a reader without a cache")
	}
	if wrong := validation.IsValidLabelValue(rt.ClusterID); rt.ClusterID == "" || len(wrong) > 0 {
		return nil, fmt.Errorf("open kubernetes provider: the cluster id %q is no label value", rt.ClusterID)
	}
	s, problems := read(class)
	if len(problems) > 0 {
		return nil, fmt.Errorf("open kubernetes provider: %w", problems.ToAggregate())
	}
	return newProvider(rt, s), nil
}

// read takes a class's settings in, with their defaults.
func read(class *v1alpha1.ProviderClass) (settings, field.ErrorList) {
	var problems field.ErrorList
	spec := field.NewPath("spec")
	s := settings{class: class.Name, image: DefaultImage, resources: DefaultResources()}
	if block := class.Spec.Kubernetes; block != nil {
		path := spec.Child("kubernetes")
		if block.Image != "" {
			s.image = block.Image
			if strings.ContainsAny(s.image, " \t\r\n") {
				problems = append(problems, field.Invalid(path.Child("image"), s.image, "must be the name of a container image"))
			}
		}
		if block.Resources != nil {
			s.resources = *block.Resources.DeepCopy()
			problems = append(problems, checkResources(path.Child("resources"), s.resources)...)
		}
	}
	if exposure := class.Spec.Exposure; exposure != nil {
		path := spec.Child("exposure")
		ranges, err := parseRanges(exposure.AllowedSourceRanges)
		if err != nil {
			problems = append(problems, field.Invalid(path.Child("allowedSourceRanges"), exposure.AllowedSourceRanges, err.Error()))
		}
		for i, port := range exposure.ConnectPorts {
			if wrong := validation.IsValidPortNum(int(port)); len(wrong) > 0 {
				problems = append(problems, field.Invalid(path.Child("connectPorts").Index(i), port, wrong[0]))
			}
		}
		s.config = Config{
			SourceRanges:        ranges,
			ConnectPorts:        exposure.ConnectPorts,
			AllowPrivateTargets: ptr.Deref(exposure.AllowPrivateTargets, false),
		}
	}
	return s, problems
}

// checkResources finds what the API server would refuse in every pod of the class.
func checkResources(path *field.Path, r corev1.ResourceRequirements) field.ErrorList {
	var problems field.ErrorList
	if len(r.Claims) > 0 {
		problems = append(problems, field.Forbidden(path.Child("claims"), "proxy pods have no resource claims"))
	}
	// In order, since the text ends up in a condition and must be the same each time.
	for _, name := range slices.Sorted(maps.Keys(r.Limits)) {
		limit := r.Limits[name]
		if limit.Sign() < 0 {
			problems = append(problems, field.Invalid(path.Child("limits").Key(string(name)), limit.String(), "must not be negative"))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Requests)) {
		request := r.Requests[name]
		key := path.Child("requests").Key(string(name))
		if request.Sign() < 0 {
			problems = append(problems, field.Invalid(key, request.String(), "must not be negative"))
		}
		if limit, ok := r.Limits[name]; ok && request.Cmp(limit) > 0 {
			problems = append(problems, field.Invalid(key, request.String(), "must not be above the limit of "+limit.String()))
		}
	}
	return problems
}

func uidOf(text string) types.UID { return types.UID(text) }
