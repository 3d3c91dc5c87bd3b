package providertest

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// callLimit is how long any call may take, in real time. It is generous: it only tells calls that return from those that
// do not, which would end with the whole test binary and name nobody.
const callLimit = 30 * time.Second

// errNoAnswer is what a check gets for a call that has not returned or has panicked. The test has failed by then.
var errNoAnswer error = providers.NewError(providers.Unavailable, "", "the call did not return", errors.New("no answer"))

// answer of a call.
type answer[T any] struct {
	value    T
	err      error
	panicked string
}

// within makes a call that must return. When one has not, it fails the test by the name of the method, and no more calls
// are made on that Provider, so that the check ends soon.
func within[T any](w *witness, method string, call func() (T, error)) (T, error) {
	w.t.Helper()
	var none T
	if w.hangs.Load() && method != methodClose {
		return none, errNoAnswer
	}
	done := make(chan answer[T], 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- answer[T]{panicked: fmt.Sprintf("%v\n%s", p, debug.Stack())}
			}
		}()
		value, err := call()
		done <- answer[T]{value: value, err: err}
	}()
	limit := time.NewTimer(callLimit)
	defer limit.Stop()
	select {
	case a := <-done:
		if a.panicked != "" {
			w.t.Errorf("%s: %s panics: %s", w.t.Name(), method, a.panicked)
			return none, errNoAnswer
		}
		return a.value, a.err
	case <-limit.C:
		if !w.hangs.Swap(true) {
			w.t.Errorf("%s: %s has not returned for %v; the last answer before: %s", w.t.Name(), method, callLimit, w.lastAnswer())
		}
		return none, errNoAnswer
	}
}

// methodClose is called even when another method hangs: it may be what ends that.
const methodClose = "Close"

// checked is within for calls that give an error only.
func checked(w *witness, method string, call func() error) error {
	w.t.Helper()
	_, err := within(w, method, func() (struct{}, error) { return struct{}{}, call() })
	return err
}

// opened is Factory.Open, which must return.
func (h Harness) opened(ctx context.Context, w *witness, class *v1alpha1.ProviderClass) (providers.Provider, error) {
	w.t.Helper()
	p, err := within(w, "Open", func() (providers.Provider, error) { return h.Factory.Open(ctx, class, h.Runtime) })
	w.err("Open", err)
	return p, err
}

// validated is Factory.Validate, which must return.
func (h Harness) validated(w *witness, class *v1alpha1.ProviderClass) field.ErrorList {
	w.t.Helper()
	problems, err := within(w, "Validate", func() (field.ErrorList, error) { return h.Factory.Validate(class), nil })
	if err != nil {
		return field.ErrorList{field.InternalError(field.NewPath(""), err)}
	}
	if len(problems) > 0 {
		w.text("Validate's errors", problems.ToAggregate().Error())
	}
	return problems
}
