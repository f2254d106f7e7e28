# launcher: build, test and show. `make help` lists the targets.
SHELL        := /bin/bash
.SHELLFLAGS  := -e -o pipefail -c
GO           ?= go
HOST         := $(shell $(GO) env GOOS)-$(shell $(GO) env GOARCH)
# Platforms that machines may have; the host's own and linux-amd64 always.
PLATFORMS    ?= linux-amd64
ALL_PLATFORMS := $(sort $(HOST) $(PLATFORMS))
VERSION      ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS      := -s -w -X main.version=$(VERSION)
# grpcnotrace leaves out a debugging page of gRPC's that costs 3 MB, and the linker's dead code with it.
BUILD        := CGO_ENABLED=0 $(GO) build -trimpath -tags grpcnotrace -ldflags '$(LDFLAGS)'
FUZZTIME     ?= 30s
# The race detector needs a C compiler; CI requires one.
RACE         := $(shell command -v $${CC:-cc} >/dev/null 2>&1 && echo -race)
# What `make test` leaves to `make check`: packages that link a cloud's SDK.
CLOUDS       := providers/aws|providers/gcp|providers/azure|cmd/launcher-provider-

.PHONY: help build demo test check integration integration-torch bench fuzz proto clean FORCE

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

build: $(ALL_PLATFORMS:%=bin/%/launcher) $(ALL_PLATFORMS:%=bin/%/launcher-agent) ## build launcher and launcher-agent into bin/
	@cd bin && { command -v sha256sum >/dev/null && sha256sum */launcher */launcher-agent || shasum -a 256 */launcher */launcher-agent; } > SHA256SUMS
	@ln -sf $(HOST)/launcher bin/launcher
	@ln -sf $(HOST)/launcher-agent bin/launcher-agent

bin/%/launcher: FORCE
	@GOOS=$(word 1,$(subst -, ,$*)) GOARCH=$(word 2,$(subst -, ,$*)) $(BUILD) -o $@ ./cmd/launcher

bin/%/launcher-agent: FORCE
	@GOOS=$(word 1,$(subst -, ,$*)) GOARCH=$(word 2,$(subst -, ,$*)) $(BUILD) -o $@ ./cmd/launcher-agent

demo: build ## a whole job on this machine: head, workers, a preemption, a loss, replacements, teardown
	@bin/launcher demo

test: build ## all tests but those that need installed parts or a cloud's SDK
	@$(GO) test $(RACE) -shuffle=on -p 4 $$($(GO) list ./... | grep -Ev '$(CLOUDS)')

check: ## vet, staticcheck, govulncheck, formatting, tidy modules, architecture
	$(GO) vet ./...
	$(GO) vet -tags integration ./...
	GOOS=darwin GOARCH=arm64 CGO_ENABLED=0 $(GO) build ./...
	$(GO) tool staticcheck ./...
	@unformatted=$$($(GO) tool gofumpt -l $$(git ls-files '*.go' | grep -v '\.pb\.go$$')); test -z "$$unformatted" || { echo "not gofumpt-ed: $$unformatted"; exit 1; }
	$(GO) mod tidy -diff
	$(GO) mod verify
	@# Without the vulnerability database nothing can be checked: said, and no reason to fail.
	@out=$$($(GO) tool govulncheck ./... 2>&1) && echo "govulncheck: no known vulnerability" || { \
	  if grep -q 'fetching vulnerabilities' <<<"$$out"; then echo "govulncheck: not checked: its database cannot be reached"; else echo "$$out"; exit 1; fi; }
	$(GO) test -count=1 -run TestArchitecture ./cmd/launcher

# Runs the tests named Integration of the packages $(1); what it skipped is shown, and is a failure in CI.
define integration
	@mkdir -p .work
	@$(GO) test -v -tags integration -count=1 -timeout 35m -run Integration $(1) > .work/integration.log 2>&1 && status=0 || status=$$?; \
	grep -E '^(ok|FAIL|panic:|[[:space:]]*--- (FAIL|SKIP|PASS: TestIntegration))' .work/integration.log | grep -v 'no tests to run' || true; \
	if [ $$status -ne 0 ]; then tail -60 .work/integration.log; exit $$status; fi; \
	if [ -n "$$LAUNCHER_TEST_STRICT" ] && grep -qE '^[[:space:]]*--- SKIP' .work/integration.log; then echo "a part is missing, which is a failure here"; exit 1; fi
endef

integration: build ## tests that need installed parts: OpenSSH's sshd
	$(call integration,$$($(GO) list -tags integration ./... | grep -Ev '$(CLOUDS)|examples/torch-ddp'))

integration-torch: build ## real PyTorch, the distribution's and the newest: installs 5 GB, takes half an hour
	$(call integration,./examples/torch-ddp)

bench: build ## the numbers of the design, beside their baselines
	$(GO) test -run '^$$' -bench . -benchtime 1s $$($(GO) list ./... | grep -Ev '$(CLOUDS)')

fuzz: ## each fuzz target for FUZZTIME
	@for p in $$($(GO) list ./...); do \
	  dir=$$($(GO) list -f '{{.Dir}}' $$p); \
	  for t in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]*' $$dir/*_test.go 2>/dev/null | sed 's/func //'); do \
	    echo "$$p $$t"; $(GO) test -run '^$$' -fuzz "^$$t\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$p; \
	  done; done

proto: ## generate launcher/control/*.pb.go (needs protoc)
	@bin=$$(mktemp -d); trap "rm -rf $$bin" EXIT; \
	GOBIN=$$bin $(GO) install tool; \
	PATH=$$bin:$$PATH protoc -I. --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative launcher/control/*.proto

clean: ## remove what was built
	rm -rf bin
