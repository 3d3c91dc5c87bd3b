// Package leasing hands proxies out: it grants, renews and ends leases, whether they come as ProxyLease objects or by HTTP.
//
// There is one ledger, in the replica that leads. Around it are small packages: record (what a lease object means), ledger
// (who holds what, and who gets what next), queue (who waits), grant (the writes), cooldown and expiry (the moments),
// retention (how long what is over stays), recovery (the start of a leader), policy (what must be in force before anything
// is granted over HTTP), httpapi (the HTTP front). The Allocator puts them together.
//
// Nothing that was promised to a holder is only in memory: bindings and their ends are on ProxyLeases, cooldowns on
// Proxies, and an Idempotency-Key is the name of a lease.
package leasing
