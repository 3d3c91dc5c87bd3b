package instance

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// counter is something that the simulation counts.
type counter int

// What must never happen.
const (
	// leaks: an instance exists although its Proxy was released.
	leaks counter = iota
	// doubles: two instances of one Proxy exist at once; one that is terminating exists.
	doubles
	// foreign: what carries another owner's UID was deleted.
	foreignDeleted
	// wrong: a Delete hit another incarnation than the one that was meant.
	wrong
	// needless: a healthy and up-to-date instance was deleted though nothing asked for it, or one that could not be replaced.
	needless
	// unfinished: after a calm time the Proxy does not run what is asked for, or is not released.
	unfinished

	misfortunes
)

// What shows that the model really does what it is said to do.
const (
	steps counter = misfortunes + iota
	released
	ran
	creates
	replaced
	moved
	namesakes
	lostCreates
	lostDeletes
	invisible
	vanished
	idleDeletes
	lostInstances
	failedInstances
	neverStarted
	refusals
	errorsOfGet
	slowLooks
	flickers
	lies
	staleReads
	conflicts
	crashes
	overtaken
	lateCreates
	lateDeletes
	lateWrites
	oldLooks
	foreignFound
	unresolved
	holds
	blindLooks
	upgrades
	wipes
	keptOnDelete
	counters
)

var counterNames = [counters]string{
	leaks: "leaks", doubles: "doubles", foreignDeleted: "foreign", wrong: "wrong", needless: "needless", unfinished: "unfinished",
	steps: "reconciles", released: "released", ran: "looks at a running instance", creates: "instances", replaced: "replaced",
	moved: "moved to another place", namesakes: "namesakes", lostCreates: "lost replies of Create", lostDeletes: "lost replies of Delete",
	invisible: "looks at what is not visible yet", vanished: "silently failed creations", idleDeletes: "silently failed deletions",
	lostInstances: "instances that went by themselves", failedInstances: "failed or stopped", neverStarted: "never started",
	refusals: "refusals", errorsOfGet: "errors of Get", slowLooks: "slow answers of Get", flickers: "short false NotFound",
	lies: "lies", staleReads: "stale reads", conflicts: "conflicts", crashes: "crashes", overtaken: "overtaken by a successor",
	lateCreates: "late Create", lateDeletes: "late Delete", lateWrites: "late writes", oldLooks: "decisions on old observations",
	foreignFound: "looks at a foreign owner's", unresolved: "user data unresolvable", holds: "held", blindLooks: "without a class",
	upgrades: "operator upgrades", wipes: "records lost", keptOnDelete: "replacements left to the owner",
}

// tally is what happened in a number of lives.
type tally struct {
	counts [counters]int
	// first is the first seed with a misfortune of the kind.
	first [misfortunes]int64
}

func (t *tally) add(seed int64, life *[counters]int) {
	for c, n := range life {
		if counter(c) < misfortunes && n > 0 && (t.counts[c] == 0 || seed < t.first[c]) {
			t.first[c] = seed
		}
		t.counts[c] += n
	}
}

func (t *tally) merge(other *tally) {
	for c, n := range other.counts {
		if counter(c) < misfortunes && n > 0 && (t.counts[c] == 0 || other.first[c] < t.first[c]) {
			t.first[c] = other.first[c]
		}
		t.counts[c] += n
	}
}

func (t *tally) String() string {
	parts := make([]string, 0, counters)
	for c, n := range t.counts {
		parts = append(parts, t.told(counter(c), n))
	}
	return strings.Join(parts, ", ")
}

// misfortunes tells what went wrong.
func (t *tally) misfortunes() string {
	var parts []string
	for c, n := range t.counts[:misfortunes] {
		if n > 0 {
			parts = append(parts, t.told(counter(c), n))
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "no misfortune")
}

func (t *tally) told(c counter, n int) string {
	if c < misfortunes && n > 0 {
		return fmt.Sprintf("%s %d (first with seed %d)", counterNames[c], n, t.first[c])
	}
	return fmt.Sprintf("%s %d", counterNames[c], n)
}

// fate is the time and the luck of one life; everything in it follows from the seed.
type fate struct {
	now    time.Time
	random *rand.Rand
	// calm ends all adversity, so that what has to converge can.
	calm   bool
	counts [counters]int
	// trace tells the life as it goes; nil tells nothing.
	trace func(format string, args ...any)
}

func newFate(seed int64, trace func(string, ...any)) *fate {
	return &fate{now: time.Unix(1e9, 0), random: rand.New(rand.NewPCG(uint64(seed), 1)), trace: trace}
}

// chance is true once in n times, and never in calm times.
func (f *fate) chance(n int) bool { return !f.calm && f.random.IntN(n) == 0 }

func (f *fate) upTo(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(f.random.Int64N(int64(d)))
}

func (f *fate) count(c counter) { f.counts[c]++ }

func (f *fate) tell(format string, args ...any) {
	if f.trace != nil {
		f.trace("%s "+format, append([]any{f.now.UTC().Format("15:04:05.000")}, args...)...)
	}
}
