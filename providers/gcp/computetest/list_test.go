package computetest

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// listAll reads an aggregated list to its end: the names found, how many answers, and what they warned of, by zone.
func (c *client) listAll(query url.Values) (names []string, pages int, warnings map[string]string, unreachable []any) {
	c.t.Helper()
	warnings = map[string]string{}
	query = maps.Clone(query)
	if query == nil {
		query = url.Values{}
	}
	for {
		code, answer := c.do(http.MethodGet, "aggregated/instances", query, nil)
		if code != http.StatusOK {
			c.t.Fatalf("aggregated list: %d %v", code, answer)
		}
		pages++
		for scope, s := range answer["items"].(obj) {
			in := s.(obj)
			if warning, ok := in["warning"].(obj); ok {
				warnings[scope] = text(warning["code"])
			}
			list, _ := in["instances"].([]any)
			for _, i := range list {
				names = append(names, text(i.(obj)["name"]))
			}
		}
		if lost, ok := answer["unreachables"].([]any); ok {
			unreachable = lost
		}
		next := text(answer["nextPageToken"])
		if next == "" {
			slices.Sort(names)
			return names, pages, warnings, unreachable
		}
		query.Set("pageToken", next)
	}
}

func manyZones(n int) (zones []string) {
	for i := range n {
		zones = append(zones, fmt.Sprintf("region%d-%c", i/3, 'a'+i%3))
	}
	return zones
}

// TestAggregatedListOfManyVMs: 1200 in 30 zones come in pages, each exactly once, though others come and go meanwhile.
func TestAggregatedListOfManyVMs(t *testing.T) {
	zones := manyZones(30)
	c := newClient(t, Options{Zones: zones})
	var want []string
	for i := range 1200 {
		name := fmt.Sprintf("px-%04d", i)
		c.s.Seed(Seed{Project: project, Zone: zones[i%29], Name: name, Labels: map[string]string{"owner": "u1"}})
		want = append(want, name)
	}
	c.s.Seed(Seed{Project: "another-project", Zone: zones[0], Name: "theirs", Labels: map[string]string{"owner": "u1"}})
	c.s.Seed(Seed{Project: project, Zone: zones[0], Name: "foreign"})
	names, pages, warnings, _ := c.listAll(url.Values{"filter": {"labels.owner=u1"}, "maxResults": {"500"}})
	if !slices.Equal(names, want) || pages != 3 {
		t.Errorf("%d VMs in %d pages, want 1200 in 3", len(names), pages)
	}
	if warnings["zones/"+zones[29]] != "NO_RESULTS_ON_PAGE" {
		t.Errorf("warnings %v", warnings)
	}
	listed := 0
	for _, r := range c.s.Requests() {
		listed += r.Listed
	}
	if listed != 1200 || c.s.Count(AggregatedList) != 3 {
		t.Errorf("the server notes %d VMs in %d lists", listed, c.s.Count(AggregatedList))
	}
}

// TestPagesAreStable: a VM that goes between two pages hides no other, and a token is good for its filter only.
func TestPagesAreStable(t *testing.T) {
	c := newClient(t, Options{PageLimit: 2})
	for i := range 4 {
		c.s.Seed(Seed{Project: project, Zone: zoneA, Name: fmt.Sprintf("px-%d", i)})
	}
	_, first := c.do(http.MethodGet, "aggregated/instances", nil, nil)
	c.s.Remove(project, zoneA, "px-0")
	c.s.Remove(project, zoneA, "px-1")
	names, _, _, _ := c.listAll(url.Values{"pageToken": {text(first["nextPageToken"])}})
	if !slices.Equal(names, []string{"px-2", "px-3"}) {
		t.Errorf("the rest is %q", names)
	}
	code, answer := c.do(http.MethodGet, "aggregated/instances", url.Values{"pageToken": {text(first["nextPageToken"])}, "filter": {"labels.a=b"}}, nil)
	wants(t, "a token of another filter", code, answer, http.StatusBadRequest, "invalid")
	code, answer = c.do(http.MethodGet, "aggregated/instances", url.Values{"maxResults": {"501"}}, nil)
	wants(t, "maxResults=501", code, answer, http.StatusBadRequest, "invalid")
}

// TestUnreachableZone: newer versions of the API say so beside the rest, older ones fail unless asked not to.
func TestUnreachableZone(t *testing.T) {
	c := newClient(t, Options{})
	c.s.Seed(Seed{Project: project, Zone: zoneA, Name: "a"})
	c.s.Seed(Seed{Project: project, Zone: zoneB, Name: "b"})
	c.s.SetUnreachable(zoneB, true)
	names, _, warnings, lost := c.listAll(nil)
	if !slices.Equal(names, []string{"a"}) || warnings["zones/"+zoneB] != "UNREACHABLE" || len(lost) != 1 || !strings.HasSuffix(text(lost[0]), "zones/"+zoneB) {
		t.Errorf("got %q with warnings %v, unreachable %v", names, warnings, lost)
	}
	code, answer := c.get(zoneB, "b")
	wants(t, "a get in it", code, answer, http.StatusServiceUnavailable, "backendError")
	c.header.Del("X-Goog-Api-Version")
	code, answer = c.do(http.MethodGet, "aggregated/instances", nil, nil)
	wants(t, "an older client", code, answer, http.StatusServiceUnavailable, "backendError")
	if names, _, _, _ := c.listAll(url.Values{partialSuccess: {"true"}}); !slices.Equal(names, []string{"a"}) {
		t.Errorf("an older client that takes a part gets %q", names)
	}
	c.s.SetUnreachable(zoneB, false)
	if names, _, _, _ := c.listAll(nil); !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("afterwards %q", names)
	}
}

// TestFilters: both kinds, which cannot be mixed.
func TestFilters(t *testing.T) {
	c := newClient(t, Options{})
	for name, labels := range map[string]map[string]string{"a": {"owner": "u1", "tier": "x"}, "b": {"owner": "u1"}, "c": {"owner": "u2", "tier": "x"}, "d": nil} {
		c.s.Seed(Seed{Project: project, Zone: zoneA, Name: name, Labels: labels})
	}
	for filter, want := range map[string]string{
		"":                                        "abcd",
		"labels.owner=u1":                         "ab",
		`labels.owner = "u1" AND labels.tier=x`:   "a",
		"labels.owner=u1 labels.tier=x":           "a",
		"(labels.owner=u1) AND (labels.tier:*)":   "a",
		"labels.tier:*":                           "ac",
		"-labels.tier:*":                          "bd",
		"NOT labels.owner=u1":                     "cd",
		"labels.owner!=u1":                        "cd",
		"labels.owner=u2 OR name=d":               "cd",
		"status=RUNNING AND labels.owner=u2":      "c",
		"labels.owner=u*":                         "abc",
		"name eq [ab]":                            "ab",
		"name ne [ab]":                            "cd",
		"(labels.owner eq u1) (labels.tier eq x)": "a",
		"name=none":                               "",
	} {
		names, _, _, _ := c.listAll(url.Values{"filter": {filter}})
		if got := strings.Join(names, ""); got != want {
			t.Errorf("filter %q: got %q, want %q", filter, got, want)
		}
	}
	for _, filter := range []string{"labels.owner", "labels.owner=", "(labels.owner=u1", "labels.owner=u1)", "labels.owner=u1 AND name eq a", "=", "AND", "labels.owner=u1 AND", `"`} {
		code, answer := c.do(http.MethodGet, "aggregated/instances", url.Values{"filter": {filter}}, nil)
		wants(t, "filter "+filter, code, answer, http.StatusBadRequest, "invalid")
	}
}
