package providertest

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"

	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// prompt is how long a call may go on after its context has ended, in real time. It is generous, since it only tells
	// calls that end from those that do not.
	prompt = 10 * time.Second
	// patience of a caller of something that hangs, in real time.
	patience = 50 * time.Millisecond
)

// failing makes what is behind the provider fail for the rest of the check, or until restore is called.
func (h Harness) failing(t testing.TB, reason providers.Reason) (restore func()) {
	t.Helper()
	if h.Fail == nil {
		t.Skip("the harness has no Fail")
	}
	restore = h.Fail(reason)
	if restore == nil {
		t.Skipf("the harness cannot fail with %s", reason)
	}
	t.Cleanup(restore)
	return restore
}

// calls are the methods that go out, each as one call. They leave nothing behind but what is taken away after the check.
func (b bench) calls(t testing.TB, known providers.Ref) map[string]func(context.Context) error {
	t.Helper()
	fresh := b.request(t, "fresh")
	b.clearAfter(t, fresh)
	unknown := refOf(b.request(t, "nobody"))
	return map[string]func(context.Context) error{
		"check":                    b.Check,
		"get of what exists":       func(ctx context.Context) error { _, err := b.Get(ctx, known); return err },
		"get of what is not there": func(ctx context.Context) error { _, err := b.Get(ctx, unknown); return err },
		"list":                     func(ctx context.Context) error { _, err := b.List(ctx); return err },
		"create":                   func(ctx context.Context) error { _, err := b.Create(ctx, fresh); return err },
		"delete":                   func(ctx context.Context) error { return b.Delete(ctx, unknown) },
	}
}

// allFail checks that every call fails for a reason while a failure lasts, and that all is well afterwards.
func allFail(t testing.TB, h Harness, reason providers.Reason) {
	t.Helper()
	b := h.open(t, "a")
	req := b.request(t, "px")
	b.create(t, req)
	first := b.runs(t, refOf(req))
	calls := b.calls(t, first.Ref)
	restore := h.failing(t, reason)
	for range 2 {
		for what, call := range calls {
			err := call(t.Context())
			wants(t, what, err, reason)
			if got := providers.RetryAfterOf(err); reason == providers.RateLimited && h.RetryAfter > 0 && got != h.RetryAfter {
				t.Errorf("%s: RetryAfter is %v, the other side asked for %v", what, got, h.RetryAfter)
			}
		}
	}
	// A manager that starts meanwhile opens its providers as well.
	_ = h.open(t, "a")
	restore()
	b.eventually(t, "all is well again", func() bool { return b.Check(t.Context()) == nil })
	b.stays(t, first)
}

func unreachableIsUnavailable(t testing.TB, h Harness) { allFail(t, h, providers.Unavailable) }

func refusedCredentialsAreAuth(t testing.TB, h Harness) { allFail(t, h, providers.Auth) }

func throttlingIsRateLimited(t testing.TB, h Harness) { allFail(t, h, providers.RateLimited) }

func noRoomIsCapacity(t testing.TB, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "px")
	b.create(t, req)
	first := b.runs(t, refOf(req))
	restore := h.failing(t, providers.Capacity)
	more := b.request(t, "more")
	b.clearAfter(t, more)
	_, err := b.Create(t.Context(), more)
	wants(t, "create", err, providers.Capacity)
	b.stays(t, first)
	if n := b.listed(t)[more.Owner.UID]; n != 0 {
		t.Errorf("listed %d times although there was no room", n)
	}
	restore()
	b.create(t, more)
	b.runs(t, refOf(more))
}

// promptly makes a call whose context ends, and gives its error.
func (b bench) promptly(t testing.TB, what string, call func(context.Context) error, ctx context.Context) error {
	t.Helper()
	answer := make(chan error, 1)
	go func() { answer <- call(ctx) }()
	select {
	case err := <-answer:
		return err
	case <-time.After(patience + prompt):
		// It is said here, and nobody waits for it any longer.
		b.witness().hangs.Store(true)
		t.Fatalf("%s: no answer although its context has ended", what)
		return nil
	}
}

func cancelledCallIsUnavailable(t testing.TB, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "px")
	b.create(t, req)
	first := b.runs(t, refOf(req))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for what, call := range b.calls(t, first.Ref) {
		wants(t, what, b.promptly(t, what, call, ctx), providers.Unavailable)
	}
	b.stays(t, first)
}

func hangingCallEndsWithItsContext(t testing.TB, h Harness) {
	if h.Hang == nil {
		t.Skip("the harness has no Hang")
	}
	b := h.open(t, "a")
	req := b.request(t, "px")
	b.create(t, req)
	first := b.runs(t, refOf(req))
	calls := b.calls(t, first.Ref)
	restore := h.Hang()
	defer restore()
	for what, call := range calls {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		wants(t, what, b.promptly(t, what, call, ctx), providers.Unavailable)
		cancel()
	}
	restore()
	b.eventually(t, "all is well again", func() bool { return b.Check(t.Context()) == nil })
	b.stays(t, first)
}

// errorsAreStable: what is said of two instances in one situation is one text.
func errorsAreStable(t testing.TB, h Harness) {
	b := h.open(t, "a")
	texts := map[string]map[string]bool{}
	hear := func(situation string, req providers.CreateRequest, err error) {
		if err == nil {
			return
		}
		text := providers.StableMessage(err)
		if texts[situation] == nil {
			texts[situation] = map[string]bool{}
		}
		texts[situation][text] = true
		for _, id := range []string{req.Name, string(req.Owner.UID)} {
			if strings.Contains(text, id) {
				t.Errorf("%s: the message %q contains %s", situation, text, id)
			}
		}
	}
	var taken []providers.CreateRequest
	for range 2 {
		theirs := b.request(t, "px")
		b.create(t, theirs)
		b.runs(t, refOf(theirs))
		ours := b.request(t, "px")
		_, err := b.Get(t.Context(), refOf(ours))
		hear("get of what is not there", ours, err)
		hear("delete of what is not there", ours, b.Delete(t.Context(), refOf(ours)))
		ours.Name, ours.Zone = theirs.Name, theirs.Zone
		_, err = b.Create(t.Context(), ours)
		hear("create under a name that is taken", ours, err)
		_, err = b.Create(t.Context(), theirs)
		hear("create again", theirs, err)
		taken = append(taken, theirs)
	}
	for _, reason := range []providers.Reason{providers.Unavailable, providers.Auth, providers.RateLimited, providers.Capacity} {
		if h.Fail == nil {
			break
		}
		restore := h.Fail(reason)
		if restore == nil {
			continue
		}
		for range 2 {
			fresh := b.request(t, "fresh")
			b.clearAfter(t, fresh)
			_, err := b.Create(t.Context(), fresh)
			hear("create while "+string(reason), fresh, err)
		}
		for _, req := range taken {
			_, err := b.Get(t.Context(), refOf(req))
			hear("get while "+string(reason), req, err)
		}
		restore()
	}
	for situation, said := range texts {
		if len(said) > 1 {
			t.Errorf("%s has %d texts, want one: %v", situation, len(said), said)
		}
	}
}

func secretsStaySecret(t testing.TB, h Harness) {
	if h.UserData == nil && h.Credentials == nil && len(h.Secrets) == 0 {
		t.Skip("the harness has no UserData, no Credentials and no Secrets")
	}
	b := h.open(t, "a")
	mark := "do-not-tell-" + string(uuid.NewUUID())
	b.keepSecret(mark)
	secret := func(req providers.CreateRequest) providers.CreateRequest {
		if h.UserData != nil {
			req.UserData = append(append([]byte{}, h.UserData...), "\n# "+mark+"\n"...)
		}
		if h.Credentials != nil {
			req.Credentials = &providers.Credentials{Username: h.Credentials.Username, Password: mark}
		}
		return req
	}
	// Every answer and every line of the log on the way is searched for the mark.
	theirs := secret(b.request(t, "px"))
	b.create(t, theirs)
	_, err := b.Create(t.Context(), theirs)
	wants(t, "create again", err, accepted, providers.AlreadyExists)
	b.runs(t, refOf(theirs))
	b.list(t)
	ours := secret(b.request(t, "px"))
	ours.Name, ours.Zone = theirs.Name, theirs.Zone
	_, err = b.Create(t.Context(), ours)
	wants(t, "create under a name that is taken", err, providers.Conflict)
	attempt := func(ctx context.Context, change func(*providers.CreateRequest)) {
		fresh := secret(b.request(t, "fresh"))
		if change != nil {
			change(&fresh)
		}
		b.clearAfter(t, fresh)
		_, _ = b.Create(ctx, fresh)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	attempt(ctx, nil)
	attempt(t.Context(), func(req *providers.CreateRequest) {
		if req.Credentials != nil {
			// A line end, as most editors leave one.
			req.Credentials.Password += "\n"
		}
		if req.UserData != nil {
			req.UserData = append(req.UserData, 0xff, 0)
		}
	})
	for _, reason := range []providers.Reason{providers.Unavailable, providers.Auth, providers.RateLimited, providers.Capacity} {
		if h.Fail == nil {
			break
		}
		if restore := h.Fail(reason); restore != nil {
			attempt(t.Context(), nil)
			_ = b.Check(t.Context())
			_, _ = b.Get(t.Context(), refOf(theirs))
			_, _ = b.List(t.Context())
			restore()
		}
	}
}

func closedProviderAnswers(t testing.TB, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "px")
	if err := b.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
	// It may answer or not; but of an instance that it cannot look for it must not say that it is gone, except that here
	// this is the truth.
	_, err := b.Get(t.Context(), refOf(req))
	wants(t, "get", err, providers.NotFound, providers.Unavailable)
	_, err = b.List(t.Context())
	wants(t, "list", err, accepted, providers.Unavailable)
	wants(t, "delete", b.Delete(t.Context(), refOf(req)), accepted, providers.NotFound, providers.Unavailable)
	wants(t, "check", b.Check(t.Context()), accepted, providers.Unavailable)
}

func closeDuringCalls(t testing.TB, h Harness) {
	keeper := h.open(t, "a")
	req := keeper.request(t, "px")
	keeper.create(t, req)
	first := keeper.runs(t, refOf(req))
	b := h.open(t, "a")
	var group sync.WaitGroup
	for range crowd {
		group.Go(func() {
			for range crowd {
				_, err := b.Get(t.Context(), refOf(req))
				// What exists is not gone because somebody hung up.
				wants(t, "get", err, accepted, providers.Unavailable)
			}
		})
	}
	if err := b.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	group.Wait()
	_, err := b.Get(t.Context(), refOf(req))
	wants(t, "get when it is closed", err, accepted, providers.Unavailable)
	keeper.stays(t, first)
}
