# Cutline: every command of CI and of a developer. `make demo` and `make test` set up what they need, on a fresh Debian machine too.
#
#   make setup      Debian packages, virtual environment, compiled modules, Spark's jars, test servers (fast when done)
#   make check      ruff, Biome, and mypy --strict on the product, the tools and the demo
#   make check-js   Biome alone, on the dashboard's modules (biome.json)
#   make audit      known vulnerabilities of the packages that a user installs (needs the network; says so and passes without it)
#   make unit       the unit tests; need no server and no jar, only the virtual environment; under a minute
#   make integration  the tests on real servers and a real Spark
#   make mutants    each breaks one rule of the algorithms, and a test must then fail
#   make test       all of these and the simulation               (PYTEST_ARGS= for more, JOBS= workers of pytest-xdist)
#   make simulate   the simulation alone, SEEDS=10000             (a failing seed replays)
#   make bench      one JSON line a measurement
#   make bench-peers  ConnectorX, PyMySQL, mysql-replication, Debezium and Flink CDC in turn with ours, and the ratios
#   make fuzz       INPUTS=100000 damaged inputs for the decoders, under sanitizers (a finding replays)
#   make demo       a real database into an Iceberg lake, under changes and kills
#   make acceptance  docker-compose.yml run for real: crashes, other numbers of readers, an upgrade; on a Docker daemon of its own,
#                   with stand-ins for the images of registries (ACCEPTANCE_ARGS=--machine takes this machine's Docker and pulls them)
#   make acceptance-kubernetes  the Helm chart on a Kubernetes of one node: crashes, an upgrade (builds Kubernetes at the first use)
#   make test-full  make test with the tests marked full and many more generated cases, the demo, more seeds, 10,000,000
#                   inputs for the decoders, both acceptances, and unit and integration tests on an empty Debian 13; takes hours:
#                   PART=1/5 to PART=5/5 run a part of it each, in at most 45 minutes once its programs are built
#   make map        docs/folders.md, from the first sentence of each file
#   make causes     docs/causes.md, from common/causes.py
#   make manifests  k8s/*.yaml for those without Helm, from k8s/chart (needs Helm, which the first use builds in some minutes)
#   make wheels     the source distribution, and a wheel for each Python that this machine has, in dist/
#   make test-pythons  the unit tests on each Python that this machine has
#   make bare TARGET="check test"  these targets from nothing: the committed tree on an empty Debian 12, or 13 by SUITE=trixie
#   make clean      what was built in this folder; the cache folder (~/.cache/cutline) stays

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
SEEDS ?= 10000
INPUTS ?= 100000
PYTEST_ARGS ?=
ACCEPTANCE_ARGS ?=
# Integration tests wait more than they compute, but each worker needs memory for two databases and perhaps a Spark.
JOBS ?= $(shell cores=$$(nproc); echo $$((cores < 3 ? cores + 1 : 4)))
SUITE ?= bookworm
TARGET ?=
PART ?=

VENV := .venv
PY := $(VENV)/bin/python

COMPILED := $(addprefix services/sources/mysql/decode/,arena.py decimals.py json_text.py row_plan.py values.py result.py row_event.py) \
  services/sources/mysql/binlog/scanner.py
SUITES := tests/browser tests/integration tests/simulation tests/unit

# One interpreter of each version that Cutline supports: pyenv's, else the system's.
PYTHONS ?= $(foreach version,3.11 3.12 3.13 3.14,$(firstword \
  $(wildcard $(HOME)/.pyenv/versions/$(version).*/bin/python$(version) /usr/bin/python$(version))))

.PHONY: setup check check-js audit unit integration mutants test simulate bench bench-peers demo acceptance acceptance-kubernetes fuzz test-full $(FULL_PARTS:%/5=test-full-part-%) bare test-pythons manifests map causes wheels clean \
  compiler debian jars servers

setup: debian $(VENV)/.built jars servers

# ---- Debian packages: installed only where a program is missing ----------------------------------------------------

# `compiler` brings what the virtual environment needs, `debian` also the servers and Java.

# The user of a program (every target, `setup` and the targets that need it, a target, or a release of Debian), the program, the packages
# that bring it. This table is the only such list: tests look programs up here too (tools/programs.py). No package has gh-ost; its test is
# skipped where it is missing.
define PROGRAMS
every        gcc                      gcc libc6-dev
every        g++                      g++
every        $(PYTHON)                python3
setup        mariadbd                 mariadb-server-core
setup        mariadb-install-db       mariadb-server-core
setup        mariadb-binlog           mariadb-client
setup        redis-server             redis-server
setup        debootstrap              debootstrap debian-archive-keyring
setup        chroot                   coreutils
setup        mount                    mount
setup        umount                   mount
setup        java                     default-jre-headless
setup        ps                       procps
setup        pg_lsclusters            postgresql
setup        setpriv                  util-linux
setup        env                      coreutils
setup        curl                     curl
setup        chromium                 chromium fonts-inter
setup        promtool                 prometheus
acceptance-kubernetes  prometheus     prometheus
trixie       valkey-server            valkey-server
fuzz         clang                    clang
test-full    clang                    clang
acceptance   dockerd                  docker.io
acceptance   docker                   docker.io
acceptance   docker-compose           docker-compose
acceptance   tar                      tar
test-full    pt-online-schema-change  percona-toolkit
test-full    etcd                     etcd-server
test-full    systemd-analyze          systemd
bench-peers  mvn                      maven
bench-peers  javac                    default-jdk-headless
acceptance-kubernetes  dockerd        docker.io
acceptance-kubernetes  docker         docker.io
acceptance-kubernetes  tar            tar
acceptance-kubernetes  etcd           etcd-server
acceptance-kubernetes  containerd     containerd
acceptance-kubernetes  runc           runc
acceptance-kubernetes  /usr/lib/cni/bridge  containernetworking-plugins
acceptance-kubernetes  ctr            containerd
acceptance-kubernetes  ip             iproute2
acceptance-kubernetes  ipset          ipset
acceptance-kubernetes  iptables       iptables
acceptance-kubernetes  unshare        util-linux
nobody       gh-ost
endef
export PROGRAMS

compiler debian:
	@missing=(); user=$(if $(filter debian,$@),setup); release=$$(. /etc/os-release 2>/dev/null && echo "$${VERSION_CODENAME-}") || release=; \
	PATH="$$PATH:/usr/local/sbin:/usr/sbin:/sbin"; \
	while read -r needed_by program packages; do \
		case " every $$user $$release $(MAKECMDGOALS) " in *" $$needed_by "*) type -P "$$program" >/dev/null || missing+=($$packages);; esac; \
	done <<<"$$PROGRAMS"; \
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv); \
	$(PYTHON) -c 'import os, sysconfig; os.stat(sysconfig.get_paths()["include"] + "/Python.h")' 2>/dev/null || missing+=(python3-dev); \
	[ $${#missing[@]} -eq 0 ] && exit 0; \
	if [ "$$(id -u)" -ne 0 ] || ! type -P apt-get >/dev/null; then \
		echo "cutline: this machine lacks what these Debian packages bring: $${missing[*]}. Install them (or run 'make setup' as root on Debian)." >&2; exit 1; \
	fi; \
	mapfile -t missing < <(printf '%s\n' "$${missing[@]}" | sort -u); \
	echo "cutline: installing $${missing[*]}" >&2; \
	if [ ! -e /usr/sbin/policy-rc.d ]; then \
		printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d; \
		trap 'rm -f /usr/sbin/policy-rc.d' EXIT; \
	fi; \
	export DEBIAN_FRONTEND=noninteractive; \
	apt-get update -qq </dev/null; \
	apt-get install -y -qq --no-install-recommends "$${missing[@]}" </dev/null >/dev/null

# ---- virtual environment and compiled modules ----------------------------------------------------------------------

$(VENV)/.packages: pyproject.toml | compiler
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cutline: Python 3.11 or newer is needed; name it by make PYTHON=...")'
	@[ -x $(PY) ] || $(PYTHON) -m venv $(VENV)
	@$(PY) -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); \
	  print(*p["build-system"]["requires"], *p["project"]["dependencies"], *p["project"]["optional-dependencies"]["dev"], sep="\n")' > $(VENV)/packages.txt
	@$(PY) -m pip install -q --disable-pip-version-check -r $(VENV)/packages.txt </dev/null
	@touch $@

# What only some targets need: an extra of pyproject.toml.
$(VENV)/.extra-%: pyproject.toml | $(VENV)/.packages
	@$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$*"], sep="\n")' > $(VENV)/$*.txt
	@$(PY) -m pip install -q --disable-pip-version-check -r $(VENV)/$*.txt </dev/null
	@touch $@

# New top-level packages and changed compiled sources need the editable install again.
$(VENV)/.built: $(VENV)/.packages setup.py $(COMPILED) $(wildcard services/sources/mysql/*/*.pxd) $(wildcard */__init__.py)
	@suffix=$$($(PY) -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))'); \
	rm -f $(COMPILED:.py=$$suffix)  # should the build fail, no older module may stand in for the source
	@$(PY) -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps -e . </dev/null
	@compgen -G "$(basename $(lastword $(COMPILED))).*.so" >/dev/null || \
		echo "cutline: the decoders could not be compiled (is there a C compiler?); they are interpreted, many times slower" >&2
	@pwd > $$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/checkout.pth  # python -m services.reader, from any folder
	@touch $@

# ---- Spark's jars (spark_writer/jars.toml) --------------------------------------------------------------------------

jars: debian $(VENV)/.built
	@$(VENV)/bin/cutline setup --with postgresql >/dev/null

# ---- test servers: MySQL's system folder and the data templates ----------------------------------------------------

servers: $(VENV)/.servers

$(VENV)/.servers: $(VENV)/.packages tests/support/databases.py tools/builds.py | debian $(VENV)/.built
	@$(PY) -m tools.prepare >&2
	@touch $@

# ---- what CI and developers run ------------------------------------------------------------------------------------

# Run these tests on JOBS workers of pytest-xdist, then one by one those marked `alone`, whatever the first part found. The exit code is 5,
# pytest's for "no test", only if neither part had one.
pytest = ended=5; \
  for which in "not alone" alone; do \
    workers=; [ "$$which" = alone ] || workers="-n $(JOBS) --dist loadgroup"; \
    code=0; $(VENV)/bin/pytest $(1) -m "$$which" $$workers $(PYTEST_ARGS) || code=$$?; \
    [ $$code -eq 5 ] || { [ $$code -eq 0 ] && [ $$ended -ne 5 ]; } || ended=$$code; \
  done; \
  exit $$ended

check: $(VENV)/.built check-js
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy --strict -p cutline.common -p cutline.services -p cutline.spark_writer -p tools -p tests.acceptance

check-js: $(VENV)/.extra-js
	$(VENV)/bin/biome ci

audit: $(VENV)/.packages
	@$(PY) -m tools.audit

unit: $(VENV)/.built
	$(VENV)/bin/pytest tests/unit -n logical $(PYTEST_ARGS)

integration: setup
	$(call pytest,tests/integration)

mutants: $(VENV)/.built
	$(VENV)/bin/pytest tests/simulation/test_mutants.py -n logical $(PYTEST_ARGS)

test: setup
	$(call pytest,$(SUITES))

simulate: $(VENV)/.built
	$(PY) -m tests.simulation --seeds $(SEEDS) --jobs $$(nproc)

bench: setup
	@$(PY) -m tools.bench

bench-peers: setup $(VENV)/.extra-peers
	@$(PY) -m tools.bench.peers

demo: setup
	@$(PY) -m tests.acceptance.demo

acceptance: setup needs-acceptance
	@$(PY) -m tests.acceptance.compose $(ACCEPTANCE_ARGS)

acceptance-kubernetes: setup needs-acceptance-kubernetes
	@$(PY) -m tests.acceptance.kubernetes

fuzz: setup $(VENV)/.extra-fuzz
	@$(PY) -m tests.fuzz --inputs $(INPUTS)

# What a target needs beyond `setup` (tools/needs.py), before its own work begins.
needs-%: debian $(VENV)/.built $(VENV)/.extra-full
	@$(PY) -m tools.needs $*

FULL_PARTS := 1/5 2/5 3/5 4/5 5/5
ifneq ($(filter-out $(FULL_PARTS),$(PART)),)
$(error PART is one of $(FULL_PARTS), not $(PART))
endif
test-full: $(patsubst %/5,test-full-part-%,$(or $(PART),$(FULL_PARTS)))

# Each test file is in one part, and the parts take about as long (tests/unit/house/test_parts.py). Part 4 has these two files, whichever room they
# are in: Spark's tests take turns on one worker, and growth takes a quarter of an hour of it.
TESTS_1 := tests/browser tests/simulation tests/unit tests/integration/control tests/integration/end_to_end \
  tests/integration/operation tests/integration/source tests/integration/upkeep
TESTS_2 := tests/integration/lake tests/integration/outages tests/integration/pipeline
TESTS_4 := tests/integration/source/test_gentle.py tests/integration/upkeep/test_growth.py

test-full-part-1: FULL_TESTS = $(TESTS_1) $(addprefix --ignore=,$(TESTS_4))
test-full-part-2: FULL_TESTS = $(TESTS_2) $(addprefix --ignore=,$(TESTS_4))
test-full-part-4: FULL_TESTS = $(TESTS_4)

test-full-part-1 test-full-part-2: setup $(VENV)/.extra-fuzz needs-test-full
	export CUTLINE_TEST_FULL=1; $(call pytest,$(FULL_TESTS))

test-full-part-3: setup $(VENV)/.extra-fuzz
	$(PY) -m tests.acceptance.demo
	$(PY) -m tests.simulation --seeds $(SEEDS) --jobs $$(nproc)
	$(PY) -m tests.fuzz --inputs 10000000

test-full-part-4: setup $(VENV)/.extra-fuzz needs-test-full
	$(MAKE) --no-print-directory acceptance
	$(MAKE) --no-print-directory acceptance-kubernetes
	export CUTLINE_TEST_FULL=1; $(call pytest,$(FULL_TESTS))

test-full-part-5:
	SUITE=trixie .ci/bare make unit integration

test-pythons: $(patsubst %,test-%,$(notdir $(PYTHONS)))

test-python%:
	@$(MAKE) --no-print-directory PYTHON=$(filter %/python$*,$(PYTHONS)) VENV=build/venv-$* build/venv-$*/.built
	build/venv-$*/bin/pytest tests/unit $(PYTEST_ARGS)

manifests: $(VENV)/.built $(VENV)/.extra-full
	@$(PY) -m tools.needs manifests
	@$(PY) -m tools.manifests

map: $(VENV)/.packages
	@$(PY) -m tools.folder_map

causes: $(VENV)/.packages
	@$(PY) -m tools.cause_list

# A wheel that auditwheel takes has compiled modules, and runs on every Linux of its manylinux version or newer.
wheels: $(VENV)/.extra-wheels
	@rm -rf dist build/wheels
	@$(PY) -m build --sdist --outdir dist . >/dev/null
	@for python in $(PYTHONS); do \
		$$python -m pip wheel -q --disable-pip-version-check --no-deps -w build/wheels dist/*.tar.gz </dev/null; \
	done
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/auditwheel -v repair --strip -w dist build/wheels/*.whl 2>build/wheels/log || { cat build/wheels/log >&2; exit 1; }
	@ls dist

bare:
	@[ -n "$(TARGET)" ] || { echo 'cutline: say what to run, as in: make bare TARGET="check test"' >&2; exit 2; }
	@SUITE=$(SUITE) .ci/bare make $(TARGET)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f $(COMPILED:.py=.*.so)
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
