package gcp

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/gcp/computetest"
)

// refuse answers every insert with an error.
func (r *rig) refuse(answer *computetest.ErrorAnswer, change ...func(*v1alpha1.ProxySpec)) error {
	r.t.Helper()
	defer r.Fail(computetest.Fault{Call: computetest.Insert, Answer: answer})()
	_, err := r.Create(r.t.Context(), newRequest("px", zoneA, change...))
	return err
}

// TestGT6_RightsInOtherWords: a right that is missing is told as such, however Compute Engine says it. As a specification that
// is not valid it would be final, and the right that is granted later would change nothing.
func TestGT6_RightsInOtherWords(t *testing.T) {
	actAs := "The user does not have access to service account 'proxy@demo-project.iam.gserviceaccount.com'. User: 'me'. Ask a project owner to grant you the iam.serviceAccountUser role on the service account."
	for name, test := range map[string]struct {
		answer computetest.ErrorAnswer
		want   string
	}{
		"acting as an account, 400":  {computetest.ErrorAnswer{Status: 400, Reason: "badRequest", Message: actAs}, "roles/iam.serviceAccountUser"},
		"acting as an account, code": {computetest.ErrorAnswer{Status: 400, Reason: "badRequest", Message: "SERVICE_ACCOUNT_ACCESS_DENIED - " + actAs}, "roles/iam.serviceAccountUser"},
		"acting as an account, 403":  {computetest.ErrorAnswer{Status: 403, Reason: "forbidden", Message: actAs}, "roles/iam.serviceAccountUser"},
		"denied on a resource":       {computetest.ErrorAnswer{Status: 403, Reason: "forbidden", Message: "Permission 'compute.subnetworks.use' denied on resource (or it may not exist)."}, "compute.subnetworks.use"},
		"is required":                {computetest.ErrorAnswer{Status: 403, Reason: "forbidden", Message: "Permission compute.disks.create is required to perform this operation on project projects/demo-project."}, "compute.disks.create"},
		"billing":                    {computetest.ErrorAnswer{Status: 403, Reason: "forbidden", ErrorInfo: "BILLING_DISABLED", Message: "This API method requires billing to be enabled."}, "billing"},
		"scopes":                     {*computetest.ScopesInsufficient(), "auth/compute, which no role replaces"},
		"scopes, older":              {computetest.ErrorAnswer{Status: 403, Reason: "insufficientPermissions", Message: "Insufficient Permission: Request had insufficient authentication scopes."}, "auth/compute, which no role replaces"},
		"scopes, oldest":             {computetest.ErrorAnswer{Status: 403, Reason: "forbidden", Message: "Request had insufficient authentication scopes."}, "auth/compute, which no role replaces"},
		"scopes, other words":        {computetest.ErrorAnswer{Status: 403, Reason: "forbidden", ErrorInfo: "ACCESS_TOKEN_SCOPE_INSUFFICIENT", Message: "?"}, "auth/compute, which no role replaces"},
		"that reason without scopes": {computetest.ErrorAnswer{Status: 403, Reason: "insufficientPermissions", Message: "Insufficient Permission"}, "may not do this in the project"},
		"suspended":                  {computetest.ErrorAnswer{Status: 403, Reason: "forbidden", ErrorInfo: "CONSUMER_SUSPENDED", Message: "Permission denied: Consumer 'project:demo-project' has been suspended."}, "suspended"},
	} {
		verdict{reason: providers.Auth, message: test.want}.check(t, name, newRig(t).refuse(&test.answer))
	}
	r := newRig(t)
	outcome{providers.Auth, "", "roles/iam.serviceAccountUser"}.check(t, "operation",
		r.vanish("px", zoneA, &computetest.OperationError{Code: "SERVICE_ACCOUNT_ACCESS_DENIED", Message: actAs, Status: 400}))
}

// TestGT6_PoliciesInOtherWords: all of them are waited for, and a policy about places closes only the place.
func TestGT6_PoliciesInOtherWords(t *testing.T) {
	const policy = "a policy of the organization forbids the machine"
	for name, test := range map[string]struct {
		answer computetest.ErrorAnswer
		want   string
	}{
		"with digits":      {computetest.ErrorAnswer{Status: 412, Reason: "conditionNotMet", Message: "Constraint constraints/compute.requireV2Something violated for project 1."}, policy + ": constraints/compute.requireV2Something"},
		"custom, 400":      {computetest.ErrorAnswer{Status: 400, Reason: "invalid", Message: `Operation denied by custom org policy: ["customConstraints/custom.onlyE2-2": "Only e2 machines."].`}, policy + ": customConstraints/custom.onlyE2-2"},
		"several, 412":     {computetest.ErrorAnswer{Status: 412, Reason: "conditionNotMet", Message: "Multiple constraints were violated. See details for more information."}, policy},
		"without a reason": {computetest.ErrorAnswer{Status: 412, Reason: "new", Message: "?"}, policy},
		"of places":        {computetest.ErrorAnswer{Status: 412, Reason: "conditionNotMet", Message: "Location ZONE:" + zoneA + " violates constraint constraints/gcp.resourceLocations on the resource projects/demo-project."}, policy + ": constraints/gcp.resourceLocations"},
	} {
		r := newRig(t)
		verdict{reason: providers.Capacity, message: test.want}.check(t, name, r.refuse(&test.answer))
		open := len(r.places(nil))
		if wantOpen := map[bool]int{true: 2, false: 3}[name == "of places"]; open != wantOpen {
			t.Errorf("%s: %d zones are open, want %d", name, open, wantOpen)
		}
	}
}

// TestGT6_ThingsOfOthers: accounts that there are not, and disks that hold the machine's name.
func TestGT6_ThingsOfOthers(t *testing.T) {
	const account = "spec.gcp.serviceAccount of the class"
	for name, message := range map[string]string{
		"account": `Service account "proxy@demo-project.iam.gserviceaccount.com" does not exist.`,
		"one of":  "The resource 'One of [proxy@demo-project.iam.gserviceaccount.com]' of type 'serviceAccount' was not found.",
	} {
		err := newRig(t).refuse(&computetest.ErrorAnswer{Status: 400, Reason: "badRequest", Message: message})
		verdict{reason: providers.InvalidSpec, field: fieldClass, message: account}.check(t, name, err)
	}
	r, req := newRig(t), newRequest("px", zoneA)
	disk := "projects/" + testProject + "/zones/" + zoneA + "/disks/" + r.disk(req)
	verdict{reason: providers.Conflict, message: "disk"}.check(t, "disk", r.refuse(computetest.AlreadyExists(disk)))
}

// TestG9_OperationsOfMachinesThatWereDeleted: a machine that somebody deletes while it is made ends its operation with an
// error. It says nothing about the specification, which must not be given up for it.
func TestG9_OperationsOfMachinesThatWereDeleted(t *testing.T) {
	name := newRequest("px", zoneA).Name
	for _, resource := range []string{"instances/" + name, "disks/" + name, "disks/" + name + "-3f0c1c5e"} {
		how := &computetest.OperationError{Code: "RESOURCE_NOT_FOUND", Status: 404, Message: "The resource 'projects/" + testProject + "/zones/" + zoneA + "/" + resource + "' was not found"}
		outcome{}.check(t, resource, newRig(t).vanish("px", zoneA, how))
	}
	how := &computetest.OperationError{Code: "RESOURCE_NOT_FOUND", Status: 404, Message: "The resource 'projects/demo-project/global/networks/n' was not found"}
	outcome{providers.InvalidSpec, fieldClass, "spec.gcp.network of the class"}.check(t, "network", newRig(t).vanish("px", zoneA, how))
}

// TestG16_QuotaByItsDetails: the metric is named also when only the details have it, in whatever case.
func TestG16_QuotaByItsDetails(t *testing.T) {
	how := &computetest.OperationError{
		Code: "QUOTA_EXCEEDED", Status: 403, Message: "The request exceeds a quota.", Metadata: map[string]string{"region": "europe-west3"},
		QuotaMetric: "compute.googleapis.com/n2_cpus", QuotaLimit: 8,
	}
	outcome{providers.Capacity, "", "the project's quota of n2_cpus is used up in region europe-west3 (QUOTA_EXCEEDED)"}.check(t, "operation", newRig(t).vanish("px", zoneA, how))
}

// TestG21_PinnedZoneOfTheClass: a Proxy that names a zone is told that the zone lacks the machine type, also when the class
// has other zones, to which it will not go.
func TestG21_PinnedZoneOfTheClass(t *testing.T) {
	err := newRig(t).vanish("px", zoneA, computetest.UnsupportedMachineType("e2-micro", zoneA), inZone(zoneA))
	outcome{providers.InvalidSpec, fieldMachineType, "does not have the machine type"}.check(t, "get", err)
}

// TestBadInput_ZonesThatThereAreNot: Compute Engine has two ways to say so. The Proxy names its field, and can be corrected and
// deleted: a zone that there is not has no machine. Only a complete list of the zones says that, and no refusal.
func TestBadInput_ZonesThatThereAreNot(t *testing.T) {
	const nowhere = "europe-west9-z"
	for name, answer := range map[string]func(zone string) *computetest.ErrorAnswer{
		"400": nil, "403": computetest.NoLocation,
		"404": func(zone string) *computetest.ErrorAnswer {
			return computetest.NotFound("projects/" + testProject + "/zones/" + zone)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if answer != nil {
				r.SetUnknownZone(answer)
			}
			req := newRequest("px", nowhere, inZone(nowhere))
			_, err := r.Create(t.Context(), req)
			verdict{reason: providers.InvalidSpec, field: fieldZone}.check(t, "create", err)
			_, err = r.look(refOf(req))
			verdict{reason: providers.NotFound}.check(t, "get", err)
			verdict{reason: providers.NotFound}.check(t, "delete", r.Delete(t.Context(), refOf(req)))

			other := openProvider(t, r.URL, r.clock, newClass("b", func(s *v1alpha1.ProviderClassSpec) { s.GCP.Zones = []string{zoneA, nowhere} }))
			_, err = other.Create(t.Context(), newRequest("px", nowhere))
			verdict{reason: providers.InvalidSpec, field: fieldClass, message: "spec.gcp.zones of the class"}.check(t, "a zone of the class", err)
		})
	}
	r := newRig(t)
	there := r.create(newRequest("px", zoneA))
	r.Fail(computetest.Fault{Call: computetest.Get, Answer: computetest.NoLocation(zoneA)})
	if _, err := r.look(there); providers.ReasonOf(err) != providers.Auth {
		t.Errorf("a zone that there is, and must not be used: %v", err)
	}
	away := refOf(newRequest("px", nowhere))
	r.SetUnknownZone(computetest.NoLocation)
	r.SetUnreachable(zoneB, true)
	if _, err := r.look(away); providers.ReasonOf(err) != providers.Unavailable {
		t.Errorf("while a zone does not answer: %v", err)
	}
	r.SetUnreachable(zoneB, false)
	r.Fail(computetest.Fault{Call: computetest.AggregatedList, Answer: computetest.Forbidden("compute.instances.list", testProject)})
	if _, err := r.look(away); providers.ReasonOf(err) != providers.Auth {
		t.Errorf("while zones must not be listed: %v", err)
	}
}

// TestSecrets_UserDataDecidesNothing: Compute Engine quotes values that it refuses, and operations do so long after the insert.
func TestSecrets_UserDataDecidesNothing(t *testing.T) {
	r, req := newRig(t), newRequest("px", zoneA)
	req.UserData = []byte("#cloud-config\n# QUOTA_EXCEEDED, said the doc: password hunter2\n")
	restore := r.Fail(computetest.Fault{Call: computetest.Insert, Answer: &computetest.ErrorAnswer{Status: 400, Reason: "new", Message: "We do not like " + string(req.UserData)}})
	_, err := r.Create(t.Context(), req)
	verdict{reason: providers.Unavailable}.check(t, "create", err)
	restore()
	how := &computetest.OperationError{Code: "INVALID_FIELD_VALUE", Message: "Invalid value for field 'resource.metadata.items[2].value': 'password hunter2'. No."}
	err = newRig(t).vanish("px", zoneA, how)
	outcome{providers.InvalidSpec, fieldCloudInit, ""}.check(t, "get", err)
	if text := providers.RawText(err); strings.Contains(text, "hunter2") {
		t.Errorf("the error has the user data: %s", text)
	}
}

// TestSecrets_TinyUserDataGarblesNothing: what is too short to tell anything stands in every sentence.
func TestSecrets_TinyUserDataGarblesNothing(t *testing.T) {
	for _, data := range []string{"e", "in", " ", "#"} {
		r, req := newRig(t), newRequest("px", zoneA)
		req.UserData = []byte(data)
		restore := r.Fail(computetest.Fault{Call: computetest.Insert, Answer: computetest.QuotaExceeded("IN_USE_ADDRESSES", "europe-west3")})
		_, err := r.Create(t.Context(), req)
		verdict{reason: providers.Capacity, message: "IN_USE_ADDRESSES is used up in region europe-west3"}.check(t, data, err)
		restore()
	}
}

// TestZoneBook_ForgetsWhatIsOver: machine types are the user's words, and there is no end of them.
func TestZoneBook_ForgetsWhatIsOver(t *testing.T) {
	r := newRig(t)
	for n := range 1000 {
		r.book.note(zoneA, fmt.Sprint("type-", n), causeUnsupported)
		r.clock.Step(UnsupportedCooldown)
	}
	if n := len(r.book.entries); n > 3 {
		t.Errorf("%d entries", n)
	}
}

// TestList_HoldsNoUserData: a list of a large class would hold a quarter of a megabyte for each machine.
func TestList_HoldsNoUserData(t *testing.T) {
	r, req := newRig(t), newRequest("px", zoneA)
	req.UserData = slices.Repeat([]byte("#"), MaxUserData)
	r.runs(r.create(req))
	all, missing, err := r.listAll(t.Context(), filterOf("cluster", "a"))
	if err != nil || missing != nil || len(all) != 1 || len(all[0].GetMetadata().GetItems()) != 0 {
		t.Errorf("%d machines, %v, %v", len(all), missing, err)
	}
}
