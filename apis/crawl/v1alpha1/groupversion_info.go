// Package v1alpha1 is the API of the operator: Proxy, ProxyPool, ProxyLease and ProviderClass.
//
// Conventions that hold for every type here, because they cannot be tightened later:
// durations are integers named ...Seconds and points in time are named ...Time; lists of named things are listType=map; every
// string has a MaxLength and every list a MaxItems; optional booleans and numbers for which zero means something are pointers.
// What is written in status is an open set: no enum and no required child, so that an older CRD never refuses a whole status
// of a newer binary. Numbers name their unit and default in the description; a test walks the generated schemas for that.
//
// +kubebuilder:object:generate=true
// +kubebuilder:ac:generate=true
// +groupName=crawl.example.com
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of all kinds.
const GroupName = "crawl.example.com"

var (
	// SchemeGroupVersion is the group and version of all kinds in this package.
	SchemeGroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}
	// SchemeBuilder registers the kinds of this package.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)
	// AddToScheme adds the kinds of this package to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion,
		&Proxy{}, &ProxyList{},
		&ProxyPool{}, &ProxyPoolList{},
		&ProxyLease{}, &ProxyLeaseList{},
		&ProviderClass{}, &ProviderClassList{},
	)
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}

// Resource returns the group resource of a plural name of this package.
func Resource(plural string) schema.GroupResource {
	return SchemeGroupVersion.WithResource(plural).GroupResource()
}
