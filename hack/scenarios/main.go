// Command scenarios tells which scenarios are proven. It reads `go test -json` output on stdin and the catalogue in
// docs/scenarios.md, and prints one line per id of the catalogue:
//
//	scenario ID pass TEST      a test with the id in its name passed and was not skipped
//	scenario ID fail TEST      such a test failed
//	scenario ID out REASON     the catalogue says why it is left out
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
	passed, failed, err := readResults(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	if !report(os.Stdout, entries, passed, failed) {
		os.Exit(1)
	}
}

// report prints a line per entry and tells whether every one is proven or left out, and none failed.
func report(w io.Writer, entries []entry, passed, failed map[string]string) bool {
	ok := true
	for _, e := range entries {
		switch {
		case failed[e.id] != "":
			_, _ = fmt.Fprintf(w, "scenario %s fail %s\n", e.id, failed[e.id])
			ok = false
		case passed[e.id] != "":
			_, _ = fmt.Fprintf(w, "scenario %s pass %s\n", e.id, passed[e.id])
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

// readResults gives, by id, a test that passed and one that failed.
func readResults(r io.Reader) (passed, failed map[string]string, err error) {
	passed, failed = map[string]string{}, map[string]string{}
	scanner := bufio.NewScanner(r)
	scanner.Buffer(make([]byte, 0, 1<<20), 1<<24)
	for scanner.Scan() {
		var e event
		// Lines of the build, which are no events, are passed over.
		if json.Unmarshal(scanner.Bytes(), &e) != nil || e.Test == "" {
			continue
		}
		into := passed
		switch e.Action {
		case "pass":
		case "fail":
			into = failed
		default:
			continue
		}
		for _, id := range idsOf(e.Test) {
			if into[id] == "" {
				into[id] = e.Test
			}
		}
	}
	return passed, failed, scanner.Err()
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
