# egress-proxies-operator: `make help` lists the targets.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

IMG ?= egress-proxies-operator:dev
GIT_COMMIT ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
VERSION_PKG := crawl.example.com/egress-proxies-operator/internal/version
GO_LDFLAGS := -s -w -X $(VERSION_PKG).Commit=$(GIT_COMMIT)
COMPONENT := hack/component.sh
# Set by `make demo` and `make cluster-up`; everything that talks to a cluster honours KUBECONFIG as kubectl does.
KUBECTL ?= $(shell command -v kubectl || $(COMPONENT) kubectl)
TESTFLAGS ?=

.PHONY: help
help: ## List the targets.
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-19s %s\n", $$1, $$2}'

##@ Daily work

.PHONY: build
build: ## Build the binary into bin/.
	CGO_ENABLED=0 go build -trimpath -ldflags '$(GO_LDFLAGS)' -o bin/egress-proxies-operator ./cmd

.PHONY: generate
generate: ## Regenerate deep copies, apply configurations, CRDs and RBAC.
	hack/generate.sh

.PHONY: verify-generate
verify-generate: ## Fail when generated files differ from their sources.
	hack/generate.sh --verify

.PHONY: lint
lint: ## Run the linters.
	$$($(COMPONENT) golangci-lint) run ./...

.PHONY: test
test: ## Unit and control-plane tests with -race; builds kube-apiserver and etcd once.
	hack/test.sh $(TESTFLAGS)

.PHONY: scenarios
scenarios: ## One line per scenario id: the test that proves it, or why it is out.
	hack/scenarios.sh

.PHONY: test-libvirt
test-libvirt: ## Tests with real libvirt, QEMU and guests on hypervisors in namespaces; needs Linux on x86-64 and root.
	hack/libvirt/test.sh $(TESTFLAGS)

.PHONY: bench
bench: bench-provisioning bench-leasing bench-pools ## All benchmarks: ratios against the bare API server, measured side by side.

.PHONY: bench-provisioning
bench-provisioning: ## Proxies to Ready against raw writes, writes of a life, CPU and heap of the managers.
	hack/bench.sh provisioning

.PHONY: bench-pools
bench-pools: ## Pools: creates beyond the target, pace against raw creates, time of plans, reconciles per change.
	hack/bench.sh pools

.PHONY: bench-leasing
bench-leasing: ## Leases against raw writes and a bare controller, picks in large fleets, renewals, the gap of a fail-over.
	hack/bench.sh leasing

.PHONY: run-dev
run-dev: ## Run all managers in one process against the current kubeconfig context.
	go run ./cmd dev --providers-config hack/providers-dev.yaml

##@ A real cluster on this machine

.PHONY: cluster-up
cluster-up: ## Start a real single-node Kubernetes (CLUSTER=kind where Docker and kind exist).
	hack/cluster/up.sh

.PHONY: cluster-down
cluster-down: ## Remove the cluster and everything it left on the machine.
	hack/cluster/down.sh

.PHONY: demo
demo: ## Cluster, images, helm install, samples, and the main job step by step.
	hack/demo.sh

.PHONY: demo-down
demo-down: cluster-down ## Remove the demo: the same as cluster-down.

.PHONY: e2e
e2e: demo ## The end-to-end features are what the demo runs.

##@ A cluster of your own

.PHONY: docker-build
docker-build: ## Build the operator's image as IMG.
	docker build --build-arg GIT_COMMIT=$(GIT_COMMIT) -t $(IMG) .

.PHONY: install
install: ## Install the CRDs.
	$(KUBECTL) apply --server-side -k config/crd

.PHONY: deploy
deploy: ## Deploy the operator with the image IMG.
	hack/deploy.sh $(IMG)

KVM_SSH_KEY ?= $(HOME)/.ssh/proxy-operator_ed25519
KVM_KNOWN_HOSTS ?= $(HOME)/.ssh/kvm_known_hosts
NAMESPACE ?= egress-proxies-operator-system

.PHONY: kvm-ssh-secret
kvm-ssh-secret: ## Make or update the Secret kvm-ssh from KVM_SSH_KEY and KVM_KNOWN_HOSTS, in NAMESPACE.
	$(KUBECTL) create secret generic kvm-ssh --namespace=$(NAMESPACE) --dry-run=client --output=yaml \
		--from-file=id_ed25519=$(KVM_SSH_KEY) --from-file=known_hosts=$(KVM_KNOWN_HOSTS) | $(KUBECTL) apply -f -

.PHONY: undeploy
undeploy: ## Remove the operator; CRDs and what they hold stay.
	$(KUBECTL) delete --ignore-not-found -k config/deploy
