package gcp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/compute/metadata"
	"google.golang.org/api/googleapi"

	"crawl.example.com/egress-proxies-operator/providers"
)

// What is being done, as errors say it.
const (
	opCreate  = "insert machine"
	opGet     = "get machine"
	opDelete  = "delete machine"
	opList    = "list machines"
	opExplain = "get operation"
)

// about is what a call was about, for the meaning of its errors.
type about struct {
	// zone and name of the VM; "" for lists.
	zone, name string
	// insert is set for an insert: then a resource that is not found is not the VM.
	insert bool
	// machineType and pinned, of an insert: whether the Proxy names the zone.
	machineType string
	pinned      bool
	// operation is set for the look at an operation: what is not found is that.
	operation bool
	// secret must not come back in an error.
	secret string
}

// callOption says what a call is about.
type callOption func(*about)

func instanceIn(zone, name string) callOption { return func(a *about) { a.zone, a.name = zone, name } }

func secretUserData(data []byte) callOption { return func(a *about) { a.secret = string(data) } }

func attemptIn(req providers.CreateRequest) callOption {
	return func(a *about) {
		a.insert, a.zone, a.name = true, req.Zone, req.Name
		a.machineType, a.pinned = req.Spec.Placement.MachineType, req.Spec.Placement.Zone != ""
	}
}

// call makes a call and puts its error into the taxonomy. Credentials that were refused are looked for again next time, except
// for want of the right to read operations, which an account may lack for good.
func (p *Provider) call(ctx context.Context, op string, do func(*session) error, options ...callOption) error {
	var a about
	for _, set := range options {
		set(&a)
	}
	s, err := p.session(ctx)
	if err != nil {
		return err
	}
	err = p.classify(op, do(s), a)
	if providers.ReasonOf(err) == providers.Auth && !a.operation {
		p.renew(s)
	}
	return err
}

// classify puts an error of a call into the taxonomy. What it does not know is Unavailable.
func (p *Provider) classify(op string, err error, a about) error {
	if err == nil {
		return nil
	}
	raw := errors.New(redact(err.Error(), a.secret))
	if known, ok := errors.AsType[*tokenError](err); ok {
		return tokenFailure(op, known, raw)
	}
	answer, ok := answerOf(err)
	if !ok {
		// Neither Compute Engine nor anything on the way has answered.
		return providers.NewError(providers.Unavailable, op, "", raw)
	}
	// What a user wrote decides nothing.
	answer.message = redact(answer.message, a.secret)
	e := p.judge(answer, a)
	if e.Err != nil {
		raw = fmt.Errorf("%w: %w", e.Err, raw)
	}
	e.Op, e.Err = op, raw
	return e
}

// maxRaw bounds the raw text of an error, in bytes: a body of something in between may be long.
const maxRaw = 2000

// minSecret is the shortest user data that is taken out, in bytes. What is shorter can do nothing and tells nothing, and is in
// every sentence.
const minSecret = 8

// redact takes user data out of a raw error: Compute Engine repeats values that it refuses.
func redact(text, secret string) string {
	if len(secret) >= minSecret {
		text = strings.ReplaceAll(text, secret, "[user data]")
		text = strings.ReplaceAll(text, strings.Trim(strconv.Quote(secret), `"`), "[user data]")
	}
	// A part of it may be quoted, and operations tell of it when nobody knows it any more.
	if field := fieldOf(text); strings.Contains(field, ".metadata") {
		text = "Invalid value for field '" + field + "'"
	}
	if len(text) > maxRaw {
		text = strings.ToValidUTF8(text[:maxRaw], "") + "..."
	}
	return text
}

// tokenFailure is why there was no token: credentials that are refused, or a server that does not answer.
func tokenFailure(op string, known *tokenError, raw error) error {
	const refused = "the Application Default Credentials are refused or cannot be read"
	const silent = "no token for the Application Default Credentials can be had: there are no credentials, or the token or metadata server does not answer"
	if e, ok := errors.AsType[*auth.Error](known); ok {
		if !e.Temporary() && e.Response != nil && e.Response.StatusCode < http.StatusInternalServerError {
			return providers.NewError(providers.Auth, op, refused, raw)
		}
		return providers.NewError(providers.Unavailable, op, silent, raw)
	}
	if e, ok := errors.AsType[*metadata.Error](known); ok {
		if e.Code == http.StatusForbidden || e.Code == http.StatusUnauthorized {
			return providers.NewError(providers.Auth, op, "the metadata server gives no token to this account", raw)
		}
		return providers.NewError(providers.Unavailable, op, silent, raw)
	}
	if _, ok := errors.AsType[metadata.NotDefinedError](known); ok {
		return providers.NewError(providers.Auth, op, "the metadata server has no service account", raw)
	}
	if _, ok := errors.AsType[*fs.PathError](known); ok {
		// A file that is missing or cannot be read, such as the projected token of a workload identity. What the system says of it
		// would pass for an error of the network.
		return providers.NewError(providers.Auth, op, refused, raw)
	}
	if _, ok := errors.AsType[net.Error](known); ok || errors.Is(known, context.Canceled) || errors.Is(known, context.DeadlineExceeded) {
		return providers.NewError(providers.Unavailable, op, silent, raw)
	}
	if code := group(tokenStatus, known.Error()); code != "" && (code[0] == '5' || code == "429" || code == "408") {
		// Federation and impersonation have no error type for it.
		return providers.NewError(providers.Unavailable, op, silent, raw)
	}
	return providers.NewError(providers.Auth, op, refused, raw)
}

// answer is an error as Compute Engine says it.
type answer struct {
	status  int
	message string
	// reasons are the machine-readable ones of the old form and of the new one.
	reasons    []string
	retryAfter time.Duration
	// structured tells that it is Compute Engine's: something in between answers in other forms.
	structured bool
}

// answerOf reads the answer out of an error of the client library.
func answerOf(err error) (answer, bool) {
	e, ok := errors.AsType[*googleapi.Error](err)
	if !ok {
		return answer{}, false
	}
	a := answer{status: e.Code, message: e.Message, structured: len(e.Errors) > 0 || len(e.Details) > 0}
	for _, item := range e.Errors {
		a.reasons = append(a.reasons, item.Reason)
	}
	for _, detail := range e.Details {
		if fields, ok := detail.(map[string]any); ok {
			if reason, ok := fields["reason"].(string); ok {
				a.reasons = append(a.reasons, reason)
			}
		}
	}
	if seconds, err := strconv.Atoi(e.Header.Get("Retry-After")); err == nil && seconds > 0 {
		a.retryAfter = time.Duration(seconds) * time.Second
	}
	return a, true
}

func (a answer) has(reasons ...string) bool {
	return slices.ContainsFunc(a.reasons, func(r string) bool { return slices.Contains(reasons, r) })
}

// judge gives an answer its reason. The order counts: "Quota exceeded" is said of the rate of calls too, and a 403 may be a
// right, a quota, a policy or a rate.
func (p *Provider) judge(a answer, x about) *providers.Error {
	switch {
	case a.status == http.StatusUnauthorized:
		return providers.NewError(providers.Auth, "", "Compute Engine refuses the credentials", nil)
	case a.status == http.StatusTooManyRequests, a.has(rateCodes...), a.status == http.StatusForbidden && tooFast(a.message, a.reasons):
		limited := providers.NewError(providers.RateLimited, "", "", nil)
		limited.RetryAfter = a.retryAfter
		return limited
	case !a.structured && a.status < http.StatusInternalServerError:
		return providers.NewError(providers.Unavailable, "", "something between the operator and Compute Engine answered", nil)
	}
	if why, text := lack(a.message, a.reasons); why != "" && x.insert {
		return p.lacking(why, text, x)
	}
	switch a.status {
	case http.StatusForbidden:
		if x.zone != "" && group(locationPattern, a.message) == x.zone {
			return p.noLocation(a, x)
		}
		return forbidden(a)
	case http.StatusPreconditionFailed:
		if x.insert {
			return p.lacking(causePolicy, policyText(a.message), x)
		}
	case http.StatusConflict:
		switch {
		case !x.insert || !a.has("alreadyExists", "ALREADY_EXISTS", "RESOURCE_ALREADY_EXISTS"):
		case strings.HasPrefix(p.inZone(x.zone, resourceOf(a.message)), "disks/"):
			return providers.NewError(providers.Conflict, "", "a disk that belongs to no machine of the operator has the machine's name; it must be deleted first", nil)
		default:
			return providers.NewError(providers.AlreadyExists, "", "", nil)
		}
	case http.StatusNotFound:
		return p.missing(a, x)
	case http.StatusBadRequest:
		return p.badRequest(a, x)
	}
	return providers.NewError(providers.Unavailable, "", "Compute Engine answers with an error of its own", nil)
}

// lackOfScope is about a token that is good, of an account that may have all rights.
const lackOfScope = "the token of the operator's account lacks the scope " + scopeCompute +
	", which no role replaces: use workload identity, or give the cluster's nodes the scope"

// forbidden tells apart what Compute Engine forbids.
func forbidden(a answer) *providers.Error {
	switch {
	case a.has("accessNotConfigured", "SERVICE_DISABLED"):
		return providers.NewError(providers.Auth, "", "the Compute Engine API is not enabled in the project", nil)
	case a.has("BILLING_DISABLED"):
		return providers.NewError(providers.Auth, "", "the project has no billing", nil)
	case a.has("CONSUMER_SUSPENDED"):
		return providers.NewError(providers.Auth, "", "the project is suspended", nil)
	case a.has("ACCESS_TOKEN_SCOPE_INSUFFICIENT"), strings.Contains(a.message, "insufficient authentication scopes"):
		// What the nodes of a cluster give to pods without workload identity. Reasons alone do not tell it from a right that is missing.
		return providers.NewError(providers.Auth, "", lackOfScope, nil)
	case permissionPattern.MatchString(a.message), actAsPattern.MatchString(a.message):
		return providers.NewError(providers.Auth, "", lackOfPermission(a.message), nil)
	}
	return providers.NewError(providers.Auth, "", "the operator's account may not do this in the project", nil)
}

// lackOfPermission names the permission that a message is about.
func lackOfPermission(message string) string {
	const actAs = "iam.serviceAccounts.actAs"
	switch name := group(permissionPattern, message); {
	case name == actAs, actAsPattern.MatchString(message):
		return "the operator's account lacks the permission " + actAs + " on spec.gcp.serviceAccount of the class: grant it roles/iam.serviceAccountUser"
	case name != "":
		return "the operator's account lacks the permission " + name + " in the project"
	}
	return "the operator's account lacks a permission in the project"
}

// errNoLocation is in the errors of calls into a zone that there is not, or that the project may not use.
var errNoLocation = errors.New("no such location, or no right to it")

func (p *Provider) noLocation(a answer, x about) *providers.Error {
	if x.insert {
		return p.refused("zone", a.message, x)
	}
	return providers.NewError(providers.Auth, "", "there is no such zone, or the project may not use it", errNoLocation)
}

// inZone is a resource's path from the zone on, such as instances/NAME; "" for one of another place.
func (p *Provider) inZone(zone, resource string) string {
	path, ok := strings.CutPrefix(resource, "projects/"+p.project+"/zones/"+zone+"/")
	if !ok {
		return ""
	}
	return path
}

// missing is about a 404. Only that which names the VM itself, or a zone that there is not, says that the VM is not there.
func (p *Provider) missing(a answer, x about) *providers.Error {
	resource := resourceOf(a.message)
	project := "projects/" + p.project
	switch {
	case resource == project:
		return providers.NewError(providers.Unavailable, "", "spec.gcp.project of the class does not exist", nil)
	case x.operation:
		return providers.NewError(providers.NotFound, "", "", nil)
	case x.insert:
		return p.refused(resource, a.message, x)
	case x.name == "":
	case p.inZone(x.zone, resource) == "instances/"+x.name, resource == project+"/zones/"+x.zone,
		resource == "" && a.has("notFound", "NOT_FOUND", "RESOURCE_NOT_FOUND"):
		return providers.NewError(providers.NotFound, "", "", nil)
	}
	return providers.NewError(providers.Unavailable, "", "Compute Engine does not find what the request needs", nil)
}

func (p *Provider) badRequest(a answer, x about) *providers.Error {
	field := fieldOf(a.message)
	switch {
	case field == "zone" && !x.insert && x.name != "":
		// A zone that there is not has no VM.
		return providers.NewError(providers.NotFound, "", "", nil)
	case field == "project":
		return providers.NewError(providers.Unavailable, "", "spec.gcp.project of the class is not valid", nil)
	case x.insert && actAsPattern.MatchString(a.message):
		return providers.NewError(providers.Auth, "", lackOfPermission(a.message), nil)
	case x.insert && a.has("invalid", "required", "badRequest", "invalidParameter", "parseError"):
		return p.refused(field, a.message, x)
	}
	return providers.NewError(providers.Unavailable, "", "Compute Engine refuses the request", nil)
}

// lacking is about an attempt for which something is missing at Compute Engine. The zone is left alone for a while.
func (p *Provider) lacking(why cause, text string, x about) *providers.Error {
	p.book.note(x.zone, x.machineType, why)
	if why == causeUnsupported && (x.pinned || p.nowhere(x.machineType)) {
		return providers.InvalidField(fieldMachineType, "%s", text)
	}
	return providers.NewError(providers.Capacity, "", text, nil)
}

// nowhere tells whether no zone of the class has a machine type.
func (p *Provider) nowhere(machineType string) bool {
	for _, zone := range p.zones {
		if !p.book.lacks(zone, machineType) {
			return false
		}
	}
	return true
}
