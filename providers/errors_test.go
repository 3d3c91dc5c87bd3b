package providers_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"crawl.example.com/egress-proxies-operator/providers"
)

// What does not fit makes the API server refuse the whole status, and then nothing of the instance is remembered.
func TestStableMessage_FitsIntoStatus(t *testing.T) {
	for name, err := range map[string]error{
		"bytes":      providers.InvalidField("spec.provider", "%s", strings.Repeat("x", 5000)),
		"characters": providers.NewError(providers.Capacity, "", strings.Repeat("ü", 5000), nil),
	} {
		got := providers.StableMessage(err)
		if n := utf8.RuneCountInString(got); n != providers.MaxMessage || !utf8.ValidString(got) {
			t.Errorf("%s: %d characters, want %d", name, n, providers.MaxMessage)
		}
	}
	exact := strings.Repeat("ü", providers.MaxMessage)
	if got := providers.StableMessage(providers.NewError(providers.Capacity, "", exact, nil)); got != exact {
		t.Error("what fits is cut")
	}
}

func TestStableMessage(t *testing.T) {
	raw := errors.New("request 4711 failed")
	for want, err := range map[string]error{
		"": nil,
		"the provider cannot be reached or did not answer": raw,
		"the provider has no capacity or quota left":       providers.NewError(providers.Capacity, "create instance", "", raw),
		"the zone is full":                providers.NewError(providers.Capacity, "create instance", "the zone is full", raw),
		"spec.placement.zone: is no zone": providers.InvalidField("spec.placement.zone", "is no zone"),
	} {
		if got := providers.StableMessage(err); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
