package main

import (
	"slices"
	"strings"
	"testing"
)

func TestIDsOf(t *testing.T) {
	for name, want := range map[string][]string{
		"TestL3_NeverTwoProxies":            {"L3"},
		"TestLedger/L8_late_event":          {"L8"},
		"TestP1P2_Storm":                    {"P1", "P2"},
		"TestA22_X/GT7_more":                {"A22", "GT7"},
		"TestL1_L2_Both":                    {"L1", "L2"},
		"TestT07_Clean":                     {"T7"},
		"TestSchemaWalk":                    nil,
		"TestHTTP2IsOff":                    nil,
		"TestBase64/SHA256":                 nil,
		"TestDemo1_Fleet":                   nil,
		"TestCommand/H10_unknown_field_x":   {"H10"},
		"TestResume/R1_a_restart_keeps_all": {"R1"},
	} {
		if got := idsOf(name); !slices.Equal(got, want) {
			t.Errorf("idsOf(%q) = %v, want %v", name, got, want)
		}
	}
}

func TestReport(t *testing.T) {
	entries, err := readCatalogue(strings.NewReader("| id | scenario | out |\n|---|---|---|\n| A1 | one | |\n| A2 | two | comes later |\n| A3 | three | |\n| A4 | four | |\n"))
	if err != nil {
		t.Fatal(err)
	}
	found, err := readResults(strings.NewReader(strings.Join([]string{
		"# a line of the build",
		`{"Action":"pass","Package":"p","Test":"TestA1_One"}`,
		`{"Action":"skip","Package":"p","Test":"TestA3_Three"}`,
		`{"Action":"fail","Package":"p","Test":"TestA4_Four"}`,
	}, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if report(&out, entries, found) {
		t.Error("a missing and a failed scenario were accepted")
	}
	want := "scenario A1 pass TestA1_One\nscenario A2 out comes later\nscenario A3 missing: no test proves it and docs/scenarios.md gives no reason\nscenario A4 fail TestA4_Four\n"
	if out.String() != want {
		t.Errorf("report:\n%swant:\n%s", out.String(), want)
	}
}

// TestReport_ShowsWhatWasSkipped: a group that needs all of its tests is not simply proven while one of them did not run.
func TestReport_ShowsWhatWasSkipped(t *testing.T) {
	entries := []entry{{id: "A1"}, {id: "A2"}, {id: "A3", out: "comes later"}, {id: "A4"}}
	found, err := readResults(strings.NewReader(strings.Join([]string{
		`{"Action":"skip","Package":"p","Test":"TestA1_NeedsAProgram"}`,
		`{"Action":"pass","Package":"p","Test":"TestA1_One"}`,
		`{"Action":"pass","Package":"p","Test":"TestA1_Group"}`,
		`{"Action":"skip","Package":"p","Test":"TestA1_Group/A1_part"}`,
		// A second run, for instance with another build tag, has what the first one skipped.
		`{"Action":"skip","Package":"p","Test":"TestA2_Two"}`,
		`{"Action":"pass","Package":"p","Test":"TestA2_Two"}`,
		`{"Action":"skip","Package":"p","Test":"TestA3_Three"}`,
		`{"Action":"skip","Package":"p","Test":"TestA4_Same"}`,
		`{"Action":"skip","Package":"q","Test":"TestA4_Same"}`,
		`{"Action":"pass","Package":"r","Test":"TestA4_Same"}`,
	}, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if !report(&out, entries, found) {
		t.Error("what was proven is refused")
	}
	want := "scenario A1 pass TestA1_One (2 skipped: TestA1_NeedsAProgram, TestA1_Group/A1_part)\nscenario A2 pass TestA2_Two\nscenario A3 out comes later\n" +
		"scenario A4 pass TestA4_Same (1 skipped: TestA4_Same)\n"
	if out.String() != want {
		t.Errorf("report:\n%swant:\n%s", out.String(), want)
	}
}

func TestCatalogueRefusesDoubles(t *testing.T) {
	if _, err := readCatalogue(strings.NewReader("| A1 | one | |\n| A01 | again | |\n")); err == nil {
		t.Error("an id that stands twice was accepted")
	}
	if _, err := readCatalogue(strings.NewReader("nothing")); err == nil {
		t.Error("an empty catalogue was accepted")
	}
}
