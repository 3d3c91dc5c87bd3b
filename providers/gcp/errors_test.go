package gcp

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/gcp/computetest"
)

// verdict is what a call must say.
type verdict struct {
	reason  providers.Reason
	field   string
	message string // a part of it
	after   time.Duration
}

func (v verdict) check(t *testing.T, what string, err error) {
	t.Helper()
	e, ok := errors.AsType[*providers.Error](err)
	if !ok {
		t.Errorf("%s: got %v, want %s", what, err, v.reason)
		return
	}
	if e.Reason != v.reason || e.Field != v.field || !strings.Contains(providers.StableMessage(e), v.message) || e.RetryAfter != v.after {
		t.Errorf("%s: got %s of %q after %v: %s; want %+v", what, e.Reason, e.Field, e.RetryAfter, providers.StableMessage(e), v)
	}
}

// TestGT6_ErrorsOfInsert: every way in which an insert is refused at once.
func TestGT6_ErrorsOfInsert(t *testing.T) {
	class := func(field string) verdict {
		return verdict{reason: providers.InvalidSpec, field: fieldClass, message: "spec.gcp." + field + " of the class"}
	}
	invalid := func(field string) *computetest.ErrorAnswer {
		return computetest.Invalid(field, "x", "The referenced resource cannot be found.")
	}
	for name, test := range map[string]struct {
		answer *computetest.ErrorAnswer
		want   verdict
	}{
		"G13 quota":               {computetest.QuotaExceeded("IN_USE_ADDRESSES", "europe-west3"), verdict{reason: providers.Capacity, message: "IN_USE_ADDRESSES is used up in region europe-west3"}},
		"G33 rate as quota":       {computetest.RateQuotaExceeded(), verdict{reason: providers.RateLimited}},
		"rate":                    {computetest.RateLimitExceeded().Retry(9), verdict{reason: providers.RateLimited, after: 9 * time.Second}},
		"rate of a user":          {&computetest.ErrorAnswer{Status: 403, Reason: "userRateLimitExceeded", Message: "User Rate Limit Exceeded"}, verdict{reason: providers.RateLimited}},
		"rate in words alone":     {&computetest.ErrorAnswer{Status: 403, Reason: "forbidden", Message: "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' of service 'compute.googleapis.com'."}, verdict{reason: providers.RateLimited}},
		"rate of operations":      {&computetest.ErrorAnswer{Status: 403, Reason: "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED", Message: "Quota exceeded."}, verdict{reason: providers.RateLimited}},
		"rate of an image":        {&computetest.ErrorAnswer{Status: 403, Reason: "RESOURCE_OPERATION_RATE_EXCEEDED", Message: "Operation rate exceeded for resource 'x'."}, verdict{reason: providers.RateLimited}},
		"rate 429":                {computetest.TooManyRequests().Retry(3), verdict{reason: providers.RateLimited, after: 3 * time.Second}},
		"permission":              {computetest.Forbidden("compute.instances.create", testProject), verdict{reason: providers.Auth, message: "compute.instances.create"}},
		"act as":                  {computetest.Forbidden("iam.serviceAccounts.actAs", testProject), verdict{reason: providers.Auth, message: "roles/iam.serviceAccountUser"}},
		"API off":                 {computetest.APIDisabled(testProject), verdict{reason: providers.Auth, message: "not enabled"}},
		"token":                   {computetest.Unauthenticated(), verdict{reason: providers.Auth}},
		"G41 500":                 {computetest.BackendError(500), verdict{reason: providers.Unavailable}},
		"G41 502":                 {computetest.BackendError(502), verdict{reason: providers.Unavailable}},
		"G41 503":                 {computetest.BackendError(503), verdict{reason: providers.Unavailable}},
		"image":                   {invalid("resource.disks[0].initializeParams.sourceImage"), verdict{reason: providers.InvalidSpec, field: fieldImage, message: "does not find"}},
		"image of a zone as 404":  {computetest.NotFound("projects/debian-cloud/zones/europe-west3-a/imageFamilyViews/debian-99"), verdict{reason: providers.InvalidSpec, field: fieldImage}},
		"image as 404":            {computetest.NotFound("projects/debian-cloud/global/images/family/x"), verdict{reason: providers.InvalidSpec, field: fieldImage}},
		"disk type":               {invalid("resource.disks[0].initializeParams.diskType"), class("diskType")},
		"disk size":               {computetest.Invalid("resource.disks[0].initializeParams.diskSizeGb", "10", "Requested disk size cannot be smaller than the image size (20 GB)"), class("diskSizeGb")},
		"user data":               {invalid("resource.metadata.items[2].value"), verdict{reason: providers.InvalidSpec, field: fieldCloudInit}},
		"network":                 {computetest.NotFound("projects/demo-project/global/networks/n"), class("network")},
		"subnetwork":              {computetest.NotFound("projects/demo-project/regions/europe-west3/subnetworks/n"), class("subnetwork")},
		"custom network":          {computetest.Invalid("resource.networkInterfaces[0]", "", "Subnetwork should be specified for custom subnetmode network"), class("subnetwork")},
		"network tier":            {invalid("resource.networkInterfaces[0].accessConfigs[0].networkTier"), class("networkTier")},
		"tag":                     {invalid("resource.tags.items[0]"), class("networkTag")},
		"scheduling":              {invalid("resource.scheduling.instanceTerminationAction"), class("provisioningModel")},
		"account":                 {invalid("resource.serviceAccounts[0].email"), class("serviceAccount")},
		"machine type":            {invalid("resource.machineType"), verdict{reason: providers.InvalidSpec, field: fieldMachineType}},
		"required":                {&computetest.ErrorAnswer{Status: 400, Reason: "required", Message: "Required field 'resource.machineType' not specified"}, verdict{reason: providers.InvalidSpec, field: fieldMachineType}},
		"machine type elsewhere":  {&computetest.ErrorAnswer{Status: 400, Reason: "invalid", Message: "Machine type with name 'e2-micro' does not exist in zone 'europe-west3-a'."}, verdict{reason: providers.Capacity, message: "does not have the machine type"}},
		"cut off":                 {&computetest.ErrorAnswer{Status: 408, Reason: "timeout", Message: "?"}, verdict{reason: providers.Unavailable}},
		"zone of the class":       {computetest.Invalid("zone", "x", "Unknown zone."), class("zones")},
		"project":                 {computetest.NotFound("projects/" + testProject), verdict{reason: providers.Unavailable, message: "spec.gcp.project"}},
		"our bug":                 {invalid("resource.name"), verdict{reason: providers.InvalidSpec, field: fieldClass}},
		"G9 unknown 400":          {&computetest.ErrorAnswer{Status: 400, Reason: "newReason", Message: "No capacity for this today."}, verdict{reason: providers.Unavailable}},
		"G9 unknown 418":          {&computetest.ErrorAnswer{Status: 418, Reason: "teapot", Message: "?"}, verdict{reason: providers.Unavailable}},
		"busy":                    {computetest.NotReady("projects/p/zones/z/disks/d"), verdict{reason: providers.Unavailable}},
		"conflict of another one": {&computetest.ErrorAnswer{Status: 409, Reason: "resourceInUseByAnotherResource", Message: "busy"}, verdict{reason: providers.Unavailable}},
		"stock-out at once":       {&computetest.ErrorAnswer{Status: 503, Reason: "ZONE_RESOURCE_POOL_EXHAUSTED", Message: "no room"}, verdict{reason: providers.Capacity, message: "no capacity left"}},
		"policy":                  {&computetest.ErrorAnswer{Status: 412, Reason: "conditionNotMet", Message: "Constraint constraints/compute.vmExternalIpAccess violated for project 1."}, verdict{reason: providers.Capacity, message: "constraints/compute.vmExternalIpAccess"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			restore := r.Fail(computetest.Fault{Call: computetest.Insert, Answer: test.answer})
			req := newRequest("px", zoneA)
			_, err := r.Create(t.Context(), req)
			test.want.check(t, name, err)
			if err == nil || len(r.VMs()) != 0 || r.Count(computetest.Insert) != 1 {
				t.Errorf("%v; %d VMs, %d inserts", err, len(r.VMs()), r.Count(computetest.Insert))
			}
			restore()
			r.create(req)
		})
	}
}

// TestBadInput_PinnedZone: a zone that the Proxy itself names is named by its field.
func TestBadInput_PinnedZone(t *testing.T) {
	r := newRig(t)
	req := newRequest("px", "europe-west9-z", inZone("europe-west9-z"))
	_, err := r.Create(t.Context(), req)
	verdict{reason: providers.InvalidSpec, field: fieldZone}.check(t, "create", err)
	// Nothing can be there, so the Proxy can go.
	_, err = r.look(refOf(req))
	verdict{reason: providers.NotFound}.check(t, "get", err)
}

// TestBadInput_Specifications: what is missing or illegal is refused by its field before any call.
func TestBadInput_Specifications(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*v1alpha1.ProxySpec)
		field  string
	}{
		"no placement":        {func(s *v1alpha1.ProxySpec) { s.Placement = nil }, fieldMachineType},
		"no machine type":     {func(s *v1alpha1.ProxySpec) { s.Placement.MachineType = "" }, fieldMachineType},
		"machine type as URL": {func(s *v1alpha1.ProxySpec) { s.Placement.MachineType = "zones/a/machineTypes/e2-micro" }, fieldMachineType},
		"machine type":        {func(s *v1alpha1.ProxySpec) { s.Placement.MachineType = "E2 micro" }, fieldMachineType},
		"no image":            {func(s *v1alpha1.ProxySpec) { s.Placement.Image = "" }, fieldImage},
		"image by name":       {func(s *v1alpha1.ProxySpec) { s.Placement.Image = "debian-12" }, fieldImage},
		"image elsewhere":     {func(s *v1alpha1.ProxySpec) { s.Placement.Image = "https://example.com/projects/p/global/images/x" }, fieldImage},
		"image path":          {func(s *v1alpha1.ProxySpec) { s.Placement.Image = "projects/my-project/global/images/../x" }, fieldImage},
		"zone":                {inZone("Europe"), fieldZone},
		"zone path":           {inZone("a-b/../c-d"), fieldZone},
		"region":              {inZone("europe"), fieldZone},
		"binary user data":    {func(s *v1alpha1.ProxySpec) { s.CloudInit = &v1alpha1.CloudInit{Inline: "\x1f\x8b\x08"} }, fieldCloudInit},
		"long user data": {func(s *v1alpha1.ProxySpec) {
			s.CloudInit = &v1alpha1.CloudInit{Inline: strings.Repeat("é", MaxUserData/2+1)}
		}, fieldCloudInit},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			spec := newSpec(test.change)
			verdict{reason: providers.InvalidSpec, field: test.field}.check(t, "validate", r.ValidateSpec(&spec))
			req := newRequest("px", zoneA)
			req.Spec = spec
			if _, err := r.Create(t.Context(), req); providers.ReasonOf(err) != providers.InvalidSpec {
				t.Errorf("create: %v", err)
			}
			if n := r.Count(""); n != 0 {
				t.Errorf("%d calls", n)
			}
		})
	}
	r := newRig(t, func(s *v1alpha1.ProviderClassSpec) { s.GCP.Zones = nil })
	spec := newSpec()
	verdict{reason: providers.InvalidSpec, field: fieldZone, message: "is required"}.check(t, "no zone anywhere", r.ValidateSpec(&spec))
	for _, image := range []string{
		testImage, "projects/p-1234/global/images/debian-12-v1", "global/images/family/mine", "projects/example.com:proj-1/global/images/x",
		"https://www.googleapis.com/compute/v1/" + testImage, "https://compute.googleapis.com/compute/v1/" + testImage,
	} {
		spec := newSpec(inZone(zoneA), func(s *v1alpha1.ProxySpec) { s.Placement.Image = image })
		if err := r.ValidateSpec(&spec); err != nil {
			t.Errorf("%s: %v", image, err)
		}
	}
}

// TestG48_OnlyTheMachineItselfIsNotFound: what else is not found, or who else says so, proves nothing.
func TestG48_OnlyTheMachineItselfIsNotFound(t *testing.T) {
	r := newRig(t)
	ref := refOf(newRequest("px", zoneA))
	path := "projects/" + testProject + "/zones/" + zoneA
	for name, test := range map[string]struct {
		answer *computetest.ErrorAnswer
		want   providers.Reason
	}{
		"the machine":     {computetest.NotFound(path + "/instances/" + ref.Name), providers.NotFound},
		"another machine": {computetest.NotFound(path + "/instances/other"), providers.Unavailable},
		"the project":     {computetest.NotFound("projects/" + testProject), providers.Unavailable},
		"another project": {computetest.NotFound("projects/other"), providers.Unavailable},
		"the zone":        {computetest.NotFound(path), providers.NotFound},
		"new wording":     {&computetest.ErrorAnswer{Status: 404, Reason: "notFound", Message: "There is no such instance."}, providers.NotFound},
		"forbidden":       {computetest.Forbidden("compute.instances.get", testProject), providers.Auth},
		"gone":            {&computetest.ErrorAnswer{Status: http.StatusGone, Reason: "gone", Message: "gone"}, providers.Unavailable},
	} {
		restore := r.Fail(computetest.Fault{Call: computetest.Get, Answer: test.answer})
		_, err := r.look(ref)
		if got := providers.ReasonOf(err); got != test.want {
			t.Errorf("%s: got %v, want %s", name, err, test.want)
		}
		restore()
	}
}

// TestG10_ErrorsAreBrief: a long answer does not make a long message, and is not repeated.
func TestG10_ErrorsAreBrief(t *testing.T) {
	r := newRig(t)
	long := strings.Repeat("The zone does not have enough resources. ", 1000)
	r.Fail(computetest.Fault{Call: computetest.Insert, Answer: &computetest.ErrorAnswer{Status: 503, Reason: "backendError", Message: long}})
	for n := range 3 {
		_, err := r.Create(t.Context(), newRequest(fmt.Sprint("px-", n), zoneA))
		if text := providers.StableMessage(err); len(text) > 200 || len(providers.RawText(err)) > maxRaw+200 {
			t.Errorf("a message of %d and a raw text of %d bytes", len(text), len(providers.RawText(err)))
		}
	}
}

// TestSecrets_UserDataIsNotRepeated: Compute Engine quotes values that it refuses.
func TestSecrets_UserDataIsNotRepeated(t *testing.T) {
	r := newRig(t)
	req := newRequest("px", zoneA)
	req.UserData = []byte("#cloud-config\npassword: \"hunter2\"\n")
	r.Fail(computetest.Fault{Call: computetest.Insert, Answer: computetest.Invalid("resource.metadata.items[2].value", string(req.UserData), "No.")})
	_, err := r.Create(t.Context(), req)
	if text := providers.RawText(err); strings.Contains(text, "hunter2") {
		t.Errorf("the error has the user data: %s", text)
	}
	verdict{reason: providers.InvalidSpec, field: fieldCloudInit}.check(t, "create", err)
}
