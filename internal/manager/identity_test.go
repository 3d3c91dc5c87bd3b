package manager

import (
	"testing"

	"k8s.io/client-go/rest"
)

func TestAnIdentityTellsTheAddressThatIsAdvertised(t *testing.T) {
	for _, address := range []string{"", "10.0.0.1:8091", "[fd00::1]:8091", "core_0.example:8091"} {
		lock, err := electionLock(&rest.Config{Host: "https://127.0.0.1:1"}, Core(), Options{LeaderElect: true, LeaderElectionNamespace: "n", AdvertisedAddress: address})
		if err != nil {
			t.Fatal(err)
		}
		if got := AddressOf(lock.Identity()); got != address {
			t.Errorf("%q became %q", address, got)
		}
	}
	const uuid = "1b4e28ba-2fa1-4d3b-a3f5-ef19b5a7633b"
	if got := AddressOf("my_host_" + uuid + "_10.0.0.1:8091"); got != "10.0.0.1:8091" {
		t.Errorf("a host with a separator in its name has the address %q", got)
	}
	for _, identity := range []string{"", "host", "host_1b4e28ba", "my_host_" + uuid, "a_b_" + uuid + "_"} {
		if got := AddressOf(identity); got != "" {
			t.Errorf("%q has the address %q", identity, got)
		}
	}
}
