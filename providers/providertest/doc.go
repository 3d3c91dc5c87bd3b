// Package providertest is the conformance suite of the provider contract: what every provider must do, whatever is behind
// it. A provider's own tests call Run with a Harness that says how to reach it.
//
// Each check is one rule, and docs/provider-contract.md says which rule is checked by which. That the checks can fail is
// tested too: the suite is run on providers that break one rule each.
package providertest
