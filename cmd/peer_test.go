package main

import "testing"

// What other replicas are told follows from the flags and from the pod.
func TestAdvertisedAddress(t *testing.T) {
	for name, c := range map[string]struct {
		api       apiOptions
		pod, want string
	}{
		"of the pod":          {apiOptions{peerBindAddress: ":8091"}, "10.0.0.7", "10.0.0.7:8091"},
		"of the pod, IPv6":    {apiOptions{peerBindAddress: "[::]:8091"}, "fd00::7", "[fd00::7]:8091"},
		"unknown":             {apiOptions{peerBindAddress: ":8091"}, "", ""},
		"of the bind address": {apiOptions{peerBindAddress: "127.0.0.1:8091"}, "10.0.0.7", "127.0.0.1:8091"},
		"by a port's name":    {apiOptions{peerBindAddress: ":http-alt"}, "10.0.0.7", "10.0.0.7:8080"},
		"of the flag":         {apiOptions{peerBindAddress: ":8091", peerAdvertisedAddress: "core-0.core:9000"}, "10.0.0.7", "core-0.core:9000"},
		"switched off":        {apiOptions{peerBindAddress: "0", peerAdvertisedAddress: "core-0.core:9000"}, "10.0.0.7", ""},
		"without an API":      {apiOptions{bindAddress: "0", peerBindAddress: ":8091"}, "10.0.0.7", ""},
	} {
		t.Setenv("POD_IP", c.pod)
		if got, err := c.api.advertised(); err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
}
