# crisp: build, test, install. `make` or `make help` lists the targets.
#
# As root, targets that need more Debian packages (see DEBS) install them;
# otherwise they only name them.

SHELL  := /bin/bash
# sudo's secure_path leaves out the directory where Go is usually unpacked.
GO     := $(shell command -v go || ls /usr/local/go/bin/go /usr/lib/go*/bin/go 2>/dev/null | head -1)
# isal: inflate gzip with ISA-L where libisal2 is installed (internal/gunzip)
TAGS   := seccomp containers_image_openpgp nri_no_wasm grpcnotrace isal
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)
PREFIX ?= /usr/local
DESTDIR ?=
BIN     ?= bin
# Build flags of the daemons, besides tags.
BUILD   := -trimpath
# Programs of a later version, which the tests upgrade to.
NEXT_BIN := .cache/vm/next
# Include the executor's tags, so that nothing is compiled twice.
RACE_TAGS := $(TAGS) osusergo netgo

# What the build and the tests need beyond Go and make.
DEBS := gcc libc6-dev libseccomp-dev libisal-dev pkg-config nftables iproute2 procps runc crun gpg gpg-agent e2fsprogs
# What only the tests need: a browser for the agent's page, with a font, and a network and IDs for a user.
TEST_DEBS := chromium fonts-dejavu-core slirp4netns uidmap
VM_DEBS := qemu-system-x86 debootstrap e2fsprogs
CNI_PLUGINS := main/bridge ipam/host-local meta/portmap meta/bandwidth

# Tests that sync files are slow on a disk, so keep their files in memory if a gigabyte is free.
# What the go command builds stays on the disk.
IN_MEMORY = GOTMPDIR=$${GOTMPDIR:-$${TMPDIR:-/tmp}} TMPDIR=$${TMPDIR:-$$(test "0$$(df --output=avail /dev/shm 2>/dev/null | tail -1 | tr -d ' ')" -gt 1000000 && echo /dev/shm || echo /tmp)}
# Linux mounts no EROFS file system from a file of tmpfs, which /tmp is since Debian 13.
ON_DISK = TMPDIR=$${TMPDIR:-$$(test "$$(stat -f -c %T /tmp)" = tmpfs && echo /var/tmp || echo /tmp)}

export CGO_ENABLED = 1
export GO

.PHONY: help all demo unit test race test-upgrade test-vm test-kubelet fuzz soak critest bench lint vuln changelog install deb clean deps vm-deps

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

all: deps ## build everything into bin/
	@mkdir -p $(BIN)/cni
	$(GO) build $(BUILD) -tags "$(TAGS)" -ldflags "$(LDFLAGS)" -o $(BIN)/ ./cmd/crispd ./cmd/crisp
	# Static: the executor runs itself inside containers, where there is no libc.
	$(GO) build $(BUILD) -tags "$(TAGS) osusergo netgo" -ldflags "$(LDFLAGS) -linkmode external -extldflags -static" -o $(BIN)/ ./cmd/crisp-executor
	gcc -Os -s -static -nostartfiles -o $(BIN)/crisp-podinit oci/podinit/podinit.c
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o $(BIN)/cni/ ./cmd/crisp-bridge
	$(foreach p,$(CNI_PLUGINS),CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o $(BIN)/cni/ github.com/containernetworking/plugins/plugins/$(p) &&) true

demo: all ## run a web server, its sidecar and what they need, and show them (DEMO_ONCE=1: exit by itself)
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o bin/webserver ./test/webserver
	@$(GO) build -tags "$(TAGS)" -o bin/demo ./test/demo
	@bin/demo -bin bin

# Unpack the packages instead of installing them, which would start containerd and Prometheus.
# promtool is a package of its own since Debian 13.
.cache/containerd .cache/prometheus .cache/busybox-static: .cache/%:
	@rm -rf $@.part && mkdir -p $@.part && cd $@.part && \
	{ apt-get download -q $* $(if $(filter prometheus,$*),$$(apt-cache pkgnames promtool)) && \
	for deb in *.deb; do dpkg -x $$deb . || exit; done && rm *.deb && mv ../$*.part ../$*; } >/dev/null || \
	echo "cannot download Debian's package $*: tests that need it are skipped"
	@rm -rf $@.part

# Shims of other runtimes, and a runc that restores on cgroup v2, from modules of their own: minutes at
# first, then what go's cache has.
# "unprivileged" has them once more, for machines where gVisor's cannot start without help.
.cache/shims: $(wildcard test/shims/*/go.* test/shims/*/*.go)
	@rm -rf $@ $@.part && mkdir -p $@.part/unprivileged && export CGO_ENABLED=0 GOFLAGS=-trimpath && \
	{ $(GO) -C test/shims/gvisor build -ldflags "-s -w" -o $(CURDIR)/$@.part/runsc gvisor.dev/gvisor/runsc && \
	$(GO) -C test/shims/gvisor build -ldflags "-s -w" -o $(CURDIR)/$@.part/containerd-shim-runsc-v1 gvisor.dev/gvisor/shim && \
	$(GO) -C test/shims/containerd build -ldflags "-s -w" -o $(CURDIR)/$@.part/ github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2 && \
	{ CGO_ENABLED=1 $(GO) -C test/shims/runc build -tags "seccomp osusergo netgo" -ldflags "-s -w -extldflags -static" -o $(CURDIR)/$@.part/ github.com/opencontainers/runc || echo no runc; } && \
	$(GO) build -ldflags "-s -w" -o $@.part/unprivileged/containerd-shim-runsc-v1 ./test/shims/unprivileged && \
	ln $@.part/unprivileged/containerd-shim-runsc-v1 $@.part/unprivileged/containerd-shim-runc-v2 && mv $@.part $@; } >$@.log 2>&1 || \
	echo "cannot build the shims of gVisor and runc: tests that need them are skipped ($$(tail -1 $@.log))"
	@rm -rf $@.part

test: DEBS += $(TEST_DEBS)
test: all .cache/containerd .cache/prometheus .cache/busybox-static .cache/shims ## run every test, including those that touch the kernel (root)
	@test "$$(id -u)" = 0 || { echo "make test: the kernel tests need root: run sudo make test"; exit 1; }
	$(GO) vet -tags "$(TAGS)" ./...
	@$(GO) build -o .cache/skips ./test/skips
	$(ON_DISK) CRISP_BIN=$(CURDIR)/bin .cache/skips $(GO) test -tags "$(TAGS)" -count 1 -timeout 30m ./...
	# Containers in shims have neither init.
	$(ON_DISK) CRISP_BIN=$(CURDIR)/bin CRISP_TEST_INIT=libcontainer .cache/skips -part $(GO) test -tags "$(TAGS)" -count 1 -timeout 30m -skip '^TestShim' ./oci/executor

# Tests that need neither root nor the kernel; root runs the same ones. Many of them wait, so
# more run at a time than there are CPUs, and the slowest packages start first, while the others
# are linked. GOGC makes the linker collect garbage less often: linking is half of the time.
unit: ## run the tests that need no root (ARGS="./server/... -run Exec")
	@CRISP_TEST_ROOT=no GOGC=400 $(IN_MEMORY) $(GO) test -tags "$(TAGS)" -vet=off -short -p 4 -parallel 8 $(or $(ARGS),./server ./oci ./cmd/crisp $$($(GO) list -tags "$(TAGS)" ./... | grep -v '/crisp/test$$'))

race: .cache/containerd .cache/prometheus .cache/busybox-static .cache/shims ## run the tests with the race detector, on daemons built with it (root; ARGS="./server ./agent/... ./apiserver/...")
	@test "$$(id -u)" = 0 || { echo "make race: the kernel tests need root: run sudo make race"; exit 1; }
	$(MAKE) --no-print-directory all BIN=.cache/race BUILD=-race TAGS="$(RACE_TAGS)"
	@$(GO) build -o .cache/skips ./test/skips
	# By default each process sleeps for a second before it exits, as long as many tests take.
	$(ON_DISK) CRISP_BIN=$(CURDIR)/.cache/race GORACE=atexit_sleep_ms=0 .cache/skips $(if $(findstring -run,$(ARGS)),-part) $(GO) test -race -vet=off -count 1 -tags "$(RACE_TAGS)" -timeout 60m $(or $(ARGS),./...)

test-vm: all vm-deps .cache/shims $(if $(QUICK),,.cache/containerd) ## run the tests on a node with systemd, in an emulator (root; QUICK=1: the short form; ARGS="-steps …")
	packaging/deb.sh $(BIN) "$(VERSION)"
ifndef QUICK
	$(MAKE) --no-print-directory all BIN=$(NEXT_BIN) VERSION="$(VERSION)-next"
	packaging/deb.sh $(NEXT_BIN) "$(VERSION)-next"
endif
	@mkdir -p .cache/vm
	$(GO) build -o .cache/vm/test-vm ./test/vm # and not "go run", which would not pass signals on
	GO="$(GO)" .cache/vm/test-vm $(if $(QUICK),-quick,-next $(NEXT_BIN)/crisp_*.deb) -tags "$(TAGS)" -deb $(BIN)/crisp_*.deb $(ARGS)

test-kubelet: all .cache/containerd ## compare agent and metrics with the real kubelet, which it builds first: minutes, and 2 GiB of modules and cache (root)
	@mkdir -p .cache
	cd test/kubelet && $(GO) build -ldflags "-s -w" -o ../../.cache/kubelet k8s.io/kubernetes/cmd/kubelet
	cd test/kubelet && CRISP_BIN=$(CURDIR)/bin $(GO) test -count 1 -timeout 30m -v $(ARGS) .

# Builds the other release in its own tree, and removes that afterwards.
test-upgrade: all ## upgrade crispd and its executor FROM=<git revision>, and back, under containers (root; CONTAINERS=50)
	@test "$$(id -u)" = 0 || { echo "make test-upgrade: containers need root: run sudo make test-upgrade"; exit 1; }
	@git rev-parse -q --verify "$(FROM)^{commit}" >/dev/null || { echo "make test-upgrade: FROM=<git revision> is missing"; exit 1; }
	@rm -rf .cache/from && mkdir -p .cache/from && git archive "$(FROM)" | tar -x -C .cache/from
	@trap 'rm -rf .cache/from' EXIT; \
	$(MAKE) --no-print-directory -C .cache/from all VERSION="from-$$(git rev-parse --short "$(FROM)")" BIN=bin && \
	CRISP_BIN=$(CURDIR)/bin UPGRADE_FROM=$(CURDIR)/.cache/from/bin $(GO) test -tags "$(TAGS)" -count 1 -timeout 30m -v ./test -run TestUpgradeFrom

fuzz: deps ## run every fuzz target for TIME=30s, to find failing inputs (root; ARGS="-run ^image/", -keep)
	$(IN_MEMORY) $(GO) run ./test/fuzz -tags "$(TAGS)" -time $(or $(TIME),30s) $(ARGS)

soak: all ## run everything at once for TIME=10m, with random kills, and check for leftovers (root; SEED=…; ARGS="-stuck .": next to stuck things)
	@mkdir -p .cache/soak
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o .cache/soak/testbin ./test/testbin
	@$(GO) build -tags "$(TAGS)" -o .cache/soak/soak ./test/soak # and not "go run", which would not pass signals on
	.cache/soak/soak $(if $(TIME),-time $(TIME)) $(if $(SEED),-seed $(SEED)) $(ARGS)

critest: all ## run the critest found on PATH against a fresh crispd (root)
	@$(GO) build -o .cache/specs ./test/conformance
	SPECS=.cache/specs bash test/conformance/critest.sh bin $(ARGS)

bench: all ## measure CRI endpoints side by side: make bench ARGS="-endpoint name=unix:///…"
	$(GO) run -tags "$(TAGS)" ./test/bench $(ARGS)

# Staticcheck is a module's program; where modules cannot be had, LINT=strict makes that an error.
lint: deps ## gofmt, vet and staticcheck, with nothing to say
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "gofmt would change:" $$out; exit 1; }
	$(GO) vet -tags "$(TAGS)" ./...
	@mkdir -p .cache
	@if $(GO) -C test/tools build -o $(CURDIR)/.cache/staticcheck honnef.co/go/tools/cmd/staticcheck; then \
		echo .cache/staticcheck -checks all ./...; .cache/staticcheck -checks all -tags "$(TAGS)" ./...; \
	else echo "staticcheck: NOT RUN, it cannot be built"; test "$(LINT)" != strict; fi

vuln: deps ## look up known vulnerabilities of linked modules (GOVULNDB=URL: another database)
	$(GO) run ./test/vuln -tags "$(TAGS)" ./cmd/...

changelog: ## make CHANGELOG.md from docs/changes
	$(GO) run ./packaging/changelog docs/changes CHANGELOG.md

install: all ## install below $(PREFIX)
	packaging/install.sh $(BIN) "$(DESTDIR)" "$(PREFIX)"

deb: all ## build the Debian package in bin/
	packaging/deb.sh $(BIN) "$(VERSION)"

clean: ## remove everything that was built
	rm -rf bin .cache

vm-deps: DEBS += $(VM_DEBS)
# A program that is there from elsewhere does as well as the package of its name: Ubuntu has no package of Chromium.
deps vm-deps:
	@test -n "$(GO)" || { echo "Go is not on PATH (1.26 or newer is needed)"; exit 1; }
	@missing=; for p in $(DEBS); do dpkg -s $$p >/dev/null 2>&1 || command -v $$p >/dev/null || missing="$$missing $$p"; done; \
	test -z "$$missing" && exit 0; \
	command -v apt-get >/dev/null || { echo "not a Debian system: please install the equivalents of$$missing"; exit 1; }; \
	test "$$(id -u)" = 0 || { echo "missing packages:$$missing (as root, make installs them)"; exit 1; }; \
	echo "installing$$missing"; \
	{ apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing; } >/dev/null
