# The targets of docshard; the scripts are in .ci/ and docs/demo/. Needs Debian 12 or newer, or PostgreSQL 15, 17 or 18
# with its server headers. PG=18 chooses a version; PG_BINDIR=… or PG_CONFIG=… names an installation.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help all deps build install deb dist release image demo psql stop test fmt clippy test-core test-pg regress test-cluster test-faults test-upgrade test-checked test-deb test-all test-functional test-parts test-part hook soak fuzz bench instructions clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps: ## install what is missing: Debian packages, cargo-pgrx 0.18.1
	@.ci/deps

build: deps ## build the extension and the gateway, optimised, into target/package/VERSION
	@.ci/package

all: build

install: build ## build both and install them into the local PostgreSQL
	@.ci/install

deb: build ## a Debian package of the extension, in target/deb
	@.ci/deb

dist: ## source archives of the last commit, in target/dist
	@.ci/dist

release: ## what a release's page needs, in target/release/docshard-VERSION: packages, archives, sums, notes; as root
	@.ci/release_files $(VERSIONS)

image: ## build the container images without a registry, and test them and compose.yaml; as root
	@.ci/test_image

demo: install ## four local servers with a sharded social inbox of 200,000 messages
	@docs/demo/run

psql: ## a session on the demo's router
	@docs/demo/psql

stop: ## stop the demo's servers
	@docs/demo/stop

test: deps ## the tests, with a summary at the end; LONG=1 adds the lints and the tests that take long
	@.ci/test

test-parts: ## the parts of the tests, and how long each took
	@.ci/test_part

test-part: deps ## one part: PART=balancer, and TEST=… for those of its tests whose names contain that
	@.ci/test_part $(or $(PART),$(error PART=… is missing: make test-parts lists them)) $(TEST)

hook: ## let git check format and lints before each commit in this clone
	@.ci/hook install

fmt: ## format the code
	cargo fmt --all

clippy: deps ## only the lints
	@.ci/test clippy

test-core: deps ## only the unit and property tests of the core and the gateway
	@.ci/test core

test-pg: deps ## only the tests inside a server process
	@.ci/test in-backend

regress: deps ## only the golden SQL tests
	@.ci/test pg_regress

test-cluster: deps ## only the tests over several servers
	@.ci/test cluster

test-faults: deps ## only the tests that pause, fail and kill processes at fault points
	@.ci/test faults

test-upgrade: deps ## only the upgrades from earlier releases, which are built from this repository's history
	@.ci/test upgrade

test-checked: deps ## only the tests of memory and the golden tests, in a PostgreSQL built with assertions
	@.ci/test_checked

test-deb: ## only the source archive and the Debian package, in a clean Debian; as root
	@.ci/test_deb

test-all: ## all tests with every supported version of PostgreSQL, each in a Debian that has it; as root
	@.ci/test_all $(VERSIONS)

test-functional: install ## the public suite documentdb/functional-tests through a gateway; FUNCTIONAL_TESTS=… is a checkout of it, FOLDER=… a part
	@.ci/test_functional $(FOLDER)

soak: deps ## accidents while chunks move, malformed arguments, random pipelines and messages, for SECONDS=600 each; SEED=… repeats a run
	@DOCSHARD_SOAK_SECONDS=$(or $(SECONDS),600) DOCSHARD_SEED=$(SEED) .ci/test soak

fuzz: ## fuzz the core, FUZZ_S seconds a target (60); needs nightly Rust and cargo-fuzz
	@.ci/fuzz

bench: install ## compare speed with plain PostgreSQL and hand-made sharding
	@bench/run
	@bench/moves
	@PARTS=calls bench/gateway

instructions: ## count the core's instructions with valgrind, and compare with those recorded
	@bench/instructions

clean: ## remove everything built, the demo, the private PostgreSQL
	@for folder in .demo .bench/*/; do .ci/cluster remove $$folder; done
	@for link in .pgrx/var .pgrx/checked/var; do if [ -L $$link ]; then rm -rf "$$(readlink $$link)"; fi; done
	rm -rf .pgrx .bench target
