package health

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"time"

	"crawl.example.com/egress-proxies-operator/controllers/health/classify"
	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
)

// metadataAuthority is where clouds serve instance credentials.
const metadataAuthority = "169.254.169.254:80"

// loopbackHost is the proxy's own host as seen by the proxy.
const loopbackHost = "127.0.0.1"

// access is what is known about what a proxy refuses.
type access struct {
	restricted *bool
	reason     string
	nextTime   time.Time // of the next negative probe; zero: with the next success
}

// accessResult is the outcome of one negative probe; the zero value is none.
type accessResult struct {
	answer classify.Answer
	reason string
}

// knock is one question of the negative probe.
type knock struct {
	probe.Knock
	judge   func(probe.Result) classify.Answer
	reached string // reason when the proxy does what it should refuse
}

// checkAccess asks the proxy for what it must refuse. One yes decides; only no to everything is restricted.
func (e *Engine) checkAccess(ctx context.Context, t Target, targetAuthority string) accessResult {
	deadline := time.Now().Add(t.Check.Timeout) // of the network, as in package probe
	out := accessResult{answer: classify.Refused, reason: classify.ReasonForbiddenTargetsRefused}
	for _, k := range knocks(t, targetAuthority) {
		answer := classify.Unclear
		if k.Timeout = time.Until(deadline); k.Timeout > 0 {
			answer = k.judge(e.prober.Knock(ctx, k.Knock))
		}
		switch answer {
		case classify.Reached:
			e.metrics.Access(answer.String())
			return accessResult{answer: answer, reason: k.reached}
		case classify.Unclear:
			out = accessResult{answer: answer, reason: classify.ReasonInconclusive}
		}
	}
	e.metrics.Access(out.answer.String())
	return out
}

// knocks lists the questions, those that are answered fast first.
func knocks(t Target, targetAuthority string) []knock {
	_, port, err := probe.SplitAddress(t.Address)
	if err != nil {
		return nil
	}
	ask := func(authority string, credentials *Credentials) probe.Knock {
		return probe.Knock{Proxy: t.Address, Authority: authority, Credentials: credentials}
	}
	plain := ask(metadataAuthority, t.Credentials)
	plain.Plain = true
	out := []knock{
		// The proxy's own port is where something listens on its loopback for certain.
		{ask(net.JoinHostPort(loopbackHost, strconv.Itoa(int(port))), t.Credentials), classify.Forbidden, classify.ReasonLoopbackReachable},
		{ask(net.JoinHostPort(loopbackHost, "80"), t.Credentials), classify.Forbidden, classify.ReasonLoopbackReachable},
		{ask(metadataAuthority, t.Credentials), classify.Forbidden, classify.ReasonMetadataReachable},
		{plain, classify.ForbiddenPlain, classify.ReasonMetadataReachable},
	}
	if t.RequireAuth {
		// The probe target, which was just reached with credentials.
		out = append(out, knock{ask(targetAuthority, nil), classify.Anonymous, classify.ReasonAnonymousAccess})
	}
	return out
}

// noteAccess takes in the result of a negative probe. An unclear one changes nothing that is known.
func (en *entry) noteAccess(now time.Time, found accessResult) {
	if found.reason == "" {
		return
	}
	period := en.target.Check.Period
	en.access.nextTime = now.Add(period)
	switch found.answer {
	case classify.Refused:
		en.access.nextTime = now.Add(AccessPeriods * period)
		en.access.restricted, en.access.reason = new(true), found.reason
	case classify.Reached:
		en.access.restricted, en.access.reason = new(false), found.reason
	default:
		if en.access.restricted == nil {
			en.access.reason = found.reason
		}
	}
}

// noteEgressIP takes in the exit address that the target reported. The first is published at once, changes at most
// every EgressIPInterval.
func (en *entry) noteEgressIP(now time.Time, result probe.Result) {
	if !en.target.Check.ReportExitIP {
		en.egressIP = ""
		return
	}
	addr, ok := exitIP(result)
	if !ok || addr.String() == en.egressIP {
		return
	}
	if en.egressIP != "" && now.Sub(en.egressTime) < EgressIPInterval {
		return
	}
	en.egressIP, en.egressTime = addr.String(), now
}

func exitIP(result probe.Result) (netip.Addr, bool) {
	if result.Truncated || result.Code < 200 || result.Code > 299 {
		return netip.Addr{}, false
	}
	return parseExitIP(result.Body)
}
