package computetest

import (
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	idA = "11111111-2222-3333-4444-555555555555"
	idB = "11111111-2222-3333-4444-666666666666"
)

// TestRequestIDRepeatsTheOperation: also of another answer, of a failure, and of a VM that is gone since.
func TestRequestIDRepeatsTheOperation(t *testing.T) {
	c := newClient(t, Options{})
	defer c.s.Fail(Fault{Call: Insert, Zone: zoneB, Operation: Stockout(zoneB)})()
	for _, zone := range []string{zoneA, zoneB} {
		id := map[string]string{zoneA: idA, zoneB: idB}[zone]
		_, first := c.insert(zone, asked(zone, "px-1"), id)
		code, second := c.insert(zone, asked(zone, "px-1"), id)
		if code != http.StatusOK || second["name"] != first["name"] || second["clientOperationId"] != id {
			t.Errorf("the same insert again: %d %v, want the operation %v", code, second, first["name"])
		}
	}
	if got := len(c.s.VMs()); got != 2 {
		t.Errorf("%d VMs, want 2", got)
	}
	c.clock.Step(DefaultTiming.Running)
	if got := len(c.s.VMs()); got != 1 {
		t.Errorf("%d VMs after the stock-out, want 1", got)
	}
	code, again := c.insert(zoneB, asked(zoneB, "px-1"), idB)
	if code != http.StatusOK || again["error"] == nil || len(c.s.VMs()) != 1 {
		t.Errorf("the same insert after it failed: %d %v, want the failed operation", code, again)
	}
	for _, bad := range []string{"00000000-0000-0000-0000-000000000000", "x"} {
		code, answer := c.insert(zoneA, asked(zoneA, "px-2"), bad)
		wants(t, "requestId "+bad, code, answer, http.StatusBadRequest, "invalid")
	}
}

// TestFailedInsertIsAccepted: only the operation tells why, and the VM is shown for a while.
func TestFailedInsertIsAccepted(t *testing.T) {
	failures := map[string]*OperationError{
		"ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": Stockout(zoneA), "QUOTA_EXCEEDED": OperationQuota("IN_USE_ADDRESSES", "europe-west3"),
		"IP_SPACE_EXHAUSTED_WITH_DETAILS": NoAddresses("default"), "CONDITION_NOT_MET": OrganizationPolicy(project),
		"MACHINE_TYPE_UNSUPPORTED": UnsupportedMachineType("e2-micro", zoneA), "PERMISSIONS_ERROR": Permissions("iam.serviceAccounts.actAs"),
	}
	for code, failure := range failures {
		t.Run(code, func(t *testing.T) {
			c := newClient(t, Options{})
			c.s.Fail(Fault{Call: Insert, Operation: failure})
			inserted := c.create(zoneA, "px-1")
			if status, got := c.get(zoneA, "px-1"); status != http.StatusOK || got["status"] != "PROVISIONING" {
				t.Errorf("meanwhile: %d %v", status, got["status"])
			}
			c.clock.Step(DefaultTiming.Staging)
			status, answer := c.get(zoneA, "px-1")
			wants(t, "afterwards", status, answer, http.StatusNotFound, "notFound")
			done := c.operation(zoneA, inserted)
			failed, _ := done["error"].(obj)
			list, _ := failed["errors"].([]any)
			if done["status"] != "DONE" || len(list) != 1 || list[0].(obj)["code"] != code || done["httpErrorStatusCode"] == nil {
				t.Errorf("the operation is %v", done)
			}
		})
	}
}

// TestIllegalInsertsNameTheirField: what the discovery document does not say, or says in words.
func TestIllegalInsertsNameTheirField(t *testing.T) {
	nic := func(changes obj) []any {
		n := obj{"network": "global/networks/default"}
		maps.Copy(n, changes)
		return []any{n}
	}
	disk := func(changes obj) []any {
		params := obj{"sourceImage": "projects/p/global/images/i"}
		maps.Copy(params, changes)
		return []any{obj{"boot": true, "initializeParams": params}}
	}
	items := func(pairs ...string) obj {
		var list []any
		for i := 0; i < len(pairs); i += 2 {
			list = append(list, obj{"key": pairs[i], "value": pairs[i+1]})
		}
		return obj{"items": list}
	}
	many := obj{}
	for i := range maxLabels + 1 {
		many["l"+strings.Repeat("x", i%60)+string(rune('a'+i/60))] = "v"
	}
	half := strings.Repeat("x", maxMetadataValue)
	tests := []struct {
		what, key, field string
		value            any
	}{
		{"a machine type of another form", "machineType", "resource.machineType", "e2-micro"},
		{"a machine type of another zone", "machineType", "resource.machineType", "zones/" + zoneB + "/machineTypes/e2-micro"},
		{"a machine type that the zone lacks", "machineType", "resource.machineType", "zones/" + zoneA + "/machineTypes/f1-micro"},
		{"a label in capitals", "labels", "resource.labels", obj{"Owner": "u"}},
		{"a label value with a dot", "labels", "resource.labels", obj{"owner": "a.b"}},
		{"a label value too long", "labels", "resource.labels", obj{"owner": strings.Repeat("x", 64)}},
		{"too many labels", "labels", "resource.labels", many},
		{"a tag in capitals", "tags", "resource.tags.items[0]", obj{"items": []any{"Tag"}}},
		{"the same key twice", "metadata", "resource.metadata.items[1].key", items("a", "c", "a", "d")},
		{"a value too large", "metadata", "resource.metadata.items[0].value", items("user-data", half+"x")},
		{"values too large together", "metadata", "resource.metadata", items("a", half, "b", half)},
		{"no disk", "disks", "resource.disks", []any{}},
		{"a first disk that does not boot", "disks", "resource.disks[0].boot", []any{obj{"boot": false}}},
		{"an image without project", "disks", "resource.disks[0].initializeParams.sourceImage", disk(obj{"sourceImage": "family/debian-12"})},
		{"an image that is not there", "disks", "resource.disks[0].initializeParams.sourceImage", disk(obj{"sourceImage": "projects/debian-cloud/global/images/family/debian-99"})},
		{"a disk type of another form", "disks", "resource.disks[0].initializeParams.diskType", disk(obj{"diskType": "pd-ssd"})},
		{"a disk type that is not there", "disks", "resource.disks[0].initializeParams.diskType", disk(obj{"diskType": "zones/" + zoneA + "/diskTypes/pd-none"})},
		{"a disk too small", "disks", "resource.disks[0].initializeParams.diskSizeGb", disk(obj{"diskSizeGb": "9"})},
		{"a network of another form", "networkInterfaces", "resource.networkInterfaces[0].network", nic(obj{"network": "default"})},
		{"a subnetwork of another region", "networkInterfaces", "resource.networkInterfaces[0].subnetwork", nic(obj{"subnetwork": "regions/us-central1/subnetworks/s"})},
		{"a custom network alone", "networkInterfaces", "resource.networkInterfaces[0]", nic(obj{"network": "global/networks/custom"})},
		{"a termination action without SPOT", "scheduling", "resource.scheduling.instanceTerminationAction", obj{"provisioningModel": "STANDARD", "instanceTerminationAction": "DELETE"}},
		{"SPOT that restarts", "scheduling", "resource.scheduling.preemptible", obj{"provisioningModel": "SPOT", "automaticRestart": true}},
		{"SPOT that migrates", "scheduling", "resource.scheduling.preemptible", obj{"provisioningModel": "SPOT", "onHostMaintenance": "MIGRATE"}},
		{"two service accounts", "serviceAccounts", "resource.serviceAccounts", []any{obj{"email": "a@b"}, obj{"email": "c@d"}}},
		{"a service account without scopes", "serviceAccounts", "resource.serviceAccounts[0].scopes", []any{obj{"email": "a@b"}}},
	}
	c := newClient(t, Options{CustomNetworks: []string{"custom"}})
	for _, missing := range []string{"zones/" + zoneA + "/machineTypes/f1-micro", "debian-cloud/global/images/family/debian-99", "diskTypes/pd-none", "global/networks/none"} {
		c.s.SetMissing(missing, true)
	}
	for _, test := range tests {
		body := asked(zoneA, "px-1")
		body[test.key] = test.value
		code, answer := c.insert(zoneA, body, "")
		wants(t, test.what, code, answer, http.StatusBadRequest, "invalid")
		if message := text(cloned(answer["error"])["message"]); !strings.Contains(message, "'"+test.field+"'") {
			t.Errorf("%s: %q does not name %s", test.what, message, test.field)
		}
	}
	body := asked(zoneA, "px-1")
	body["networkInterfaces"] = nic(obj{"network": "global/networks/none"})
	code, answer := c.insert(zoneA, body, "")
	wants(t, "a network that is not there", code, answer, http.StatusNotFound, "notFound")
	code, answer = c.insert("europe-west3-z", asked("europe-west3-z", "px-1"), "")
	wants(t, "a zone that is not there", code, answer, http.StatusBadRequest, "invalid")
	if got := c.s.VMs(); len(got) != 0 {
		t.Errorf("made by illegal inserts: %v", got)
	}
}

// TestGT2_ClientsAreHeldAgainstTheDocument: what Google's document does not have fails the test that owns the server.
func TestGT2_ClientsAreHeldAgainstTheDocument(t *testing.T) {
	tests := map[string]func(*client){
		`unknown field "netwrokInterfaces"`: func(c *client) {
			body := asked(zoneA, "px-1")
			body["netwrokInterfaces"] = []any{}
			c.insert(zoneA, body, "")
		},
		`"PREEMPTIBLE" is not one of`: func(c *client) {
			body := asked(zoneA, "px-1")
			body["scheduling"] = obj{"provisioningModel": "PREEMPTIBLE"}
			c.insert(zoneA, body, "")
		},
		`field "status" is for answers only`: func(c *client) {
			body := asked(zoneA, "px-1")
			body["status"] = "RUNNING"
			c.insert(zoneA, body, "")
		},
		`required field "name" is missing`: func(c *client) {
			body := asked(zoneA, "")
			delete(body, "name")
			c.insert(zoneA, body, "")
		},
		`"Bad_Name" does not match`: func(c *client) { c.insert(zoneA, asked(zoneA, "Bad_Name"), "") },
		`path parameter instance`:   func(c *client) { c.get(zoneA, "Bad_Name") },
		`want boolean`: func(c *client) {
			body := asked(zoneA, "px-1")
			body["deletionProtection"] = "false"
			c.insert(zoneA, body, "")
		},
		`is not a number in a string`: func(c *client) {
			body := asked(zoneA, "px-1")
			body["disks"] = []any{obj{"boot": true, "initializeParams": obj{"sourceImage": "global/images/i", "diskSizeGb": "ten"}}}
			c.insert(zoneA, body, "")
		},
		`items[0].key: "a.b" does not match`: func(c *client) {
			body := asked(zoneA, "px-1")
			body["metadata"] = obj{"items": []any{obj{"key": "a.b", "value": "c"}}}
			c.insert(zoneA, body, "")
		},
		`unknown query parameter fitler`: func(c *client) {
			c.do(http.MethodGet, "aggregated/instances", map[string][]string{"fitler": {"x"}}, nil)
		},
		`illegal value "many"`: func(c *client) {
			c.do(http.MethodGet, "aggregated/instances", map[string][]string{"maxResults": {"many"}}, nil)
		},
		`no method has GET`: func(c *client) { c.do(http.MethodGet, "agregated/instances", nil, nil) },
	}
	for want, send := range tests {
		t.Run(want, func(t *testing.T) {
			blamed := &complaints{TB: t}
			c := clientOf(t, blamed, Options{})
			send(c)
			blamed.want(t, want)
			if got := c.s.VMs(); len(got) != 0 {
				t.Errorf("made all the same: %v", got)
			}
		})
	}
}

// TestGT2_AnswersAreHeldAgainstTheDocument: the server cannot make up fields or states.
func TestGT2_AnswersAreHeldAgainstTheDocument(t *testing.T) {
	blamed := &complaints{TB: t}
	c := clientOf(t, blamed, Options{})
	c.s.Seed(Seed{Project: project, Zone: zoneA, Name: "theirs", Body: obj{"madeUp": true}})
	c.get(zoneA, "theirs")
	blamed.want(t, `answer: unknown field "madeUp"`)
}

// TestALeftDiskIsAttached: a disk of the VM's name that is there already is taken instead of a new one.
func TestALeftDiskIsAttached(t *testing.T) {
	c := newClient(t, Options{Timing: &Timing{Delete: time.Second}})
	body := asked(zoneA, "px-1")
	body["disks"].([]any)[0].(obj)["autoDelete"] = false
	if code, answer := c.insert(zoneA, body, ""); code != http.StatusOK {
		t.Fatalf("insert: %d %v", code, answer)
	}
	c.delete(zoneA, "px-1", "")
	c.clock.Step(time.Second)
	if !c.s.HasDisk(project, zoneA, "px-1") {
		t.Fatal("the disk went although it is not auto-deleted")
	}
	c.create(zoneA, "px-1")
	if v, ok := c.s.VM(project, zoneA, "px-1"); !ok || !v.AttachedLeftDisk {
		t.Errorf("got %+v, want it on the disk that was left", v)
	}
	c.delete(zoneA, "px-1", "")
	c.clock.Step(time.Second)
	if c.s.HasDisk(project, zoneA, "px-1") {
		t.Error("the disk stayed although it is auto-deleted")
	}
}

// TestQuota: VMs that are stopped or being deleted count, until they are gone.
func TestQuota(t *testing.T) {
	c := newClient(t, Options{Timing: &Timing{Delete: time.Second}})
	c.s.SetQuota("europe-west3", 1)
	c.create(zoneA, "px-1")
	c.create("us-central1-a", "px-1")
	for _, change := range []func(){
		func() {}, func() { c.s.SetStatus(project, zoneA, "px-1", statusTerminated) }, func() { c.s.Stop(project, zoneA, "px-1") },
	} {
		change()
		code, answer := c.insert(zoneB, asked(zoneB, "px-2"), "")
		wants(t, "beyond the quota", code, answer, http.StatusForbidden, "quotaExceeded")
	}
	c.clock.Step(time.Second)
	c.create(zoneB, "px-2")
	c.s.SetQuota("europe-west3", -1)
	c.create(zoneB, "px-3")
}

// TestInsertsAtTheSameTime: of many for one name one is accepted, and of many with one requestId all get its operation.
func TestInsertsAtTheSameTime(t *testing.T) {
	c := newClient(t, Options{})
	const n = 8
	codes := make(chan int, 2*n)
	names := make(chan string, n)
	var group sync.WaitGroup
	for range n {
		group.Go(func() {
			code, _ := c.insert(zoneA, asked(zoneA, "px-1"), "")
			codes <- code
		})
		group.Go(func() {
			code, answer := c.insert(zoneB, asked(zoneB, "px-1"), idA)
			codes <- code
			names <- text(answer["name"])
		})
	}
	group.Wait()
	close(codes)
	close(names)
	count := map[int]int{}
	for code := range codes {
		count[code]++
	}
	operations := map[string]bool{}
	for name := range names {
		operations[name] = true
	}
	if count[http.StatusOK] != n+1 || count[http.StatusConflict] != n-1 || len(operations) != 1 || len(c.s.VMs()) != 2 {
		t.Errorf("answers %v, operations %v, VMs %d", count, operations, len(c.s.VMs()))
	}
}
