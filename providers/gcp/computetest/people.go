package computetest

import (
	"maps"
	"time"
)

// Seed is a VM that somebody else made.
type Seed struct {
	Project, Zone, Name string
	Labels              map[string]string
	// Age is how long ago it was made.
	Age time.Duration
	// Body, when set, is merged into what an insert would have asked.
	Body map[string]any
}

// Seed puts a VM there that runs already.
func (s *Server) Seed(seed Seed) VM {
	s.mu.Lock()
	defer s.mu.Unlock()
	labels := obj{}
	for k, v := range seed.Labels {
		labels[k] = v
	}
	body := obj{
		"name": seed.Name, "machineType": "zones/" + seed.Zone + "/machineTypes/e2-micro", "labels": labels,
		"disks":             []any{obj{"boot": true, "autoDelete": true}},
		"networkInterfaces": []any{obj{"accessConfigs": []any{obj{}}}},
	}
	maps.Copy(body, seed.Body)
	s.serial++
	v := &vm{project: seed.Project, zone: seed.Zone, name: seed.Name, id: 4000000000000000000 + s.serial, created: s.options.Clock.Now().Add(-seed.Age), seeded: true}
	v.body = s.complete(body, v)
	s.vms[v.path()] = v
	s.settle()
	return s.snapshot(v)
}

// VM is a VM by its place; false when it is not there.
func (s *Server) VM(project, zone, name string) (VM, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	v := s.vms[instancePath(project, zone, name)]
	if v == nil {
		return VM{}, false
	}
	return s.snapshot(v), true
}

// Remove makes a VM vanish at once. It reports whether there was one.
func (s *Server) Remove(project, zone, name string) bool {
	return s.with(project, zone, name, func(v *vm) { s.remove(v.path()) })
}

// Stop lets somebody delete a VM in the ordinary way: it stops first. It reports whether there was one.
func (s *Server) Stop(project, zone, name string) bool {
	return s.with(project, zone, name, func(v *vm) { v.deleting = s.options.Clock.Now() })
}

// Preempt ends a VM as its termination action says. It reports whether there was one.
func (s *Server) Preempt(project, zone, name string) bool {
	return s.with(project, zone, name, func(v *vm) { s.terminate(v, s.options.Clock.Now()) })
}

// SetStatus holds a VM in a state, also in one that nobody knows; "" gives it back to the clock. A VM that is being deleted
// is STOPPING all the same. It reports whether there was one.
func (s *Server) SetStatus(project, zone, name, status string) bool {
	return s.with(project, zone, name, func(v *vm) {
		if known := s.doc.Schemas["Instance"].Properties["status"]; status != "" {
			probe := check{document: s.doc}
			if probe.value(known, status, ""); len(probe.wrong) > 0 {
				s.states[status] = true
			}
		}
		v.forced = status
	})
}

// with changes a VM and lets the change take effect.
func (s *Server) with(project, zone, name string, change func(*vm)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	v := s.vms[instancePath(project, zone, name)]
	if v == nil {
		return false
	}
	change(v)
	s.settle()
	return true
}

// AddDisk leaves a disk there that no VM has: an insert of a VM of that name attaches it.
func (s *Server) AddDisk(project, zone, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disks["projects/"+project+"/zones/"+zone+"/disks/"+name] = true
}

// HasDisk says whether a disk is there that no VM has.
func (s *Server) HasDisk(project, zone, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	return s.disks["projects/"+project+"/zones/"+zone+"/disks/"+name]
}
