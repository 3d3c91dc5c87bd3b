package client

import (
	"errors"
	"math"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// Whatever a target asks for, the API is told a number that it takes: it refuses the whole report otherwise.
func TestReportOfALongRetryAfterIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel()
		lease := acquire(t, m.client(t), Request{})
		defer closeLease(t, lease)
		for _, c := range []struct {
			asked time.Duration
			want  int32
		}{
			{1, 1}, {time.Second, 1}, {time.Hour - 1, 3600},
			{wire.MaxRetryAfterSeconds*time.Second - 1, wire.MaxRetryAfterSeconds}, {wire.MaxRetryAfterSeconds * time.Second, wire.MaxRetryAfterSeconds},
			{wire.MaxRetryAfterSeconds*time.Second + 1, wire.MaxRetryAfterSeconds}, {30 * 24 * time.Hour, wire.MaxRetryAfterSeconds},
			{1<<31*time.Second + 1, wire.MaxRetryAfterSeconds}, {math.MaxInt64, wire.MaxRetryAfterSeconds},
		} {
			m.said()
			if err := lease.Report(t.Context(), "x.example", RateLimited, c.asked); err != nil {
				t.Fatal(err)
			}
			if said := m.said(); len(said) != 1 || said[0].report.RetryAfterSeconds == nil || *said[0].report.RetryAfterSeconds != c.want {
				t.Errorf("%v: the API was told %+v, want %d", c.asked, said, c.want)
			}
		}
	})
}

// An API, or a gateway before it, that asks for more than a duration can hold asks for a wait, and not for none.
func TestRefusalWithALongWait(t *testing.T) {
	for said, want := range map[string]time.Duration{
		"7": 7 * time.Second, "-7": 0, "604801": wire.MaxRetryAfterSeconds * time.Second, "9223372037": wire.MaxRetryAfterSeconds * time.Second,
	} {
		e, ok := errors.AsType[*Error](refusal(
			&http.Response{StatusCode: http.StatusServiceUnavailable}, wire.ProblemType, []byte(`{"code":"api_unavailable","retryAfterSeconds":`+said+`}`)))
		if !ok || e.RetryAfter != want {
			t.Errorf("%s: %+v, want %v", said, e, want)
		}
	}
}
