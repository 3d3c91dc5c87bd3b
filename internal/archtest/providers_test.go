package archtest

import (
	"os"
	"slices"
	"testing"
)

// sharedProviders are the packages below providers that serve all types.
var sharedProviders = []string{"providers/guard", "providers/internal", "providers/providertest"}

// TestEveryProviderIsListed: the rule that only cmd knows a provider holds for those that are listed, so a new folder must
// not be forgotten.
func TestEveryProviderIsListed(t *testing.T) {
	entries, err := os.ReadDir("../../providers")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		found++
		path := "providers/" + entry.Name()
		switch typed, shared := slices.Contains(providerTypes, path), slices.Contains(sharedProviders, path); {
		case !typed && !shared:
			t.Errorf("%s is not listed: add it to providerTypes in archtest_test.go if it is a type of provider, which only cmd may import; "+
				"to sharedProviders in providers_test.go if all types use it", path)
		case typed && shared:
			t.Errorf("%s is a type of provider and shared by all of them: it can be one of the two", path)
		}
	}
	if found < 4 {
		t.Errorf("%d folders found below providers: have they moved?", found)
	}
}
