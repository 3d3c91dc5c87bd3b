// Package health is the health engine: it probes every proxy through itself, and keeps what it thinks of each in memory.
//
// It neither reads nor writes Kubernetes objects. The Proxy controller tells it what to watch (Upsert, Remove), is woken
// by Changes when a verdict changed, reads Verdict, and writes the status together with everything else it owns: one
// write per transition. Leasing reads Verdict directly and does not wait for etcd.
//
// The parts: probe asks one question over one connection; classify says whose fault a bad answer is; fsm turns outcomes
// into verdicts that do not flap; breaker notices that a probe target died and not the proxies; sched says when; metrics
// counts. All but probe and sched are pure. Package proxyzoo holds misbehaving proxies for tests.
package health
