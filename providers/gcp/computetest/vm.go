package computetest

import (
	"fmt"
	"maps"
	"strconv"
	"time"
)

// obj is a JSON object.
type obj = map[string]any

const (
	service = "https://www.googleapis.com/compute/v1/"
	// timeFormat is that of Compute Engine, which keeps time in California.
	timeFormat = "2006-01-02T15:04:05.000-07:00"

	statusRunning    = "RUNNING"
	statusStopping   = "STOPPING"
	statusTerminated = "TERMINATED"
)

var california = time.FixedZone("", -8*60*60)

// VM is what a test may know of a VM.
type VM struct {
	Project, Zone, Name string
	ID                  uint64
	Status              string
	Labels              map[string]string
	// NatIP is the external IPv4 address; "" while there is none.
	NatIP   string
	Created time.Time
	// Metadata are the items of the insert, by key.
	Metadata map[string]string
	// Deleting says that somebody asked for its deletion, or that its termination action deletes it.
	Deleting bool
	// AttachedLeftDisk says that its boot disk was there before it.
	AttachedLeftDisk bool
	// Body is what a get answers, but for its status and addresses.
	Body map[string]any
}

// vm is a VM of the server.
type vm struct {
	project, zone, name string
	id                  uint64
	body                obj
	created             time.Time
	forced              string // status instead of that of the clock
	deleting            time.Time
	fails               *OperationError
	leftDisk            bool
	told                bool // OnRunning was called
	natIP               string
	seeded              bool
}

func (v *vm) path() string { return instancePath(v.project, v.zone, v.name) }

func instancePath(project, zone, name string) string {
	return "projects/" + project + "/zones/" + zone + "/instances/" + name
}

// status is the state at a time.
func (s *Server) status(v *vm) string {
	age := s.options.Clock.Since(v.created)
	switch {
	case !v.deleting.IsZero():
		return statusStopping
	case v.forced != "":
		return v.forced
	case v.seeded || age >= s.timing.Running:
		return statusRunning
	case age >= s.timing.Staging:
		return "STAGING"
	}
	return "PROVISIONING"
}

// guestRuns says whether a VM's programs run. A state that nobody knows changes nothing.
func (s *Server) guestRuns(v *vm) bool {
	switch status := s.status(v); status {
	case statusRunning:
		return v.told || v.seeded || s.options.Clock.Since(v.created) >= s.timing.Address
	case statusStopping, "PENDING_STOP":
		return v.told
	default:
		return s.states[status] && v.told
	}
}

// settle lets the time that has passed take effect.
func (s *Server) settle() {
	now := s.options.Clock.Now()
	for path, v := range s.vms {
		s.endOfRun(v, now)
		failed := v.fails != nil && now.Sub(v.created) >= s.timing.Staging
		deleted := !v.deleting.IsZero() && now.Sub(v.deleting) >= s.timing.Delete
		if failed || deleted {
			s.remove(path)
			continue
		}
		switch runs := s.guestRuns(v); {
		case runs && !v.told:
			s.started(v)
		case !runs && v.told:
			s.stopped(v)
		}
	}
}

// endOfRun ends a VM whose maxRunDuration is over, as its termination action says.
func (s *Server) endOfRun(v *vm, now time.Time) {
	scheduling, _ := v.body["scheduling"].(obj)
	limit, _ := scheduling["maxRunDuration"].(obj)
	text, _ := limit["seconds"].(string)
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || !v.deleting.IsZero() || v.forced == statusTerminated {
		return
	}
	if end := v.created.Add(s.timing.Running + time.Duration(seconds)*time.Second); !now.Before(end) {
		s.terminate(v, end)
	}
}

// terminate ends a VM as its termination action says.
func (s *Server) terminate(v *vm, at time.Time) {
	scheduling, _ := v.body["scheduling"].(obj)
	if scheduling["instanceTerminationAction"] == "DELETE" {
		v.deleting = at
		return
	}
	v.forced = statusTerminated
	v.body["lastStopTimestamp"] = stamp(at)
}

// started gives a VM its address and tells the hook.
func (s *Server) started(v *vm) {
	v.told = true
	if s.options.Hooks.OnRunning != nil {
		v.natIP = s.options.Hooks.OnRunning(s.snapshot(v))
	}
	if v.natIP == "" {
		s.serial++
		// The range is for benchmarks: nothing on the Internet has such an address.
		v.natIP = fmt.Sprintf("198.18.%d.%d", s.serial/250%250, 1+s.serial%250)
	}
}

// stopped takes the address from a VM and tells the hook.
func (s *Server) stopped(v *vm) {
	if !v.told {
		return
	}
	v.told = false
	gone := s.snapshot(v)
	v.natIP = ""
	if s.options.Hooks.OnGone != nil {
		s.options.Hooks.OnGone(gone)
	}
}

// remove takes a VM away with the disks that go with it.
func (s *Server) remove(path string) {
	v := s.vms[path]
	s.stopped(v)
	delete(s.vms, path)
	disks, _ := v.body["disks"].([]any)
	for _, d := range disks {
		if disk := d.(obj); disk["autoDelete"] != true && v.fails == nil {
			source, _ := disk["source"].(string)
			s.disks[relative(source)] = true
		}
	}
}

// view is what a get answers.
func (s *Server) view(v *vm) obj {
	o := maps.Clone(v.body)
	o["status"] = s.status(v)
	var nics []any
	for i, n := range o["networkInterfaces"].([]any) {
		nic := maps.Clone(n.(obj))
		if o["status"] != "PROVISIONING" {
			nic["networkIP"] = fmt.Sprintf("10.%d.%d.%d", 156+i, v.id/250%250, 2+v.id%250)
		}
		if access := addressed(nic["accessConfigs"], obj{"natIP": v.natIP}, v.natIP != ""); access != nil {
			nic["accessConfigs"] = access
		}
		v6 := obj{"externalIpv6": fmt.Sprintf("2001:db8:%x:%x::", i, v.id%0xffff), "externalIpv6PrefixLength": 96}
		if access := addressed(nic["ipv6AccessConfigs"], v6, v.natIP != ""); access != nil {
			nic["ipv6AccessConfigs"], nic["ipv6AccessType"] = access, "EXTERNAL"
		}
		nics = append(nics, nic)
	}
	o["networkInterfaces"] = nics
	return o
}

// addressed copies access configurations, with an address when there is one.
func addressed(configs any, address obj, has bool) []any {
	list, _ := configs.([]any)
	var out []any
	for _, c := range list {
		config := maps.Clone(c.(obj))
		config["kind"] = "compute#accessConfig"
		if has {
			maps.Copy(config, address)
		}
		out = append(out, config)
	}
	return out
}

func (s *Server) snapshot(v *vm) VM {
	out := VM{
		Project: v.project, Zone: v.zone, Name: v.name, ID: v.id, Status: s.status(v), NatIP: v.natIP, Created: v.created, Deleting: !v.deleting.IsZero(),
		AttachedLeftDisk: v.leftDisk, Labels: map[string]string{}, Metadata: map[string]string{}, Body: maps.Clone(v.body),
	}
	labels, _ := v.body["labels"].(obj)
	for k, value := range labels {
		out.Labels[k], _ = value.(string)
	}
	metadata, _ := v.body["metadata"].(obj)
	items, _ := metadata["items"].([]any)
	for _, i := range items {
		item := i.(obj)
		out.Metadata[item["key"].(string)], _ = item["value"].(string)
	}
	return out
}

func stamp(at time.Time) string { return at.In(california).Format(timeFormat) }
