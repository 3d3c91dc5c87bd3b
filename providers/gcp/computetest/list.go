package computetest

import (
	"cmp"
	"encoding/base64"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// maxPage is the default and the largest maxResults.
const maxPage = 500

// partialSince is the API version from which on lists are always partial when a zone is out of reach.
const partialSince = "2026-09-01"

// page is what one answer to a list holds.
type page struct {
	vms  []*vm
	next string
}

// page chooses the VMs of one answer. The token is the last VM before it, so that VMs that come and go meanwhile neither
// hide others nor show them twice.
func (s *Server) page(c *call, zones []string) (page, *ErrorAnswer) {
	query := c.http.URL.Query()
	matches, err := parseFilter(query.Get("filter"))
	if err != nil {
		return page{}, Invalid("filter", query.Get("filter"), "Invalid list filter expression: "+err.Error()+".")
	}
	limit := maxPage
	if asked := query.Get("maxResults"); asked != "" {
		n, err := strconv.Atoi(asked)
		if err != nil || n < 0 || n > maxPage {
			return page{}, Invalid("maxResults", asked, "Values must be within the range of 0 to 500.")
		}
		if n > 0 {
			limit = n
		}
	}
	limit = min(limit, s.options.PageLimit)
	after, refused := pageStart(query.Get("pageToken"), query.Get("filter"))
	if refused != nil {
		return page{}, refused
	}
	var p page
	for _, path := range slices.Sorted(maps.Keys(s.vms)) {
		v := s.vms[path]
		if path <= after || v.project != c.Project || !slices.Contains(zones, v.zone) || s.unreachable[v.zone] || !s.visible(v) || !matches(s.view(v)) {
			continue
		}
		if len(p.vms) == limit {
			p.next = base64.URLEncoding.EncodeToString([]byte(p.vms[limit-1].path() + "\n" + query.Get("filter")))
			break
		}
		p.vms = append(p.vms, v)
	}
	c.Listed = len(p.vms)
	return p, nil
}

// pageStart reads a token, which is good for the same filter only.
func pageStart(token, filter string) (string, *ErrorAnswer) {
	if token == "" {
		return "", nil
	}
	decoded, err := base64.URLEncoding.DecodeString(token)
	path, made, _ := strings.Cut(string(decoded), "\n")
	if err != nil || made != filter {
		return "", Invalid("pageToken", token, "The page token is invalid.")
	}
	return path, nil
}

func (s *Server) list(c *call) (obj, *ErrorAnswer) {
	p, refused := s.page(c, []string{c.Zone})
	if refused != nil {
		return nil, refused
	}
	path := "projects/" + c.Project + "/zones/" + c.Zone + "/instances"
	answer := obj{"kind": "compute#instanceList", "id": path, "selfLink": service + path}
	if items := s.views(p.vms); items != nil {
		answer["items"] = items
	}
	if p.next != "" {
		answer["nextPageToken"] = p.next
	}
	return answer, nil
}

func (s *Server) views(vms []*vm) (items []any) {
	for _, v := range vms {
		items = append(items, s.view(v))
	}
	return items
}

// aggregatedList has every zone in every answer; a zone without VMs there, or out of reach, has a warning instead.
func (s *Server) aggregatedList(c *call) (obj, *ErrorAnswer) {
	var lost []any
	for _, z := range s.options.Zones {
		if s.unreachable[z] {
			lost = append(lost, service+"projects/"+c.Project+"/zones/"+z)
		}
	}
	partial := c.Header.Get("X-Goog-Api-Version") >= partialSince || strings.EqualFold(c.http.URL.Query().Get(partialSuccess), "true")
	if lost != nil && !partial {
		return nil, BackendError(http.StatusServiceUnavailable)
	}
	p, refused := s.page(c, s.options.Zones)
	if refused != nil {
		return nil, refused
	}
	byZone := map[string][]*vm{}
	for _, v := range p.vms {
		byZone[v.zone] = append(byZone[v.zone], v)
	}
	items := obj{}
	for _, z := range s.options.Zones {
		switch {
		case s.unreachable[z]:
			items["zones/"+z] = warned("UNREACHABLE", "The scope 'zones/"+z+"' is unreachable.", z)
		case byZone[z] == nil:
			items["zones/"+z] = warned("NO_RESULTS_ON_PAGE", "There are no results for scope 'zones/"+z+"' on this page.", z)
		default:
			items["zones/"+z] = obj{"instances": s.views(byZone[z])}
		}
	}
	path := "projects/" + c.Project + "/aggregated/instances"
	answer := obj{"kind": "compute#instanceAggregatedList", "id": path, "selfLink": service + path, "items": items}
	if p.next != "" {
		answer["nextPageToken"] = p.next
	}
	if lost != nil {
		answer["unreachables"] = lost
	}
	return answer, nil
}

func warned(code, message, zone string) obj {
	return obj{"warning": obj{"code": code, "message": message, "data": []any{obj{"key": "scope", "value": "zones/" + zone}}}}
}

// VMs are all VMs in all projects, failed ones that are still shown included, in the order of project, zone and name.
func (s *Server) VMs() []VM {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	all := []VM{}
	for _, v := range s.vms {
		all = append(all, s.snapshot(v))
	}
	slices.SortFunc(all, func(a, b VM) int {
		return cmp.Or(cmp.Compare(a.Project, b.Project), cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.Name, b.Name))
	})
	return all
}
