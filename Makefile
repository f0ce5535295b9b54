# Tapswitch: build, check, show. `make help` lists the targets.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-builtin-rules
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
PREFIX  ?= /usr/local
DESTDIR ?=
# Where units, completions and pages go; packages set PREFIX=/usr.
SBINDIR ?= $(PREFIX)/sbin
UNITDIR ?= $(PREFIX)/lib/systemd/system
SHARE   ?= $(PREFIX)/share
CONFDIR ?= /etc/tapswitch

# Static programs, which run on a host or in a guest whatever its libc.
export CGO_ENABLED := 0
GO_BUILD := go build -buildvcs=false -trimpath -ldflags '-s -w -X main.version=$(VERSION)'

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-16s %s\n", $$1, $$2 }' Makefile

.PHONY: deps
deps: ## Install what Debian 12 lacks (nothing to do: done in a second)
	@.ci/deps

.PHONY: build
build: ## Build the programs into bin/, static; needs no clang
	$(GO_BUILD) -o bin/ ./cmd/...

.PHONY: generate
generate: deps ## Compile the BPF programs and write their Go bindings
	go generate ./...

.PHONY: check-generate
check-generate: deps ## Fail if the generated files in the tree are out of date
	.ci/check-generate

.PHONY: lint
lint: deps ## Check style, import directions and common mistakes
	.ci/lint

.PHONY: fmt
fmt: deps ## Lay out Go and C as lint wants them
	gofmt -l -w $$(git ls-files --cached --others --exclude-standard -- '*.go')
	git ls-files -z --cached --others --exclude-standard -- '*.c' '*.h' | xargs -0r clang-format -i

.PHONY: test
test: deps build ## Run all tests; as root, they make their own namespaces
	go test -count=1 -timeout 20m $(TESTFLAGS) ./...

FRAMES ?= 1000000

.PHONY: oracle
oracle: deps ## Hold a million frames against the Linux bridge, and as many in VLANs (an hour; FRAMES=N for others, SEED=N repeats a run)
	go test -count=1 -timeout 3h -v ./testvm/oracle -run '^TestOracle(WithVLANs)?$$' -frames $(FRAMES) $(if $(SEED),-seed $(SEED))
	go test -count=1 -timeout 3h -v ./testvm/oracle/guest -frames $(FRAMES) $(if $(SEED),-seed $(SEED))

FUZZTIME ?= 30s

.PHONY: fuzz
fuzz: deps ## Run each fuzz test of the tree for FUZZTIME (30s)
	go test -list '^Fuzz' ./... | awk '/^Fuzz/ { names = names " " $$1 } /^ok/ { if (names) print $$2 names; names = "" }' | \
	while read -r package names; do for name in $$names; do \
		go test "$$package" -run "^$$name\$$" -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) || exit 1; \
	done; done

.PHONY: test-oracle
test-oracle: oracle

CHANGES ?= 100000

.PHONY: test-routes
test-routes: deps ## Hold the guest's routing against the kernel over 100,000 changes of routes (minutes; CHANGES=N, SEED=N)
	go test -count=1 -timeout 60m -v ./guestbpf -run 'TestAgreesWithKernel$$' -changes $(CHANGES) $(if $(SEED),-seed $(SEED))

.PHONY: test-kernels
test-kernels: deps ## Run the host's tests in guests with five kernels, and frames through them (half an hour; KERNELS=6.1,6.12 for some)
	go test -count=1 -timeout 3h -v ./testvm/kernels -kernels $(or $(KERNELS),all) $(TESTFLAGS)
	go test -count=1 -timeout 1h -v ./testvm/pair -kernels $(or $(KERNELS),all)

.PHONY: demo
demo: deps build ## Build a host, a wire and guests, and show the fast path beside the bridge
	bin/tapswitch lab

.PHONY: bench
bench: deps build ## Measure the cost of a frame, six ways
	bin/tapswitch bench uplink

.PHONY: install
install: build ## Install programs, unit, man pages and completions under DESTDIR and PREFIX
	install -d $(DESTDIR)$(SBINDIR) $(DESTDIR)$(UNITDIR) $(DESTDIR)$(CONFDIR) $(DESTDIR)$(SHARE)/man/man8
	install -m 0755 bin/tapswitch bin/tapswitch-hook bin/tapswitchd bin/tapswitch-guest $(DESTDIR)$(SBINDIR)
	sed 's|@SBINDIR@|$(SBINDIR)|' packaging/tapswitchd.service > $(DESTDIR)$(UNITDIR)/tapswitchd.service
	@# A configuration that is there is the operator's; the reference is all comments.
	[ -e $(DESTDIR)$(CONFDIR)/tapswitch.toml ] || install -m 0644 cmd/tapswitchd/config/tapswitch.toml $(DESTDIR)$(CONFDIR)
	bin/tapswitch gen-docs --man $(DESTDIR)$(SHARE)/man/man8 --completions $(DESTDIR)$(SHARE)

.PHONY: clean
clean: ## Remove what build made
	rm -rf bin
