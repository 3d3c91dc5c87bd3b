package httpapi

import (
	"maps"
	"net/http"
	"net/url"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// maxQueryKeys bounds the query of a list.
const maxQueryKeys = 32

// parseList reads the query of GET /v1/proxies. A key that is not one of the call's own is a label that must be equal.
func parseList(u *url.URL, defaultNamespace string) (q ListQuery, text bool, err error) {
	bad := func(key, detail string) error {
		return &Error{Status: http.StatusBadRequest, Code: wire.CodeInvalidQuery, Field: key, Detail: detail}
	}
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return q, false, bad("", "the query cannot be read")
	}
	if len(values) > maxQueryKeys {
		return q, false, bad("", "the query has too many keys")
	}
	q = ListQuery{Namespace: defaultNamespace, Selector: labels.Everything()}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if len(values[key]) > 1 {
			return q, false, bad(key, "must not be repeated")
		}
		switch value := values[key][0]; key {
		case "healthy":
			if value != "true" && value != "false" {
				return q, false, bad(key, "must be true or false")
			}
			q.Healthy = new(value == "true")
		case "target":
			if problem := targetProblem(value); problem != "" {
				return q, false, bad(key, problem)
			}
			q.Target = value
		case "namespace":
			if checkNamespace(key, value) != nil {
				return q, false, bad(key, "must be the name of a namespace")
			}
			q.Namespace = value
		case "format":
			if value != "json" && value != "txt" {
				return q, false, bad(key, "must be json or txt")
			}
			text = value == "txt"
		case "labelSelector":
			selector, err := labels.Parse(value)
			if err != nil {
				return q, false, bad(key, "must be a label selector")
			}
			requirements, _ := selector.Requirements()
			q.Selector = q.Selector.Add(requirements...)
		case "pool":
			key, name := v1alpha1.LabelPool, key
			if err := equal(&q, key, value); err != nil || value == "" {
				return q, false, bad(name, "must be the name of a ProxyPool")
			}
		default:
			if len(validation.IsQualifiedName(key)) > 0 {
				return q, false, bad(key, "is neither a key of this call nor a label name")
			}
			if equal(&q, key, value) != nil {
				return q, false, bad(key, "must be a label value")
			}
		}
	}
	return q, text, nil
}

func equal(q *ListQuery, label, value string) error {
	requirement, err := labels.NewRequirement(label, selection.Equals, []string{value})
	if err != nil {
		return err
	}
	q.Selector = q.Selector.Add(*requirement)
	return nil
}

// viewOf is a proxy as JSON.
func viewOf(p Proxy) wire.Proxy {
	v := wire.Proxy{
		ID: p.Namespace + "/" + p.Name, Namespace: p.Namespace, Name: p.Name, IP: p.Host, Port: p.Port, Protocol: p.Protocol, URL: p.URL,
		Healthy: p.Healthy, Leasable: p.Leasable, Phase: string(p.Phase), Mode: string(p.Mode), Provider: p.Provider, Pool: p.Pool, Zone: p.Zone,
		EgressIP: p.EgressIP, Labels: p.Labels,
	}
	if v.Labels == nil {
		v.Labels = map[string]string{}
	}
	return v
}
