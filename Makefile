# Everything here runs on a machine that has only Go, git, make and a C compiler;
# what else is needed is built from Go modules into the cache folder below.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

GO    ?= go
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/devicequota

# The Kubernetes version of the control plane that tests and the demo run against.
# The default is the one that test/controlplane/go.mod requires.
VERSION ?= $(shell sed -n 's/^\tk8s.io\/kubernetes v//p' test/controlplane/go.mod)
ASSETS  := $(or $(KUBEBUILDER_ASSETS),$(CACHE)/controlplane/$(VERSION))
CONTROLPLANE := $(GO) run -C test/controlplane . -version $(VERSION)

# Tools are kept by what they are built from, so a changed pin builds a new one.
tool-dir = $(CACHE)/tools/$(shell { $(GO) env GOVERSION; cat $(1)/go.mod $(1)/go.sum; } | cksum | cut -d' ' -f1)
CONTROLLER_GEN := $(call tool-dir,tools)/controller-gen
GOLANGCI_LINT  := $(call tool-dir,tools/lint)/golangci-lint
HELM_DOCS      := $(call tool-dir,tools/docs)/helm-docs

# Modules beside the main one that hold Go code.
NESTED := $(patsubst %/go.mod,%,$(wildcard test/*/go.mod hack/*/go.mod))

# Packages whose tests need no control plane: all but those below test/.
UNIT = $$($(GO) list ./... | grep -v /test/)

.DEFAULT_GOAL := help

##@ Use

.PHONY: demo
demo: controlplane ## Play the product on a real API server (STAY=1 keeps it up)
	KUBEBUILDER_ASSETS='$(ASSETS)' $(GO) run ./test/demo

.PHONY: build
build: ## Build the programs into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ ./cmd/...

##@ Check

.PHONY: test
test: controlplane ## Run all tests, with the race detector, against a real API server
	@$(MAKE) -k -j2 test-race test-exhaustive test-nested # two at a time: much of both is waiting

.PHONY: test-race
test-race: controlplane ## Run the main module's tests with the race detector
	KUBEBUILDER_ASSETS='$(ASSETS)' $(GO) test -race -timeout 20m ./...

.PHONY: test-exhaustive
test-exhaustive: ## Check the ledger's model in all worlds of the smallest sizes
	$(GO) test -run '^TestExhaustive$$' ./quota/ledger

.PHONY: test-nested
test-nested: controlplane ## Run the tests of the nested modules (fixed seeds)
	@for module in $(NESTED); do \
		pattern=./...; \
		if [ "$$module" = test/controlplane ]; then pattern=.; fi; \
		echo "(cd $$module && $(GO) test -count=1 -timeout 20m $$pattern)"; \
		(cd "$$module" && KUBEBUILDER_ASSETS='$(ASSETS)' $(GO) test -count=1 -timeout 20m $$pattern); \
	done

.PHONY: test-unit
test-unit: ## Run the tests that need no control plane
	$(GO) test $(UNIT)

.PHONY: e2e
e2e: controlplane-all ## Run the tests beside the real kube-controller-manager and kube-scheduler (VERSION=1.34.4 for another Kubernetes)
	@for package in ./test/e2e ./test/e2e/versions; do \
		echo "$(GO) test -race -tags e2e $$package"; \
		KUBEBUILDER_ASSETS='$(ASSETS)' $(GO) test -race -tags e2e -count=1 -v -timeout 30m "$$package"; \
	done

.PHONY: test-differential
test-differential: ## Compare the allocator with upstream's in 100,000 random cases
	cd test/differential && $(GO) test -run '^TestDifferential' -v -timeout 180m . -cases 100000 -hard 5000

.PHONY: test-mutations
test-mutations: ## Break one rule of the ledger at a time; the model test must catch each
	$(GO) run ./quota/ledger/internal/mutate

.PHONY: chaos
chaos: controlplane ## Check the ledger's invariants under load and faults, at most 5 minutes
	KUBEBUILDER_ASSETS='$(ASSETS)' $(GO) test -tags chaos -run '^Test(Invariants|EachWatch)' -count=1 -v -timeout 15m ./test/chaos

.PHONY: chaos-restarts
chaos-restarts: controlplane ## Check them while etcd is read-only, managers are upgraded and the API server restarts, about 3 minutes
	KUBEBUILDER_ASSETS='$(ASSETS)' $(GO) test -tags chaos -run '^Test(AReadOnly|Upgrade)' -count=1 -v -timeout 15m ./test/chaos

.PHONY: soak
soak: controlplane ## Create and delete 100,000 claims (SOAK_CLAIMS=n for others); nothing may be left or grow
	KUBEBUILDER_ASSETS='$(ASSETS)' $(GO) test -tags soak -run '^TestMany' -count=1 -v -timeout 90m ./test/soak -claims $(or $(SOAK_CLAIMS),100000)

.PHONY: bench-ledger
bench-ledger: controlplane ## Measure many quotas over one project, and one quota over 1000 projects
	KUBEBUILDER_ASSETS='$(ASSETS)' $(GO) test -tags soak -run '^TestScale' -count=1 -v -timeout 60m ./test/soak -write ../../docs/benchmarks.md

.PHONY: bench-admission
bench-admission: controlplane ## Measure admission beside no quota, a bare webhook and native quota
	KUBEBUILDER_ASSETS='$(ASSETS)' $(GO) run ./test/bench/admission -write docs/benchmarks.md

.PHONY: bench-allocator
bench-allocator: ## Measure the allocator beside upstream's
	cd test/differential && $(GO) run ./bench -write ../../docs/benchmarks.md

# Sizes to measure, as parts of the full cluster; x2: two quotas per project.
SCALE ?= 0.1,1,1x2

.PHONY: scale
scale: controlplane ## Measure a manager on 5000 nodes and 20,000 claims, and on a tenth, about 20 minutes (SCALE=0.1)
	KUBEBUILDER_ASSETS='$(ASSETS)' $(GO) run ./test/scale -sizes '$(SCALE)' -write docs/benchmarks.md

.PHONY: bench
bench: ## Run the benchmarks
	$(GO) test -run '^$$' -bench . -benchmem $(UNIT)

.PHONY: lint
lint: $(GOLANGCI_LINT) ## Run the linters on all modules
	@for module in . $(NESTED); do \
		echo "golangci-lint: $$module"; \
		(cd "$$module" && '$(GOLANGCI_LINT)' run --config '$(CURDIR)/.golangci.yml' ./...); \
	done

.PHONY: fmt
fmt: $(GOLANGCI_LINT) ## Format the code
	@for module in . $(NESTED); do (cd "$$module" && '$(GOLANGCI_LINT)' fmt --config '$(CURDIR)/.golangci.yml'); done

.PHONY: verify-generate
verify-generate: $(CONTROLLER_GEN) $(HELM_DOCS) ## Check that generated files are up to date
	CONTROLLER_GEN='$(CONTROLLER_GEN)' HELM_DOCS='$(HELM_DOCS)' hack/verify-generate.sh

.PHONY: verify-modules
verify-modules: ## Check that go.mod and go.sum are tidy
	@for module in . $(filter-out test/controlplane,$(NESTED)); do \
		echo "go mod tidy -diff: $$module"; \
		$(GO) mod tidy -C "$$module" -diff; \
	done

##@ Make

.PHONY: generate
generate: $(CONTROLLER_GEN) $(HELM_DOCS) ## Generate deep copies, CRDs, webhooks, RBAC and the charts' READMEs
	CONTROLLER_GEN='$(CONTROLLER_GEN)' HELM_DOCS='$(HELM_DOCS)' hack/generate.sh

.PHONY: controlplane
controlplane: ## Build etcd and kube-apiserver (VERSION=1.x.y for another version)
	@$(CONTROLPLANE)

.PHONY: controlplane-all
controlplane-all: ## Build kube-controller-manager and kube-scheduler too
	@$(CONTROLPLANE) all

$(CONTROLLER_GEN):
	@echo 'building controller-gen into $(@D): once, under a minute'
	@mkdir -p '$(@D)'
	@cd tools && CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o '$@.partial' sigs.k8s.io/controller-tools/cmd/controller-gen
	@mv '$@.partial' '$@'

$(HELM_DOCS):
	@echo 'building helm-docs into $(@D): once, about a minute on two cores'
	@mkdir -p '$(@D)'
	@cd tools/docs && CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o '$@.partial' github.com/norwoodj/helm-docs/cmd/helm-docs
	@mv '$@.partial' '$@'

$(GOLANGCI_LINT):
	@echo 'building golangci-lint into $(@D): once, about 3 minutes on two cores'
	@mkdir -p '$(@D)'
	@cd tools/lint && CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o '$@.partial' github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@mv '$@.partial' '$@'

.PHONY: image
image: ## Build the image for amd64 and arm64 without a container engine (RELEASE=v1.2.3)
	@$(GO) run -C hack/image . -root '$(CURDIR)' -out '$(CURDIR)/dist/image' \
		-version '$(or $(RELEASE),$(shell git describe --tags --always --dirty))' -created "$$(TZ=UTC0 git log -1 --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ)"

.PHONY: krew
krew: ## Build the kubectl plugin for all platforms, with its krew manifest (RELEASE=v1.2.3)
	@$(GO) run -C hack/krew . -root '$(CURDIR)' -out '$(CURDIR)/dist/krew' -version '$(RELEASE)' \
		-created "$$(TZ=UTC0 git log -1 --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ)"
	@cd hack/krew && { out=$$($(GO) tool validate-krew-manifest -skip-install -manifest '$(CURDIR)/dist/krew/devicequota.yaml' 2>&1) || { echo "$$out"; exit 1; }; }
	@cat dist/krew/SHA256SUMS

.PHONY: clean
clean: ## Remove what was built in this folder (the cache stays)
	rm -rf bin dist coverage

.PHONY: help
help: ## Show this
	@awk 'BEGIN { FS = ":.*## " } /^##@ / { printf "\n%s\n", substr($$0, 5) } /^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
