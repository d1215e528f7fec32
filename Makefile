# The doors to the project. Each sets up what it needs, from nothing but Python 3.11 or newer.
# PYTHON=/path/to/python3.12 chooses the interpreter; ARGS= goes to the command behind the door.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV ?= .venv
PYTHON ?=
ARGS ?=
TESTS ?=
SEED ?= 0
LIVES ?= 1
export VENV PYTHON

bin := $(VENV)/bin
sources := $(wildcard packages bench tests examples scripts conftest.py)
fast := -m "not slow and not spark and not process and not door" --hypothesis-profile=quick -p no:schemathesis

.PHONY: help setup run test check lowest docs serve cluster bench weight sim faults fuzz lock wheel clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# Rewriting the assertions of every test and compiling it anew takes as long as importing all of them,
# and a server that a test starts would compile its modules, too: these three keep what they compile.
check lowest test: export PYTHONDONTWRITEBYTECODE :=

setup: ## make .venv from requirements.lock (the others do it when needed)
	@scripts/setup.sh

run: setup ## the demonstration: a year of real flights, from a publish to a Spark table
	@$(bin)/python -m examples.flights.run $(ARGS)

# With two workers tests wait now and then, so three workers share two processors. Tests with
# processes of their own wait for half of the time, so they have five workers; a file of them stays
# in one worker, and so do all files that share a session of Spark (tests/scheduling.py). Spark's
# tests have two workers: a JVM keeps a processor busy. What counts its work in a time, or runs Maven,
# has the machine to itself.
# All but the first look only at files in which there may be such tests: collecting all takes twenty
# seconds.
by_file := --dist loadscope --no-loadscope-reorder --processes
test: setup ## every test: fast, real processes, Spark
ifeq ($(strip $(ARGS)),)
	@scripts/airflow.sh
	@failed=0; run() { $(bin)/python -m pytest -q "$$@" || failed=$$?; }; \
	run -n 3 -m "not spark and not process"; \
	run -n 5 $(by_file) -m "process and not spark and not alone"; \
	run -n 2 $(by_file) -m "spark and not alone"; \
	run -n 1 --processes -m "(spark or process) and alone"; \
	exit $$failed
else
	@$(bin)/python -m pytest $(ARGS)
endif

# Types are checked beside the tests: anew that takes half a minute of one processor. TESTS=later
# leaves the fast tests to `make test`, which has them with more examples of each property.
check: setup ## format, lint, types, import contracts, fast tests (under a minute)
	@echo "check: format" && $(bin)/ruff format --check --quiet --diff $(sources)
	@echo "check: lint" && $(bin)/ruff check --quiet $(sources)
	@echo "check: import contracts" && $(bin)/lint-imports --no-logo
ifeq ($(TESTS),later)
	@echo "check: types" && $(bin)/mypy --num-workers 2 $(sources)
else
	@echo "check: types, beside the fast tests"
	@told=$$(mktemp) && trap 'rm -f "$$told"' EXIT; \
	$(bin)/mypy $(sources) >"$$told" 2>&1 & types=$$!; \
	$(bin)/python -m pytest -q -n 2 $(fast) $(ARGS); tests=$$?; \
	wait $$types; types=$$?; cat "$$told"; \
	exit $$((tests ? tests : types))
endif

lowest: ## the fast tests with the lowest versions that pyproject.toml allows
	@scripts/lowest.sh $(ARGS)

docs: setup ## the documentation as a site, in build/site
	@NO_MKDOCS_2_WARNING=1 $(bin)/python -m mkdocs build --quiet --strict $(ARGS)
	@echo "docs: build/site/index.html (its search needs a server: python3 -m http.server -d build/site)"

serve: setup ## a realm and its console on this machine, kept in var/realm
	@$(bin)/penstock serve --data var/realm $(ARGS)

cluster: setup ## a cluster on this machine, with traffic and keys that kill its processes
	@$(bin)/penstock cluster demo $(ARGS)

bench: setup ## the speed table, Penstock and its peers side by side
	@$(bin)/python -m bench $(ARGS)

weight: setup ## sizes of the packages, and figures: names, rooms, the calls of one publish
	@$(bin)/python -m scripts.weight $(ARGS)

faults: setup ## real faults for real processes (ARGS="--seed N --minutes M --loops K --cluster")
	@$(bin)/python -m tests.faults $(ARGS)

fuzz: setup ## nearly right input for all that reads bytes (ARGS="--seconds N")
	@$(bin)/python -m tests.fuzz $(ARGS)

sim: setup ## simulated lives of a realm on a failing disk and network (SEED= the first, LIVES= how many)
	@$(bin)/python -m tests.sim $(SEED) --lives $(LIVES) $(ARGS)

lock: setup ## renew the lock files (ARGS=--upgrade takes newer versions)
	@scripts/lock.sh $(ARGS)

wheel: setup ## what is released, in dist/: wheels, sources, notes, SBOM, checksums; the wheels are tried
	@scripts/wheel.sh

clean: ## remove .venv, caches and build products; var/ is kept
	@rm -rf $(VENV) $(VENV).log .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@rm -rf build dist artifacts derby.log metastore_db spark-warehouse
	@find $(sources) -name __pycache__ -type d -prune -exec rm -rf {} +
