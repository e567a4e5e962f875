# Every command of the project. Each sets up what it needs first; `make help` lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
ARGS ?=
# The interpreter that .venv is made from, if not the first that fits: make setup PYTHON=python3.13
PYTHON ?=

# The stamp's name holds what the environment was made from: a switch of branch and back needs no network.
STAMP := $(VENV)/.setup-$(shell (pwd; cat pyproject.toml constraints.txt) | sha256sum | cut -c1-16)

# What tells an environment of ours from somebody's own, which is used where it fits and never emptied.
MADE := $(VENV)/.made-by-setup

PACKAGES := $(wildcard discovery drills examples fabric frontdoor overspill router workers)
COMPILED := .cache/compiled
# What crosses processes, and what compiled code could do otherwise: memory, errors, and types that a user gets wrong.
PASSES_A_WIRE := tests/contract/test_bytes.py tests/contract/test_calls.py tests/contract/test_death.py tests/integration/test_router_failures.py \
	tests/unit/fabric/memory tests/unit/fabric/local tests/unit/router/test_attempt.py tests/unit/router/test_inputs.py \
	tests/unit/workers/test_execution.py
# The compiled package comes first and the checkout, which has the tests, after it; children inherit both.
WITH_COMPILED := PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/$(COMPILED):$(CURDIR)

# A shell function that recipes begin with.
define INSTALL_SYSTEM
install_system() {
    command -v apt-get >/dev/null || { echo "setup: install $$* with your system's package manager, then run make again" >&2; exit 1; }
    as_root=""
    [ "$$(id -u)" = 0 ] || as_root=sudo
    echo "setup: installing $$* (once)"
    $$as_root apt-get update -qq
    $$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$$@" >/dev/null
}
endef

define OURS
fits() { { $(PY) -c pass && head -n 3 $(VENV)/bin/pip | grep -qF "$(abspath $(VENV))/"; } 2>/dev/null; }
ours() {
    if [ -L $(VENV) ]; then [ -z "$$(ls -A $(VENV)/ 2>&1)" ]; return; fi
    [ ! -e $(VENV) ] || [ -e $(MADE) ] || [ -z "$$(ls -A $(VENV))" ]
}
endef

.PHONY: help setup compiled test test-compiled test-long test-long-clean lint format types imports bench hw demo clean

help:  ## list the commands
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1\t\2/p' Makefile | expand -t 18

setup: $(STAMP)  ## make .venv with the pinned versions (done by every other command where needed)

$(STAMP):
	@start=$$SECONDS
	$(OURS)
	if ! fits && ! ours; then
		echo "setup: $(VENV) was made for something else, and not by this set-up, which therefore leaves it alone: take it away, or name another place: make VENV=.venv-overspill" >&2
		exit 1
	fi
	usable() { "$$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; }
	find_python() {
		for name in $(PYTHON) python3.11 python3.12 python3.13 python3; do
			if usable "$$name"; then command -v "$$name"; return; fi
		done
	}
	$(INSTALL_SYSTEM)
	python=$$(find_python)
	if [ -z "$$python" ] && ! command -v python3 >/dev/null; then
		install_system python3 python3-venv
		python=$$(find_python)
	fi
	if [ -z "$$python" ]; then
		echo "setup: Overspill needs Python 3.11 to 3.13, and $$(python3 --version 2>&1) is what this machine has: install one of them, then run make again" >&2
		exit 1
	fi
	# Debian ships venv without the pip that goes into one, in a package of its own.
	"$$python" -c 'import ensurepip, venv' 2>/dev/null || install_system "$$("$$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
	# Scripts in a venv name its path: one that came from a moved or copied checkout is made again.
	if ! fits; then
		mkdir -p $(VENV)
		find $(VENV)/ -mindepth 1 -delete
		touch $(MADE)
		"$$python" -m venv $(VENV)
	fi
	# Without build isolation the build uses the pinned setuptools, and needs no network once everything is there.
	pip="$(PY) -m pip --disable-pip-version-check --no-input install --quiet --constraint constraints.txt"
	$$pip setuptools
	$$pip --no-build-isolation --editable '.[dev]'
	rm -f $(VENV)/.setup-*
	touch $@
	echo "setup: ready in $$((SECONDS - start)) s ($$($(PY) --version))"

test: $(STAMP)  ## the short forms of all tests, in stages; stops after the first stage that fails
	@short=($(PY) -m pytest -m 'not long and not hw')
	if [ -n "$(ARGS)" ]; then exec "$${short[@]}" $(ARGS); fi
	"$${short[@]}" --ignore tests/integration --ignore tests/softroce
	# What is left waits for others most of the time, so two halves of it run beside each other.
	mkdir -p .cache
	code=0
	others=(tests/integration/test_{docker,frontdoor*,consul*}.py)
	"$${short[@]}" "$${others[@]}" tests/softroce >.cache/beside.log 2>&1 &
	"$${short[@]}" tests/integration "$${others[@]/#/--ignore=}" || code=$$?
	wait $$! || code=$$?
	cat .cache/beside.log
	exit $$code

test-long: $(STAMP)  ## the long forms; run again after an interruption, it goes on where it stopped
	@$(PY) -m pytest -m 'long and not hw' --resume --timeout 1800 $(ARGS)

test-long-clean:  ## forget which long forms are finished
	@rm -rf .cache/long

lint: $(STAMP)  ## ruff (rules and format), codespell
	@$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	git ls-files -z | xargs -0 -r $(PY) -m codespell_lib

format: $(STAMP)  ## what ruff can mend by itself
	@$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

types: $(STAMP)  ## mypy --strict
	@$(PY) -m mypy

imports: $(STAMP)  ## imports point one way (import-linter)
	@$(VENV)/bin/lint-imports --no-cache --no-logo

compiled: $(STAMP)  ## the package with its hot modules compiled by mypyc, under .cache/compiled
	@start=$$SECONDS
	stamp=$(COMPILED)/.made-$$(find $(PACKAGES) setup.py pyproject.toml -name '*.py' -o -name '*.toml' | sort | { xargs cat; $(PY) --version; } | sha256sum | cut -c1-16)
	if [ -e "$$stamp" ]; then exit 0; fi
	$(INSTALL_SYSTEM)
	headers=$$($(PY) -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
	command -v gcc >/dev/null || install_system gcc libc6-dev
	[ -e "$$headers/Python.h" ] || install_system "$$($(PY) -c 'import sys; print("python%d.%d-dev" % sys.version_info[:2])')"
	echo "compiled: the hot modules are compiled (about a minute)"
	rm -rf $(COMPILED) .cache/wheel build
	pip="$(PY) -m pip --disable-pip-version-check --no-input"
	OVERSPILL_COMPILE=1 $$pip wheel --quiet --no-deps --no-build-isolation --wheel-dir .cache/wheel .
	$$pip install --quiet --no-deps --target $(COMPILED) .cache/wheel/overspill-*.whl
	rm -rf .cache/wheel build
	touch "$$stamp"
	echo "compiled: ready in $$((SECONDS - start)) s"

test-compiled: compiled  ## the tests of what passes a wire, over the compiled modules
	@# Appended, or pytest would put the checkout first, and the tests' own process would run it interpreted.
	@$(WITH_COMPILED) $(PY) -m pytest -o pythonpath= --import-mode append -m 'not long and not hw' $(or $(ARGS),$(PASSES_A_WIRE))

bench: compiled  ## benchmarks of the compiled package: a table, and JSON under .bench/; `PLAIN=1` takes plain Python
	@$(if $(PLAIN),,$(WITH_COMPILED)) $(PY) -m tests.benchmarks $(ARGS)

hw: $(STAMP)  ## the tests that need a GPU or an RDMA NIC
	@$(PY) -m pytest -m hw $(ARGS)

demo: $(STAMP)  ## a dispatch round with failures on the way; ARGS='--data DIR --seed N --report FILE'
	@$(VENV)/bin/overspill demo $(ARGS)

clean:  ## remove the environment and all caches
	@$(OURS)
	if ours; then rm -rf $(VENV); else echo "clean: $(VENV) is left alone, since set-up did not make it"; fi
	rm -rf .cache .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
