package gcp

import (
	"context"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// DefaultEndpoint is Google's.
	DefaultEndpoint = "https://compute.googleapis.com"
	// EndpointVariable names another endpoint for all classes, in the environment of the manager: a private one, or that of a
	// test. It is https, or http on a loopback address.
	EndpointVariable = "EGRESS_GCP_ENDPOINT"
)

// Factory opens classes of type gcp.
type Factory struct {
	// Endpoint of Compute Engine, without a path.
	Endpoint string
}

// NewFactory makes a Factory for the endpoint of the environment, or else Google's.
func NewFactory() *Factory {
	f := &Factory{Endpoint: os.Getenv(EndpointVariable)}
	if f.Endpoint == "" {
		f.Endpoint = DefaultEndpoint
	}
	return f
}

var _ providers.Factory = &Factory{}

// Type implements providers.Factory.
func (f *Factory) Type() v1alpha1.ProviderType { return v1alpha1.ProviderGCP }

// Validate implements providers.Factory.
func (f *Factory) Validate(class *v1alpha1.ProviderClass) field.ErrorList {
	_, problems := read(class)
	return problems
}

// Open implements providers.Factory. It looks for no credentials; the first call does.
func (f *Factory) Open(_ context.Context, class *v1alpha1.ProviderClass, rt providers.Runtime) (providers.Provider, error) {
	if wrong := validation.IsValidLabelValue(rt.ClusterID); rt.ClusterID == "" || len(wrong) > 0 {
		return nil, fmt.Errorf("open gcp provider: the cluster id %q is no label value", rt.ClusterID)
	}
	if !safeEndpoint(f.Endpoint) {
		return nil, providers.NewError(providers.Unavailable, "open gcp provider",
			EndpointVariable+" of the manager must be an https URL, or an http URL of a loopback address", nil)
	}
	s, problems := read(class)
	if len(problems) > 0 {
		return nil, fmt.Errorf("open gcp provider: %w", problems.ToAggregate())
	}
	return newProvider(rt, s, f.Endpoint), nil
}
