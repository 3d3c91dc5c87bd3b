//go:build bench

package bench

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// report prints the results of an area: lines `bench AREA/NAME VALUE`, and comments that start with #.
type report struct {
	t    *testing.T
	area string
}

// note prints a comment.
func (r report) note(format string, args ...any) {
	fmt.Println("# " + fmt.Sprintf(format, args...))
}

// result prints a value without a bound.
func (r report) result(name string, value float64) {
	fmt.Printf("bench %s/%s %.3g\n", r.area, name, value)
}

// atLeast prints a value and fails the run when it is below the bound.
func (r report) atLeast(name string, value, bound float64) {
	r.result(name, value)
	if !(value >= bound) {
		r.t.Errorf("%s/%s is %.3g, and at least %.3g is wanted", r.area, name, value, bound)
	}
}

// atMost prints a value and fails the run when it is above the bound.
func (r report) atMost(name string, value, bound float64) {
	r.result(name, value)
	if !(value <= bound) {
		r.t.Errorf("%s/%s is %.3g, and at most %.3g is wanted", r.area, name, value, bound)
	}
}

// sample is one figure of several rounds.
type sample []float64

// median is the value in the middle, or the mean of the two there.
func (s sample) median() float64 {
	sorted := slices.Sorted(slices.Values(s))
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func (s sample) sum() (sum float64) {
	for _, value := range s {
		sum += value
	}
	return sum
}

// String is all values in the order of the rounds, with the median.
func (s sample) String() string {
	texts := make([]string, len(s))
	for i, value := range s {
		texts[i] = fmt.Sprintf("%.3g", value)
	}
	return fmt.Sprintf("%s (median %.3g, spread %.3g to %.3g)", strings.Join(texts, " "), s.median(), slices.Min(s), slices.Max(s))
}
