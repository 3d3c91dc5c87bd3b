package computetest

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const partialSuccess = "returnPartialSuccess"

// handle answers a call that is in order.
func (s *Server) handle(c *call) (obj, *ErrorAnswer) {
	if c.Zone != "" && s.unreachable[c.Zone] {
		return nil, BackendError(http.StatusServiceUnavailable)
	}
	switch c.Call {
	case Insert:
		return s.insert(c)
	case Get:
		v, refused := s.find(c)
		if refused != nil {
			return nil, refused
		}
		return s.view(v), nil
	case Delete:
		return s.delete(c)
	case AggregatedList:
		return s.aggregatedList(c)
	case List:
		return s.list(c)
	case GetOperation, waitOperation:
		o := s.operations[c.vars["operation"]]
		if o == nil || o.project != c.Project || o.zone != c.Zone {
			return nil, NotFound("projects/" + c.Project + "/zones/" + c.Zone + "/operations/" + c.vars["operation"])
		}
		return s.operationView(o), nil
	case getZone:
		return s.zone(c.Project, c.Zone), nil
	case listZones:
		var items []any
		for _, z := range s.options.Zones {
			items = append(items, s.zone(c.Project, z))
		}
		return obj{"kind": "compute#zoneList", "id": "projects/" + c.Project + "/zones", "items": items, "selfLink": service + "projects/" + c.Project + "/zones"}, nil
	case getProject:
		return obj{
			"kind": "compute#project", "id": "1000", "name": c.Project, "selfLink": service + "projects/" + c.Project,
			"defaultServiceAccount": "1000-compute@developer.gserviceaccount.com", "defaultNetworkTier": "PREMIUM",
		}, nil
	case imageFromFamily:
		family := "projects/" + c.Project + "/global/images/family/" + c.vars["family"]
		if s.lacks(family) {
			return nil, NotFound(family)
		}
		name := c.vars["family"] + "-v1"
		return obj{"kind": "compute#image", "id": "3000", "name": name, "family": c.vars["family"], "status": "READY", "selfLink": service + "projects/" + c.Project + "/global/images/" + name}, nil
	}
	s.t.Errorf("%s %s: this server does not know %s", c.Method, c.URI, c.Call)
	return nil, &ErrorAnswer{Status: http.StatusNotImplemented, Reason: "notImplemented", Message: "not in this server: " + c.Call}
}

func (s *Server) zone(project, zone string) obj {
	return obj{
		"kind": "compute#zone", "id": strconv.Itoa(2000 + slices.Index(s.options.Zones, zone)), "name": zone, "status": "UP",
		"region": service + "projects/" + project + "/regions/" + regionOf(zone), "selfLink": service + "projects/" + project + "/zones/" + zone,
	}
}

func regionOf(zone string) string {
	if i := strings.LastIndexByte(zone, '-'); i >= 0 {
		return zone[:i]
	}
	return zone
}

// nameOf is the name of the instance in a path, which may have its id instead.
func (s *Server) nameOf(vars map[string]string) string {
	for _, v := range s.vms {
		if strconv.FormatUint(v.id, 10) == vars["instance"] && v.project == vars["project"] && v.zone == vars["zone"] {
			return v.name
		}
	}
	return vars["instance"]
}

// find is the VM of a call, once it is visible.
func (s *Server) find(c *call) (*vm, *ErrorAnswer) {
	v := s.vms[instancePath(c.Project, c.Zone, c.Name)]
	if v == nil || !s.visible(v) {
		return nil, NotFound(instancePath(c.Project, c.Zone, c.Name))
	}
	return v, nil
}

func (s *Server) visible(v *vm) bool {
	return v.seeded || s.options.Clock.Since(v.created) >= s.timing.Visible
}

// delete starts a deletion. A second one while the VM stops is refused, as users report.
func (s *Server) delete(c *call) (obj, *ErrorAnswer) {
	if o := s.repeated(c); o != nil {
		return s.operationView(o), nil
	}
	v, refused := s.find(c)
	if refused != nil {
		return nil, refused
	}
	if !v.deleting.IsZero() {
		return nil, RateLimitExceeded()
	}
	if v.body["deletionProtection"] == true {
		return nil, Invalid("resource.deletionProtection", "true", "Resource cannot be deleted if it's protected against deletion.")
	}
	if c.operation == nil {
		v.deleting = s.options.Clock.Now()
	}
	return s.operationView(s.operate(c, "delete", v, s.timing.Delete)), nil
}

// operation is what an accepted call does.
type operation struct {
	id            uint64
	name, typ     string
	project, zone string
	target        string
	targetID      uint64
	requestID     string
	start         time.Time
	takes         time.Duration
	fails         *OperationError
}

// operate notes the operation of a call.
func (s *Server) operate(c *call, typ string, v *vm, takes time.Duration) *operation {
	s.serial++
	o := &operation{
		id: 7000000000000000000 + s.serial, typ: typ, project: v.project, zone: v.zone, target: v.name, targetID: v.id,
		requestID: c.http.URL.Query().Get("requestId"), start: s.options.Clock.Now(), takes: takes, fails: c.operation,
	}
	o.name = fmt.Sprintf("operation-%d-%012x-%08x-%08x", o.start.UnixMilli(), s.serial, s.serial*2654435761%(1<<32), s.serial)
	s.operations[o.name] = o
	if o.requestID != "" {
		s.byRequestID[c.Project+" "+o.requestID] = o
	}
	return o
}

// repeated is the operation that the same requestId got before.
func (s *Server) repeated(c *call) *operation {
	if id := c.http.URL.Query().Get("requestId"); id != "" {
		return s.byRequestID[c.Project+" "+id]
	}
	return nil
}

func (s *Server) operationView(o *operation) obj {
	zone := service + "projects/" + o.project + "/zones/" + o.zone
	view := obj{
		"kind": "compute#operation", "id": strconv.FormatUint(o.id, 10), "name": o.name, "operationType": o.typ, "user": "operator@" + o.project + ".iam.gserviceaccount.com",
		"zone": zone, "selfLink": zone + "/operations/" + o.name, "targetLink": zone + "/instances/" + o.target, "targetId": strconv.FormatUint(o.targetID, 10),
		"insertTime": stamp(o.start), "startTime": stamp(o.start), "status": "RUNNING", "progress": 0,
	}
	if o.requestID != "" {
		view["clientOperationId"] = o.requestID
	}
	end := o.start.Add(o.takes)
	if s.options.Clock.Now().Before(end) {
		return view
	}
	view["status"], view["progress"], view["endTime"] = "DONE", 100, stamp(end)
	if o.fails != nil {
		status := o.fails.Status
		if status == 0 {
			status = http.StatusBadRequest
		}
		view["error"] = obj{"errors": []any{o.fails.body()}}
		view["httpErrorStatusCode"], view["httpErrorMessage"] = status, strings.ToUpper(http.StatusText(status))
	}
	return view
}
