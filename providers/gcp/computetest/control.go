package computetest

import (
	"net/http"
	"slices"
)

// Calls by the name of the discovery document.
const (
	Insert         = "instances.insert"
	Get            = "instances.get"
	Delete         = "instances.delete"
	List           = "instances.list"
	AggregatedList = "instances.aggregatedList"
	GetOperation   = "zoneOperations.get"

	waitOperation   = "zoneOperations.wait"
	getZone         = "zones.get"
	listZones       = "zones.list"
	getProject      = "projects.get"
	imageFromFamily = "images.getFromFamily"
)

// Fault makes calls fail. Of Answer, Operation, Hang, Drop and Down exactly one is set.
type Fault struct {
	// Call, Zone and Name choose the calls; "" is any. The aggregated list has no zone and no name.
	Call, Zone, Name string
	// Skip lets so many calls pass first.
	Skip int
	// Times is how many calls fail then; 0 is all, until the fault is taken back.
	Times int

	// Answer is sent instead of the real one.
	Answer *ErrorAnswer
	// Operation lets an insert or a delete be accepted and fail later.
	Operation *OperationError
	// Hang sends nothing until the client gives up, the fault is taken back or the server ends.
	Hang bool
	// Drop closes the connection without an answer. Go's client repeats a get by itself when the connection was used before.
	Drop bool
	// Down takes a zone out of reach with this call, which is answered. SetUnreachable brings the zone back.
	Down string
	// Commit lets the call take effect before Answer, Hang or Drop.
	Commit bool
}

type fault struct {
	Fault
	seen int
	over chan struct{}
}

// Fail makes calls fail until restore is called. Of several faults for a call the oldest counts.
func (s *Server) Fail(f Fault) (restore func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	added := &fault{Fault: f, over: make(chan struct{})}
	s.faults = append(s.faults, added)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if i := slices.Index(s.faults, added); i >= 0 {
			s.faults = slices.Delete(s.faults, i, i+1)
			close(added.over)
		}
	}
}

// fault chooses the fault of a call; nil is none.
func (s *Server) fault(c *call) *fault {
	for _, f := range s.faults {
		if f.Call != "" && f.Call != c.Call || f.Zone != "" && f.Zone != c.Zone || f.Name != "" && f.Name != c.Name {
			continue
		}
		if f.Times > 0 && f.seen >= f.Skip+f.Times {
			continue
		}
		if f.seen++; f.seen > f.Skip {
			return f
		}
	}
	return nil
}

// play does to a connection what a fault says.
func (s *Server) play(w http.ResponseWriter, c *call, f *fault) {
	switch {
	case f.Answer != nil:
		s.send(w, c, f.Answer.Status, f.Answer.Header, f.Answer.body())
		return
	case f.Hang:
		select {
		case <-c.http.Context().Done():
		case <-f.over:
		case <-s.closing:
		}
	}
	panic(http.ErrAbortHandler) // closes the connection without an answer
}

// Requests are all calls so far.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Request
	for _, r := range s.requests {
		all = append(all, *r)
	}
	return all
}

// Count is how many calls of a kind arrived; "" counts all.
func (s *Server) Count(call string) int {
	n := 0
	for _, r := range s.Requests() {
		if call == "" || r.Call == call {
			n++
		}
	}
	return n
}

// ForgetRequests empties the list of calls.
func (s *Server) ForgetRequests() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = nil
}

// SetTiming changes how long things take, for VMs that are there as well.
func (s *Server) SetTiming(timing Timing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timing = timing
}

// SetToken changes the bearer token that calls need; "" is none.
func (s *Server) SetToken(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = token
}

// SetUnreachable takes a zone out of reach: lists say so, and calls into it fail.
func (s *Server) SetUnreachable(zone string, unreachable bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unreachable[zone] = unreachable
}

// SetUnknownZone changes what calls into a zone that there is not are answered with. Users report UnknownZone and NoLocation.
func (s *Server) SetUnknownZone(answer func(zone string) *ErrorAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unknownZone = answer
}

// SetMissing says that something that an insert can refer to is not there, by the end of its path:
// zones/europe-west3-a/machineTypes/e2-micro, global/networks/n, regions/europe-west3/subnetworks/s,
// debian-cloud/global/images/family/debian-99. Everything else of legal form is there.
func (s *Server) SetMissing(resource string, missing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missing[resource] = missing
}

// SetQuota bounds the VMs of a project in a region, stopped and failing ones included; a negative limit is none. An insert
// beyond it is refused at once.
func (s *Server) SetQuota(region string, limit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.quotas, region); limit >= 0 {
		s.quotas[region] = limit
	}
}

// overQuota says whether a project has no room for one more VM.
func (s *Server) overQuota(project, region string) bool {
	limit, bounded := s.quotas[region]
	for _, v := range s.vms {
		if v.project == project && regionOf(v.zone) == region {
			limit--
		}
	}
	return bounded && limit <= 0
}

// Settle lets the time that has passed take effect now instead of at the next call.
func (s *Server) Settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
}
