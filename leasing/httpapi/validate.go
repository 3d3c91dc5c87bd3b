package httpapi

import (
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

const (
	// maxSelector is the most labels of a selector.
	maxSelector = 32
	// maxHolder is the longest holder, identity included, in bytes; the schema's bound.
	maxHolder = 253
	// maxKey is the longest Idempotency-Key, in bytes.
	maxKey = 255
)

// leaseBody checks the body of POST /v1/leases.
type leaseBody wire.LeaseRequest

// reportBody checks the body of POST /v1/leases/{id}/report.
type reportBody wire.ReportRequest

// request checks a body and the headers beside it. Nothing has happened when it fails.
func (b *leaseBody) request(defaultNamespace, identity string, header http.Header) (LeaseRequest, error) {
	r := LeaseRequest{
		Namespace: b.Namespace, Pool: b.Pool, Mode: v1alpha1.LeaseShared, Identity: identity, Holder: identity,
		Targets: slices.Clone(b.Targets),
	}
	if r.Namespace == "" {
		r.Namespace = defaultNamespace
	}
	if err := checkNamespace("namespace", r.Namespace); err != nil {
		return r, err
	}
	var err error
	if r.Selector, err = b.selector(); err != nil {
		return r, err
	}
	if b.Pool != "" {
		if problems := validation.IsDNS1123Subdomain(b.Pool); len(problems) > 0 || len(b.Pool) > 40 {
			return r, invalid("pool", "must be the name of a ProxyPool")
		}
	}
	if b.Proxy != "" {
		if b.Pool != "" || len(b.Selector) > 0 {
			return r, invalid("proxy", "must not be combined with pool or selector")
		}
		if r.Proxy, err = proxyName("proxy", b.Proxy, r.Namespace); err != nil {
			return r, err
		}
	}
	if b.Target != "" {
		r.Targets = append([]string{b.Target}, r.Targets...)
	}
	if err := checkTargets(b, &r); err != nil {
		return r, err
	}
	if b.TTLSeconds != nil {
		if err := checkSeconds("ttlSeconds", *b.TTLSeconds); err != nil {
			return r, err
		}
		r.TTLSeconds = *b.TTLSeconds
	}
	switch b.Mode {
	case "", string(v1alpha1.LeaseShared):
	case string(v1alpha1.LeaseExclusive):
		r.Mode = v1alpha1.LeaseExclusive
	default:
		return r, invalid("mode", "must be Shared or Exclusive")
	}
	if b.Holder != "" {
		r.Holder += "/" + b.Holder
	}
	if len(r.Holder) > maxHolder || strings.ContainsFunc(r.Holder, misleads) {
		return r, invalid("holder", fmt.Sprintf("must not have control characters, those of text direction included, and, with the identity, not more than %d bytes", maxHolder))
	}
	if b.WaitSeconds != nil {
		if err := checkSeconds("waitSeconds", *b.WaitSeconds); err != nil {
			return r, err
		}
		r.Wait = time.Duration(*b.WaitSeconds) * time.Second
	}
	if len(b.Exclude) > v1alpha1.MaxExcludedProxies {
		return r, invalid("exclude", fmt.Sprintf("must not have more than %d entries", v1alpha1.MaxExcludedProxies))
	}
	for i, exclude := range b.Exclude {
		name, err := proxyName(fmt.Sprintf("exclude[%d]", i), exclude, r.Namespace)
		if err != nil {
			return r, err
		}
		if !slices.Contains(r.Exclude, name) {
			r.Exclude = append(r.Exclude, name)
		}
	}
	r.Key, err = idempotencyKey(header)
	return r, err
}

func checkTargets(b *leaseBody, r *LeaseRequest) error {
	for i, target := range r.Targets {
		field := "target"
		if b.Target == "" {
			field = fmt.Sprintf("targets[%d]", i)
		} else if i > 0 {
			field = fmt.Sprintf("targets[%d]", i-1)
		}
		if problem := targetProblem(target); problem != "" {
			return invalid(field, problem)
		}
	}
	slices.Sort(r.Targets)
	r.Targets = slices.Compact(r.Targets)
	if len(r.Targets) > v1alpha1.MaxLeaseTargets {
		return invalid("targets", fmt.Sprintf("must not have more than %d entries", v1alpha1.MaxLeaseTargets))
	}
	return nil
}

// report checks a body.
func (b *reportBody) report() (Report, error) {
	r := Report{Target: b.Target, Result: v1alpha1.ReportResult(b.Result)}
	switch r.Result {
	case v1alpha1.ReportRateLimited, v1alpha1.ReportBanned, v1alpha1.ReportFailed, v1alpha1.ReportOK:
	default:
		return r, invalid("result", "must be rate_limited, banned, failed or ok")
	}
	if b.Target == "" {
		return r, invalid("target", "is required")
	}
	if problem := targetProblem(b.Target); problem != "" {
		return r, invalid("target", problem)
	}
	if s := b.RetryAfterSeconds; s != nil {
		if err := checkSeconds("retryAfterSeconds", *s); err != nil {
			return r, err
		}
		r.RetryAfter = time.Duration(*s) * time.Second
	}
	return r, nil
}

// seconds are the bounds of a field that is a number of seconds.
func seconds(field string) (lowest, highest int32, ok bool) {
	switch field {
	case "ttlSeconds":
		return v1alpha1.MinLeaseTTLSeconds, v1alpha1.MaxLeaseTTLSeconds, true
	case "waitSeconds":
		return 0, wire.MaxWaitSeconds, true
	case "retryAfterSeconds":
		return 0, wire.MaxRetryAfterSeconds, true
	}
	return 0, 0, false
}

func wholeSeconds(lowest, highest int32) string {
	return fmt.Sprintf("a whole number of seconds from %d to %d", lowest, highest)
}

func checkSeconds(field string, value int32) error {
	if lowest, highest, ok := seconds(field); ok && (value < lowest || value > highest) {
		return invalid(field, fmt.Sprintf("must be %s, not %d", wholeSeconds(lowest, highest), value))
	}
	return nil
}

// targetProblem says what is wrong with a target host; empty when nothing is. The rule is the schema's.
func targetProblem(target string) string {
	const want = "must be a lower-case host name or IP address, without scheme or port"
	switch {
	case target == "":
		return want
	case strings.ContainsFunc(target, isControl):
		return want + "; it has a control character"
	case strings.ContainsFunc(target, func(c rune) bool { return c > '~' }):
		return want + "; write international names in their xn-- form"
	case strings.ContainsFunc(target, func(c rune) bool { return c >= 'A' && c <= 'Z' }):
		return want + "; it has an upper-case letter"
	}
	if address, err := netip.ParseAddr(target); err == nil && address.Zone() == "" && !address.Is4In6() && address.String() == target {
		return ""
	}
	if len(validation.IsDNS1123Subdomain(target)) > 0 {
		return want
	}
	return ""
}

// proxyName reads the name of a proxy, or its id "namespace/name".
func proxyName(field, id, namespace string) (string, error) {
	prefix, name, qualified := strings.Cut(id, "/")
	if !qualified {
		prefix, name = namespace, id
	}
	if len(validation.IsDNS1123Subdomain(name)) > 0 || len(name) > 63 {
		return "", invalid(field, "must be the name or the id of a proxy")
	}
	if prefix != namespace {
		return "", invalid(field, "must be a proxy of namespace "+namespace)
	}
	return name, nil
}

func checkNamespace(field, namespace string) error {
	if len(validation.IsDNS1123Label(namespace)) > 0 {
		return invalid(field, "must be the name of a namespace")
	}
	return nil
}

// selector checks the labels that a proxy must have; nil when there are none.
func (b *leaseBody) selector() (map[string]string, error) {
	if len(b.Selector) > maxSelector {
		return nil, invalid("selector", fmt.Sprintf("must not have more than %d labels", maxSelector))
	}
	if b.Selector == nil {
		return nil, nil
	}
	selector := make(map[string]string, len(b.Selector))
	for _, key := range slices.Sorted(maps.Keys(b.Selector)) {
		value := b.Selector[key]
		switch {
		case len(validation.IsQualifiedName(key)) > 0:
			return nil, invalid("selector", "must have label names as keys")
		case value == nil:
			return nil, &Error{Status: http.StatusBadRequest, Code: wire.CodeInvalidBody, Field: "selector." + key, Detail: "must be a string, not null"}
		case len(validation.IsValidLabelValue(*value)) > 0:
			return nil, invalid("selector."+key, "must be a label value")
		case key == v1alpha1.LabelPool && b.Pool != "":
			return nil, invalid("pool", "must not be combined with the selector's label of the same meaning")
		}
		selector[key] = *value
	}
	return selector, nil
}

func idempotencyKey(header http.Header) (string, error) {
	values := header.Values(wire.HeaderKey)
	if len(values) == 0 {
		return "", nil
	}
	key := values[0]
	if len(values) > 1 || key == "" || len(key) > maxKey || strings.ContainsFunc(key, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return "", &Error{
			Status: http.StatusBadRequest, Code: wire.CodeInvalidHeader, Field: wire.HeaderKey,
			Detail: fmt.Sprintf("must be one value of 1 to %d printable ASCII characters without spaces", maxKey),
		}
	}
	return key, nil
}

func isControl(c rune) bool { return c < ' ' || c == 0x7f }

// misleads tells whether a character makes a text look like another one where it is shown.
func misleads(c rune) bool { return unicode.IsControl(c) || unicode.Is(unicode.Bidi_Control, c) }
