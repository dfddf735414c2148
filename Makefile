# Every target builds what it needs into .venv; nothing else has to be done first.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
# A program of the tests: a folder of tests/ with its own command.
PROGRAM := PYTHONPATH=.:tests $(PY) -m

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

$(READY): pyproject.toml requirements.lock
	@command -v java > /dev/null || { echo "Java is missing: install a Java 17 runtime (Debian: apt-get install openjdk-17-jre-headless)" >&2; exit 1; }
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; python3 is $$(python3 --version)" >&2; exit 1; }
	@echo "building $(VENV) (Python packages from requirements.lock; a minute or two) …"
	@test -x $(PY) || python3 -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock 2> $(VENV)/pip.log || { cat $(VENV)/pip.log >&2; exit 1; }
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . 2> $(VENV)/pip.log || { cat $(VENV)/pip.log >&2; exit 1; }
	@touch $(READY)

venv: $(READY) ## the virtual environment, with coordd and coordctl in it

demo: $(READY) ## three nodes, one launch, a kill -9, a takeover: watch it (about two minutes)
	@$(PY) deploy/demo.py

test: $(READY) ## every test
	@$(PY) tests/run.py $(ARGS)

bench: $(READY) ## the benchmarks, as a table and as JSON
	@$(PROGRAM) bench $(ARGS)

check: $(READY) ## format, lint and types
	@$(VENV)/bin/ruff format --check coordd tests deploy docs
	@$(VENV)/bin/ruff check coordd tests deploy docs
	@$(VENV)/bin/mypy

sim: $(READY) ## the simulator: SEEDS=2000, or SEED=7 for the transcript of one world
	@$(PROGRAM) simulator $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(HOURS),--hours $(HOURS)) $(ARGS)

mutants: $(READY) ## break each safety rule in turn; the simulator must notice
	@$(PROGRAM) simulator --mutants $(ARGS)

lua: $(READY) ## what the scripts in Redis know of the rules, written again from the rules in Python
	@$(PY) -m coordd.adapters.ledger.lua_constants

mutants-lua: $(READY) ## change the ledger's scripts in Redis line by line; the contract tests must notice
	@$(PROGRAM) lua_mutants $(ARGS)

chaos: $(READY) ## five daemons, RabbitMQ and Redis under faults: MINUTES=10 SETUP=redis|sentinel SEED=7
	@$(PROGRAM) chaos $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SETUP),--setup $(SETUP)) $(if $(SEED),--seed $(SEED)) $(ARGS)

ticks: $(READY) ## 1,000 ticks of coordd exec on five nodes that are killed, clocks 5 s off (half an hour): SEED=7
	@$(PROGRAM) kills ticks $(if $(SEED),--seed $(SEED)) $(ARGS)

owners: $(READY) ## scheduled jobs whose owners are killed around their fire times, 1,000 times (an hour): SEED=7
	@$(PROGRAM) kills owners $(if $(SEED),--seed $(SEED)) $(ARGS)

pool: $(READY) ## 500 triggers for a pool of 4 on five nodes that are killed: how long a free slot is not used: SEED=7
	@$(PROGRAM) kills pool $(if $(SEED),--seed $(SEED)) $(ARGS)

arrivals: $(READY) ## 10,000 files appear in bursts, five nodes poll and are killed, each file is one run (an hour): SEED=7
	@$(PROGRAM) arrivals $(if $(SEED),--seed $(SEED)) $(ARGS)

diamond: $(READY) ## a run, 1,000 runs after it, one after all of these, while a node is killed every 5 s: SEED=7
	@$(PROGRAM) kills diamond $(if $(SEED),--seed $(SEED)) $(ARGS)

applications: $(READY) ## the submitter of a driver on a cluster is killed at each line of its launch (40 min): ROUNDS=20 SEED=1
	@$(PROGRAM) system.applications $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

syscalls: $(READY) ## an error and a crash at every system call of a launch, an end, a takeover (an hour): SEED=1
	@$(PROGRAM) syscalls $(if $(SEED),--seed $(SEED)) $(ARGS)

fuzz: $(READY) ## spoilt bytes for everything that reads bytes of others: INPUTS=1000000 for each target
	@$(PROGRAM) fuzz $(if $(INPUTS),--inputs $(INPUTS)) $(ARGS)

soak: $(READY) ## real clusters under a steady load, HOURS=0.25: nothing that they hold may grow
	@$(PROGRAM) soak $(if $(HOURS),--hours $(HOURS)) $(ARGS)

oracle: $(READY) ## the history pipeline against plain Python, in every kind of disorder: EVENTS=1000000 SEED=1
	@$(PROGRAM) history.oracle $(if $(EVENTS),--events $(EVENTS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

plans: $(READY) ## random edits of job files, planned and found by brute force: EDITS=10000
	@$(PROGRAM) plans $(if $(EDITS),--edits $(EDITS)) $(ARGS)

hosts: $(READY) ## the packages in all their troubles, on bare Debians with a real systemd (ten minutes)
	@PYTHONPATH=. $(PY) -m pytest -q tests/system/packages $(ARGS)

# What a site installs. PACKAGES: a program of deploy/packages.
PACKAGES := PYTHONPATH=.:deploy $(PY) -m packages

wheel: $(READY) ## build/packages/coordd-VERSION.whl, with units, man pages, completions and docs as data
	@$(PACKAGES) wheel

wheelhouse: $(READY) ## build/wheelhouse: all wheels with their lock, to install offline; EXTRAS="uvloop spark"
	@$(PACKAGES) wheelhouse $(EXTRAS)

deb: $(READY) ## build/packages/coordd_VERSION_ARCH.deb, for the Debian that has the Python of .venv
	@$(PACKAGES) deb

rpm: $(READY) ## build/packages/coordd-VERSION.rpm
	@$(PACKAGES) rpm

clean: ## remove what the other targets have built
	@rm -rf $(VENV) build artifacts .mypy_cache .ruff_cache .pytest_cache .hypothesis

.PHONY: help venv demo test bench check sim mutants lua mutants-lua chaos ticks owners pool diamond arrivals applications syscalls fuzz soak oracle plans hosts wheel wheelhouse deb rpm clean
