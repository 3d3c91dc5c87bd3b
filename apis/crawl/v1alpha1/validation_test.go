package v1alpha1_test

import (
	"context"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

// object parses a manifest, filling in apiVersion, namespace and a name.
func object(t *testing.T, namespace, kind, body string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(body), &object.Object); err != nil {
		t.Fatalf("manifest: %v", err)
	}
	object.SetAPIVersion("crawl.example.com/v1alpha1")
	object.SetKind(kind)
	if object.GetName() == "" {
		object.SetGenerateName("x-")
	}
	if kind != "ProviderClass" {
		object.SetNamespace(namespace)
	}
	return object
}

// TestA43_InvalidObjectsAreRefused: an invalid object of each kind is refused by the API server with an error that names
// the field.
func TestA43_InvalidObjectsAreRefused(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	long := strings.Repeat("x", 64)
	for _, test := range []struct{ name, kind, body, want string }{
		{"managed without provider", "Proxy", `spec: {mode: Managed}`, "spec.provider"},
		{"managed with external", "Proxy", `spec: {provider: a, external: {host: a.example}}`, "spec.external"},
		{"external without host", "Proxy", `spec: {mode: External}`, "spec.external"},
		{"external with provider", "Proxy", `spec: {mode: External, provider: a, external: {host: a.example}}`, "spec.provider"},
		{"external with placement", "Proxy", `spec: {mode: External, placement: {zone: z}, external: {host: a.example}}`, "spec.placement"},
		{"host with port", "Proxy", `spec: {mode: External, external: {host: "a.example:3128"}}`, "spec.external.host"},
		{"host with scheme", "Proxy", `spec: {mode: External, external: {host: "http://a.example"}}`, "spec.external.host"},
		{"host in upper case", "Proxy", `spec: {mode: External, external: {host: "A.example"}}`, "spec.external.host"},
		{"unknown mode", "Proxy", `spec: {mode: Rented, provider: a}`, "spec.mode"},
		{"port too large", "Proxy", `spec: {provider: a, port: 65536}`, "spec.port"},
		{"port as text", "Proxy", `spec: {provider: a, port: "3128"}`, "spec.port"},
		{"unknown protocol", "Proxy", `spec: {provider: a, protocol: SOCKS5}`, "spec.protocol"},
		{"capacity zero", "Proxy", `spec: {provider: a, capacity: 0}`, "spec.capacity"},
		{"two cloud-inits", "Proxy", `spec: {provider: a, cloudInit: {inline: x, secretKeyRef: {name: a, key: b}}}`, "spec.cloudInit"},
		{"two replicas", "Proxy", `spec: {provider: a, immutableReplicas: 2}`, "spec.immutableReplicas"},
		{"negative drain", "Proxy", `spec: {provider: a, deletion: {drainTimeoutSeconds: -1}}`, "spec.deletion.drainTimeoutSeconds"},
		{"plain http target", "Proxy", `spec: {provider: a, healthCheck: {targets: [{url: "http://a.example/"}]}}`, "spec.healthCheck.targets[0].url"},
		{"target with user", "Proxy", `spec: {provider: a, healthCheck: {targets: [{url: "https://u:p@a.example/"}]}}`, "spec.healthCheck.targets[0].url"},
		{"five targets", "Proxy", `spec: {provider: a, healthCheck: {targets: [{url: "https://a.example/"}, {url: "https://b.example/"}, {url: "https://c.example/"}, {url: "https://d.example/"}, {url: "https://e.example/"}]}}`, "spec.healthCheck.targets"},
		{"bad exit range", "Proxy", `spec: {provider: a, healthCheck: {exitIP: {cidrs: ["10.0.0.0/33"]}}}`, "spec.healthCheck.exitIP.cidrs"},
		{"long name", "Proxy", `{metadata: {name: ` + long + `}, spec: {provider: a}}`, "metadata: Invalid value: metadata.name must be at most 63 characters"},
		{"unknown field", "Proxy", `spec: {provider: a, prot: 3128}`, `"spec.prot"`},

		{"no type", "ProviderClass", `spec: {allowedNamespaces: {from: All}}`, "spec.type"},
		{"unknown type", "ProviderClass", `spec: {type: azure, allowedNamespaces: {from: All}}`, "spec.type"},
		{"type longer than a finalizer", "ProviderClass", `spec: {type: cloud.example.org/` + strings.Repeat("v", 37) + `, allowedNamespaces: {from: All}}`, "spec.type"},
		{"no namespaces", "ProviderClass", `spec: {type: kubernetes}`, "spec.allowedNamespaces"},
		{"selector missing", "ProviderClass", `spec: {type: kubernetes, allowedNamespaces: {from: Selector}}`, "spec.allowedNamespaces.selector"},
		{"gcp without block", "ProviderClass", `spec: {type: gcp, allowedNamespaces: {from: All}}`, "spec.gcp"},
		{"gcp disk smaller than Compute Engine's smallest", "ProviderClass", `spec: {type: gcp, allowedNamespaces: {from: All}, gcp: {project: my-project, diskSizeGb: 9}}`, "spec.gcp.diskSizeGb"},
		{"other block", "ProviderClass", `spec: {type: kubernetes, gcp: {project: my-project}, allowedNamespaces: {from: All}}`, "spec.gcp"},
		{"key outside of its folder", "ProviderClass", `spec: {type: kvm, allowedNamespaces: {from: All}, kvm: {sshKeyFile: /etc/shadow, insecureIgnoreHostKey: true, hosts: [{name: a, address: a, user: u}], machineTypes: [{name: s, cpus: 1, memory: 1Gi}]}}`, "spec.kvm.sshKeyFile"},
		{"key path that climbs", "ProviderClass", `spec: {type: kvm, allowedNamespaces: {from: All}, kvm: {sshKeyFile: /etc/proxy-operator/kvm/../../shadow, insecureIgnoreHostKey: true, hosts: [{name: a, address: a, user: u}], machineTypes: [{name: s, cpus: 1, memory: 1Gi}]}}`, "spec.kvm.sshKeyFile"},
		{"no known hosts", "ProviderClass", `spec: {type: kvm, allowedNamespaces: {from: All}, kvm: {sshKeyFile: /etc/proxy-operator/kvm/id, hosts: [{name: a, address: a, user: u}], machineTypes: [{name: s, cpus: 1, memory: 1Gi}]}}`, "spec.kvm.knownHostsFile"},
		{"bad source range", "ProviderClass", `spec: {type: kubernetes, allowedNamespaces: {from: All}, exposure: {allowedSourceRanges: ["10.0.0.0"]}}`, "spec.exposure.allowedSourceRanges"},
		{"bad connect port", "ProviderClass", `spec: {type: kubernetes, allowedNamespaces: {from: All}, exposure: {connectPorts: [0]}}`, "spec.exposure.connectPorts[0]"},
		{"unknown scope", "ProviderClass", `spec: {type: kubernetes, allowedNamespaces: {from: All}, egressScope: Some}`, "spec.egressScope"},

		{"negative replicas", "ProxyPool", `spec: {replicas: -1, template: {spec: {provider: a}}}`, "spec.replicas"},
		{"huge replicas", "ProxyPool", `spec: {replicas: 5001, template: {spec: {provider: a}}}`, "spec.replicas"},
		{"no template", "ProxyPool", `spec: {replicas: 1}`, "spec.template"},
		{"template without provider", "ProxyPool", `spec: {template: {spec: {port: 1}}}`, "spec.template.spec.provider"},
		{"template with mode", "ProxyPool", `spec: {template: {spec: {provider: a, mode: External}}}`, `"spec.template.spec.mode"`},
		{"reserved label", "ProxyPool", `spec: {template: {metadata: {labels: {crawl.example.com/pool: b}}, spec: {provider: a}}}`, "spec.template.metadata.labels"},
		{"both fenceposts zero", "ProxyPool", `spec: {strategy: {maxSurge: 0, maxUnavailable: "0%"}, template: {spec: {provider: a}}}`, "spec.strategy.maxUnavailable"},
		{"bad percentage", "ProxyPool", `spec: {strategy: {maxSurge: "101%"}, template: {spec: {provider: a}}}`, "spec.strategy.maxSurge"},
		{"default above max", "ProxyPool", `spec: {leases: {defaultTTLSeconds: 100, maxTTLSeconds: 50}, template: {spec: {provider: a}}}`, "spec.leases.defaultTTLSeconds"},
		{"pool name too long", "ProxyPool", `{metadata: {name: ` + long[:41] + `}, spec: {template: {spec: {provider: a}}}}`, "metadata: Invalid value: metadata.name must be at most 40 characters"},

		{"nothing asked for", "ProxyLease", `spec: {ttlSeconds: 60}`, "spec.selector"},
		{"two things asked for", "ProxyLease", `spec: {selector: {}, proxyName: a}`, "spec.selector"},
		{"ttl too short", "ProxyLease", `spec: {selector: {}, ttlSeconds: 9}`, "spec.ttlSeconds"},
		{"ttl too long", "ProxyLease", `spec: {selector: {}, ttlSeconds: 86401}`, "spec.ttlSeconds"},
		{"target with port", "ProxyLease", `spec: {selector: {}, targets: ["a.example:443"]}`, "spec.targets"},
		{"target in upper case", "ProxyLease", `spec: {selector: {}, targets: ["A.example"]}`, "spec.targets"},
		{"target as IDN", "ProxyLease", `spec: {selector: {}, targets: ["bücher.example"]}`, "spec.targets"},
		{"target with control character", "ProxyLease", `spec: {selector: {}, targets: ["a\r\nb"]}`, "spec.targets"},
		{"holder with control character", "ProxyLease", `spec: {selector: {}, holder: "a\nb"}`, "spec.holder"},
		{"unknown lease mode", "ProxyLease", `spec: {selector: {}, mode: Both}`, "spec.mode"},
		{"unknown result", "ProxyLease", `spec: {selector: {}, reports: [{target: a.example, result: slow}]}`, "spec.reports[0].result"},
	} {
		t.Run(test.kind+" "+test.name, func(t *testing.T) {
			err := env.Client.Create(context.Background(), object(t, namespace, test.kind, test.body), client.FieldValidation("Strict"))
			if err == nil {
				t.Fatal("the object was accepted")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error does not name %s: %v", test.want, err)
			}
		})
	}
}

// TestA43_ImmutableFields: what may not change is refused by name; what may change is accepted.
func TestA43_ImmutableFields(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	for _, test := range []struct{ name, kind, before, after, want string }{
		{"mode", "Proxy", `spec: {provider: a}`, `spec: {mode: External, external: {host: a.example}}`, "spec.mode"},
		{"provider", "Proxy", `spec: {provider: a}`, `spec: {provider: b}`, "spec.provider"},
		{"port may change", "Proxy", `spec: {provider: a}`, `spec: {provider: a, port: 8080}`, ""},
		{"type", "ProviderClass", `spec: {type: kubernetes, allowedNamespaces: {from: All}}`, `spec: {type: a.example/b, allowedNamespaces: {from: All}}`, "spec.type"},
		{"controllerName", "ProviderClass", `spec: {type: kubernetes, allowedNamespaces: {from: All}}`, `spec: {type: kubernetes, controllerName: a.example/b, allowedNamespaces: {from: All}}`, "spec.controllerName"},
		{"image may change", "ProviderClass", `spec: {type: kubernetes, allowedNamespaces: {from: All}}`, `spec: {type: kubernetes, kubernetes: {image: b}, allowedNamespaces: {from: All}}`, ""},
		{"gcp project", "ProviderClass", `spec: {type: gcp, allowedNamespaces: {from: All}, gcp: {project: my-project}}`, `spec: {type: gcp, allowedNamespaces: {from: All}, gcp: {project: my-project-2}}`, "spec.gcp.project"},
		{"gcp zones may change", "ProviderClass", `spec: {type: gcp, allowedNamespaces: {from: All}, gcp: {project: my-project}}`, `spec: {type: gcp, allowedNamespaces: {from: All}, gcp: {project: my-project, zones: [a-b]}}`, ""},
		{"pool provider may change", "ProxyPool", `spec: {template: {spec: {provider: a}}}`, `spec: {template: {spec: {provider: b}}}`, ""},
		{"selector", "ProxyLease", `spec: {selector: {}}`, `spec: {selector: {matchLabels: {a: b}}}`, "spec.selector"},
		{"selector swapped", "ProxyLease", `spec: {selector: {}}`, `spec: {proxyName: a}`, "spec."},
		{"ttl", "ProxyLease", `spec: {selector: {}, ttlSeconds: 60}`, `spec: {selector: {}, ttlSeconds: 70}`, "spec.ttlSeconds"},
		{"ttl unset", "ProxyLease", `spec: {selector: {}, ttlSeconds: 60}`, `spec: {selector: {}}`, "spec.ttlSeconds"},
		{"grant set later", "ProxyLease", `spec: {selector: {}}`, `spec: {selector: {}, grant: {proxyName: a, proxyUID: b, epoch: 1, seq: 1, expireTime: "2030-01-01T00:00:00.000000Z"}}`, "spec.grant"},
		{"holder", "ProxyLease", `spec: {selector: {}, holder: a}`, `spec: {selector: {}, holder: b}`, "spec.holder"},
		{"renewTime may change", "ProxyLease", `spec: {selector: {}}`, `spec: {selector: {}, renewTime: "2030-01-01T00:00:00.000000Z"}`, ""},
		{"reports may change", "ProxyLease", `spec: {selector: {}}`, `spec: {selector: {}, reports: [{target: a.example, result: banned}]}`, ""},
	} {
		t.Run(test.kind+" "+test.name, func(t *testing.T) {
			created := object(t, namespace, test.kind, test.before)
			if err := env.Client.Create(context.Background(), created); err != nil {
				t.Fatalf("create: %v", err)
			}
			changed := object(t, namespace, test.kind, test.after)
			changed.SetName(created.GetName())
			changed.SetGenerateName("")
			changed.SetResourceVersion(created.GetResourceVersion())
			err := env.Client.Update(context.Background(), changed)
			switch {
			case test.want == "" && err != nil:
				t.Errorf("the change was refused: %v", err)
			case test.want != "" && err == nil:
				t.Error("the change was accepted")
			case test.want != "" && !strings.Contains(err.Error(), test.want):
				t.Errorf("the error does not name %s: %v", test.want, err)
			}
		})
	}
}

// TestDefaultsAndSubresources: what a user leaves out is filled in, and a fresh object says that it waits.
func TestDefaultsAndSubresources(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	for _, test := range []struct {
		kind, body string
		want       map[string]any
	}{
		{"Proxy", `spec: {provider: a}`, map[string]any{
			"spec.mode": "Managed", "spec.port": int64(3128), "spec.protocol": "HTTP", "spec.leasing": "Enabled",
			"spec.replacePolicy": "Automatic", "spec.immutableReplicas": int64(1), "status": "Ready=Unknown/Pending"}},
		{"ProxyPool", `spec: {template: {spec: {provider: a}}}`, map[string]any{"spec.replicas": int64(1), "status": "Ready=Unknown/Pending"}},
		{"ProviderClass", `spec: {type: kubernetes, allowedNamespaces: {from: All}}`, map[string]any{
			"spec.controllerName": "crawl.example.com/default", "spec.garbageCollection": "Delete", "status": "Accepted=Unknown/Pending"}},
		{"ProxyLease", `spec: {selector: {}}`, map[string]any{"spec.mode": "Shared", "spec.onProxyFailure": "Keep"}},
	} {
		t.Run(test.kind, func(t *testing.T) {
			created := object(t, namespace, test.kind, test.body)
			if err := env.Client.Create(context.Background(), created); err != nil {
				t.Fatalf("create: %v", err)
			}
			for path, want := range test.want {
				if path == "status" {
					conditions, _, _ := unstructured.NestedSlice(created.Object, "status", "conditions")
					if len(conditions) != 1 {
						t.Fatalf("status has conditions %v, want one", conditions)
					}
					c := conditions[0].(map[string]any)
					if got := c["type"].(string) + "=" + c["status"].(string) + "/" + c["reason"].(string); got != want {
						t.Errorf("fresh status is %s, want %s", got, want)
					}
					continue
				}
				got, _, _ := unstructured.NestedFieldNoCopy(created.Object, strings.Split(path, ".")...)
				if got != want {
					t.Errorf("%s = %v, want %v", path, got, want)
				}
			}
		})
	}
}
