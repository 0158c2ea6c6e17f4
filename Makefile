# The one door for people and for CI. Bare `make` prints this help.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
REPO ?=
TASK ?=
export REPO TASK
T ?= tests
LOCK_RUN := requirements/run.txt requirements/build.txt
LOCK_DEV := requirements/dev.txt

# uv when it is there (quicker), else pip; both check every hash of the lock files.
INSTALL = if command -v uv >/dev/null 2>&1; then \
	uv pip install --quiet --python $(BIN)/python --require-hashes --no-deps $(1); \
	else $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps $(1); fi

.PHONY: help setup setup-dev lock run demo doctor test unit contract escape fault e2e fmt lint types arrows policies check ci bench fuzz soak clean

help: ## print this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo '  make test T=tests/unit   (one folder or file; make unit, contract, escape, fault, e2e do the same)'
	@echo '  make run REPO=path TASK="what to do"   (without them: map this checkout with the offline engine)'

setup: $(VENV)/.run ## make .venv from the hashed lock files (idempotent)

setup-dev: $(VENV)/.dev ## the same with what tests and checks need

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "rambarde needs Python 3.11 or newer; set PYTHON=/path/to/python3"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { echo "python's venv module is missing: on Debian, install python3-venv"; rm -rf $(VENV); exit 2; }

$(VENV)/.run: $(LOCK_RUN) pyproject.toml | $(BIN)/python
	@echo "setting up $(VENV) from requirements/ (once, less than a minute)" >&2
	@$(call INSTALL,-r requirements/run.txt -r requirements/build.txt)
	@if command -v uv >/dev/null 2>&1; then uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .; \
	else $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .; fi
	@touch $@

$(VENV)/.dev: $(LOCK_DEV) $(VENV)/.run
	@$(call INSTALL,-r requirements/dev.txt)
	@touch $@

lock: ## write the hashed lock files anew (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate pyproject.toml --group build --group dev -o requirements/dev.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate pyproject.toml -c requirements/dev.txt -o requirements/run.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --group build -c requirements/dev.txt -o requirements/build.txt

run: setup ## do the main job: make run REPO=path TASK="…" (this checkout: read-only)
	@if [ -n "$$REPO" ]; then set -- --repo "$$REPO"; else set -- --plan; fi; \
	if [ -n "$$TASK" ]; then set -- "$$@" -- "$$TASK"; fi; \
	exec $(BIN)/rambarde demo "$$@"

demo: setup ## map this checkout with the offline engine, read-only
	@$(BIN)/rambarde demo --plan

doctor: setup ## what this machine's kernel can enforce
	@$(BIN)/rambarde doctor

test: setup-dev ## every test: as this user and, when root, as an ordinary user too
	@$(BIN)/python -m pytest $(T)
	@if [ "$$(id -u)" = 0 ] && [ "$(T)" = tests ]; then tests/as_user.sh; fi

unit contract escape fault e2e: setup-dev ## one folder of the tests
	@$(BIN)/python -m pytest tests/$@

fmt: setup-dev ## format
	@$(BIN)/ruff format supervisor child tests bench && $(BIN)/ruff check --fix --quiet supervisor child tests bench

lint: setup-dev ## ruff, without change
	@$(BIN)/ruff format --check --quiet supervisor child tests bench && $(BIN)/ruff check supervisor child tests bench

types: setup-dev ## mypy, strict
	@$(BIN)/mypy

arrows: setup-dev ## who may import whom
	@$(BIN)/lint-imports

policies: setup-dev ## every policy loads and its examples hold
	@$(BIN)/rambarde policy check

check: lint types arrows policies ## all checks without a test

ci: check test ## what CI runs

bench: setup-dev ## numbers, each a ratio against a baseline of the same run
	@$(BIN)/python bench/run.py

fuzz: setup-dev ## the frame decoder against mutated frames, for a minute
	@$(BIN)/python bench/fuzz_frames.py --seconds 60

soak: setup-dev ## a thousand spawns; slopes of descriptors, memory and processes
	@$(BIN)/python bench/soak.py

clean: ## remove what setup and checks made
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
