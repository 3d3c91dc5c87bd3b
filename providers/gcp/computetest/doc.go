// Package computetest is a Compute Engine server on the loopback for tests. It talks plain JSON over HTTP and imports no
// client library.
//
//	s := computetest.New(t, computetest.Options{Clock: clock, Zones: []string{"europe-west3-a", "europe-west3-b"}})
//	endpoint := s.URL                       // http://127.0.0.1:port; the calls are below /compute/v1/
//	restore := s.Fail(computetest.Fault{Call: computetest.Insert, Zone: zone, Operation: computetest.Stockout(zone)})
//	s.Preempt("demo-project", "europe-west3-a", "px-1")
//	s.VMs(); s.Count(computetest.Delete); s.SetUnreachable("europe-west3-b", true)
//
// What it serves: instances.insert, get, delete, list and aggregatedList, zoneOperations.get and wait, and what the gcloud
// program asks besides: zones.get, zones.list, projects.get and images.getFromFamily.
//
// # What keeps it honest
//
//   - Every request (method, path, query parameters, body) and every answer is held against Google's discovery document,
//     compute/v1/compute-api.json of the module google.golang.org/api. A violation fails the test that owns the server.
//   - The gcloud program creates, lists, describes and deletes VMs on it, in this package's tests.
//
// # What is faithful, and where it comes from
//
// From the discovery document: the fields, formats and enumerations; the grammar of names, tags and metadata keys; the
// size limits of metadata; requestId (a UUID but not the nil one; the same id gets the same operation, failed ones too);
// maxResults from 0 to 500, counted over all scopes; NO_RESULTS_ON_PAGE and UNREACHABLE as warnings of a scope; filters
// with comparisons, AND, OR and NOT or with eq and ne, never mixed; the defaults of scheduling; an existing disk of the
// instance's name is attached instead of a new one.
//
// From public reports of users and from the error handling of the Kubernetes autoscaler: an insert is accepted although it
// fails later, then only its operation tells (ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS with details, QUOTA_EXCEEDED,
// IP_SPACE_EXHAUSTED, CONDITION_NOT_MET and so on) and the VM vanishes; errors of the old form have no status field beside
// code and message, newer ones have it and a google.rpc.ErrorInfo; a second delete of a VM that is stopping is 403
// rateLimitExceeded; "Quota exceeded" is the text of two different things; a zone that there is not is told in two ways
// (SetUnknownZone), of which one looks like a lack of rights; the texts that name a field, with reason
// invalid; natIP comes late and goes when a VM is terminated; preemption stops or deletes as the VM's termination action
// says; a get soon after an insert may find nothing.
//
// From the release notes of Google's clients: from API version 2026-09-01 on (header X-Goog-Api-Version) lists are always
// partial when a zone is out of reach, before that only with returnPartialSuccess and otherwise an error.
//
// From gcloud's own source: the grammar of labels; it still sends returnPartialSuccess.
//
// Guessed, since no public source was found: which error a call into an unreachable zone gets (503 backendError), that
// names stay taken while a VM stops, that the server never forgets a requestId (the text says only that it may), the
// wording of a project that is not there, and which scope form unreachables has.
//
// # Credentials
//
// Beside it stand the servers that hand out access tokens, each with errors on demand: ServiceAccount (key files),
// Federation (workload identity federation, with and without impersonation) and Metadata. Isolate keeps a test away from
// the credentials of the user and of the machine; every test that makes a client begins with it.
//
// Time is the clock's: nothing happens in the background. A state changes when somebody looks.
package computetest
