package manager_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/manager"
)

// A name that no Lease can have would keep a manager from ever leading, and so from doing anything.
func TestElectionIDIsTheNameOfALease(t *testing.T) {
	seen := map[string]manager.Role{}
	for _, role := range []manager.Role{
		manager.Core(), manager.Provider(v1alpha1.ProviderKubernetes), manager.Provider(v1alpha1.ProviderKVM),
		manager.Provider("cloud.example.org/vm"), manager.Provider("cloud.example.org/disk"),
	} {
		id := role.ElectionID()
		if problems := validation.IsDNS1123Subdomain(id); len(problems) > 0 {
			t.Errorf("%s: %q: %v", role.Name, id, problems)
		}
		if other, ok := seen[id]; ok {
			t.Errorf("%s and %s share %q", role.Name, other.Name, id)
		}
		seen[id] = role
	}
}
