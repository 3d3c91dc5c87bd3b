// Command scenarios tells which scenarios are proven. It reads `go test -json` output on stdin and the catalogue in
// docs/scenarios.md, and prints one line per id of the catalogue:
//
//	scenario ID pass TEST                          a test with the id in its name passed, and none was skipped
//	scenario ID pass TEST (N skipped: TEST, ...)   one passed, and others were skipped: what they show is not shown by this run
//	scenario ID fail TEST                          such a test failed
//	scenario ID out REASON                         the catalogue says why it is left out
//
// It exits with 1 when an id is neither proven nor left out with a reason, or when a test failed.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// entry is a row of the catalogue.
type entry struct {
	id, text, out string
}

// event is what `go test -json` prints.
type event struct {
	Action, Package, Test string
}

var (
	rowPattern = regexp.MustCompile(`^\|\s*([A-Z]{1,2}[0-9]+)\s*\|\s*(.*?)\s*\|\s*(.*?)\s*\|$`)
	// idPattern finds ids at the start of a word of a test's name: TestL3_TwoProxies, TestX/L8_late_event, TestP1P2_...
	idPattern = regexp.MustCompile(`(?:^|/|_|Test)((?:[A-Z]{1,2}[0-9]+)+)(?:_|/|$)`)
	oneID     = regexp.MustCompile(`[A-Z]{1,2}[0-9]+`)
)

func main() {
	catalogue := flag.String("catalogue", "docs/scenarios.md", "the Markdown file whose tables list the ids")
	flag.Parse()
	file, err := os.Open(*catalogue)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	defer func() { _ = file.Close() }()
	entries, err := readCatalogue(file)
	if err != nil {
		fmt.Fprintf(os.Stderr, "error: %s: %v\n", *catalogue, err)
		os.Exit(1)
	}
	found, err := readResults(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	if !report(os.Stdout, entries, found) {
		os.Exit(1)
	}
}

// results are tests by the ids in their names.
type results struct {
	// passed and failed have the first test of each kind.
	passed, failed map[string]string
	// skipped has all tests that were skipped and passed in no other run.
	skipped map[string][]string
}

// report prints a line per entry and tells whether every one is proven or left out, and none failed.
func report(w io.Writer, entries []entry, found results) bool {
	ok := true
	for _, e := range entries {
		switch {
		case found.failed[e.id] != "":
			_, _ = fmt.Fprintf(w, "scenario %s fail %s\n", e.id, found.failed[e.id])
			ok = false
		case found.passed[e.id] != "":
			_, _ = fmt.Fprintf(w, "scenario %s pass %s%s\n", e.id, found.passed[e.id], left(found.skipped[e.id]))
		case e.out != "":
			_, _ = fmt.Fprintf(w, "scenario %s out %s\n", e.id, e.out)
		default:
			_, _ = fmt.Fprintf(w, "scenario %s missing: no test proves it and docs/scenarios.md gives no reason\n", e.id)
			ok = false
		}
	}
	return ok
}

// readCatalogue reads the rows `| ID | scenario | reason it is out |` of all tables. An id must be unique.
func readCatalogue(r io.Reader) ([]entry, error) {
	var entries []entry
	seen := map[string]bool{}
	for scanner := bufio.NewScanner(r); scanner.Scan(); {
		match := rowPattern.FindStringSubmatch(scanner.Text())
		if match == nil {
			continue
		}
		id := normal(match[1])
		if seen[id] {
			return nil, fmt.Errorf("id %s stands twice", id)
		}
		seen[id] = true
		entries = append(entries, entry{id: id, text: match[2], out: match[3]})
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("no ids found")
	}
	return entries, nil
}

// left names skipped tests behind a line; "" for none.
func left(skipped []string) string {
	if len(skipped) == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d skipped: %s)", len(skipped), strings.Join(skipped, ", "))
}

// readResults reads what one or several runs of the tests printed. A test that was skipped in one of them and ran in another
// one ran.
func readResults(r io.Reader) (results, error) {
	found := results{passed: map[string]string{}, failed: map[string]string{}, skipped: map[string][]string{}}
	var skipped []event
	ran := map[event]bool{}
	scanner := bufio.NewScanner(r)
	scanner.Buffer(make([]byte, 0, 1<<20), 1<<24)
	for scanner.Scan() {
		var e event
		// Lines of the build, which are no events, are passed over.
		if json.Unmarshal(scanner.Bytes(), &e) != nil || e.Test == "" {
			continue
		}
		into := found.passed
		switch e.Action {
		case "pass":
		case "fail":
			into = found.failed
		case "skip":
			skipped = append(skipped, e)
			continue
		default:
			continue
		}
		ran[event{Package: e.Package, Test: e.Test}] = true
		for _, id := range idsOf(e.Test) {
			if into[id] == "" {
				into[id] = e.Test
			}
		}
	}
	for _, e := range skipped {
		if ran[event{Package: e.Package, Test: e.Test}] {
			continue
		}
		for _, id := range idsOf(e.Test) {
			if !slices.Contains(found.skipped[id], e.Test) {
				found.skipped[id] = append(found.skipped[id], e.Test)
			}
		}
	}
	return found, scanner.Err()
}

// idsOf are the scenario ids in the name of a test.
func idsOf(test string) []string {
	var ids []string
	for rest := test; ; {
		at := idPattern.FindStringSubmatchIndex(rest)
		if at == nil {
			return ids
		}
		for _, id := range oneID.FindAllString(rest[at[2]:at[3]], -1) {
			ids = append(ids, normal(id))
		}
		// The separator may begin the next id, so it is looked at again.
		rest = rest[at[3]:]
	}
}

// normal drops leading zeros: T07 and T7 are one scenario.
func normal(id string) string {
	letters := strings.TrimRight(id, "0123456789")
	number, err := strconv.Atoi(id[len(letters):])
	if err != nil {
		return id
	}
	return letters + strconv.Itoa(number)
}
