# Everything a newcomer or CI runs. Needs Python 3.11 or newer with venv, nothing else; all is installed into .venv.

.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PINS := requirements/constraints.txt
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint $(PINS)

# The first interpreter that is new enough and can make virtual environments. Another one: make PYTHON=... demo
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

# Where Python may not write bytecode by itself, each import of torch would compile it again: 3 seconds a process.
COMPILE := test -z "$$PYTHONDONTWRITEBYTECODE" || $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib pool workers examples benchmarks || true

# More arguments for pytest, for example: make test ARGS="-k ledger -x"
ARGS ?=

# Tests wait for processes more than they compute: two files at a time.
PARALLEL ?= -n 2 --dist loadfile

# Address of an index with PyTorch's CPU builds; empty: pip's configured sources are asked.
export TORCH_INDEX ?=

.PHONY: help
help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 25

# ---- what to run

.PHONY: demo
demo: $(VENV)/.demo-installed  ## run a small search on this machine and draw its memory over time
	$(BIN)/python examples/demo.py

.PHONY: test
test: $(VENV)/.dev-installed  ## run the tests that need no GPU
	$(BIN)/python -m pytest -m "not slow and not gpu" $(PARALLEL) $(ARGS)

.PHONY: test-slow
test-slow: $(VENV)/.dev-installed  ## run the slow tests that need no GPU: faults, load, the wheel
	$(BIN)/python -m pytest -m "slow and not gpu" $(ARGS)

.PHONY: test-examples
test-examples: $(VENV)/.examples-installed  ## run the examples with Lightning, Transformers, LightGBM and accelerate
	$(BIN)/python -m pytest -m "not gpu" tests/training/test_examples.py tests/training/test_offloading.py $(ARGS)

.PHONY: test-gpu
test-gpu: $(VENV)/.dev-installed  ## run the tests that need an NVIDIA GPU
	$(BIN)/python -m pytest -m gpu $(ARGS)

.PHONY: chaos
chaos: $(VENV)/.dev-installed  ## play 200 random faults over several hosts; SEED=7 repeats, FAULTS=30 is shorter
	PYTHONPATH=tests $(BIN)/python -m hosts.play $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults $(FAULTS)) $(ARGS)

.PHONY: rq-suite
rq-suite: $(VENV)/.dev-installed  ## run RQ's own worker tests over our worker class; asks the package index for RQ's source
	$(BIN)/python -m pytest -m slow tests/rq_suite $(ARGS)

.PHONY: check
check: format-check lint types imports  ## all checks that do not run the code

.PHONY: format-check
format-check: $(VENV)/.dev-installed
	$(BIN)/ruff format --check .

.PHONY: lint
lint: $(VENV)/.dev-installed
	$(BIN)/ruff check .

.PHONY: types
types: $(VENV)/.dev-installed
	$(BIN)/mypy

.PHONY: imports
imports: $(VENV)/.dev-installed
	$(BIN)/lint-imports --no-logo

.PHONY: format
format: $(VENV)/.dev-installed  ## write the source the way `make check` wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: bench
bench: $(VENV)/.dev-installed  ## measure this machine: overheads, packing, the whole search
	$(BIN)/python -m benchmarks $(ARGS)

.PHONY: bench-peers
bench-peers: $(VENV)/.dev-installed $(VENV)/.bench-installed  ## run the pool beside threads, processes, RQ and Ray Tune: cost, loss
	$(BIN)/python -m benchmarks.peers $(ARGS)

.PHONY: bench-scale
bench-scale: $(VENV)/.dev-installed  ## simulate up to 1 000 devices: what a trial costs coordinator and Redis
	$(BIN)/python -m benchmarks.simulate $(ARGS)

.PHONY: browser
browser:  ## install the headless Chromium that tests the dashboard's page, where there is none
	@bash requirements/browser.sh

.PHONY: bench-gpu
bench-gpu: $(VENV)/.dev-installed  ## measure an NVIDIA GPU: memory given back, caps, verdicts, victims
	$(BIN)/python -m benchmarks.gpu $(ARGS)

.PHONY: bench-sweep
bench-sweep: $(VENV)/.dev-installed  ## one sweep on an NVIDIA GPU in several ways: by hand, by an oracle, by the pool
	$(BIN)/python -m benchmarks.sweep $(ARGS)

.PHONY: bench-concurrency
bench-concurrency: $(VENV)/.dev-installed  ## on an NVIDIA GPU: trials at once as the pool finds it, against fixed numbers
	$(BIN)/python -m benchmarks.gpu_concurrency $(ARGS)

.PHONY: bench-learning
bench-learning: $(VENV)/.dev-installed  ## on an NVIDIA GPU: learned requests, what they reserve in vain, what is retried
	$(BIN)/python -m benchmarks.gpu_learning $(ARGS)

.PHONY: deploy-check
deploy-check: $(VENV)/.dev-installed $(VENV)/.deploy-installed  ## check all of deploy/; names what it must skip
	$(BIN)/python -m pytest tests/deploy $(ARGS)

.PHONY: clean
clean:  ## remove what was built and cached, but not .venv
	rm -rf dist build demo .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -print0 | xargs -0 rm -rf

# ---- what must be installed for it; a stamp says that it is

$(VENV)/.pip-installed:
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 with venv found: install one, or name it: make PYTHON=/path/to/python"; exit 2; }
	@test -x $(BIN)/python || { echo "Making $(VENV) with $(PYTHON)."; $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.torch-installed: $(PINS) requirements/torch.sh | $(VENV)/.pip-installed
	@bash requirements/torch.sh $(BIN)/python
	@touch $@

$(VENV)/.demo-installed: pyproject.toml $(PINS) $(VENV)/.torch-installed
	@echo "Installing vrampool and what the demo needs into $(VENV); once."
	@$(INSTALL) --editable '.[torch,learn]' matplotlib
	@$(COMPILE)
	@touch $@

$(VENV)/.bench-installed: pyproject.toml $(PINS) | $(VENV)/.dev-installed
	@echo "Installing what the pool is compared with into $(VENV); once."
	@if $(INSTALL) --group bench; then $(COMPILE); touch $@; else echo "Not all could be installed: what is missing is left out."; fi

$(VENV)/.examples-installed: pyproject.toml $(PINS) | $(VENV)/.dev-installed
	@echo "Installing the frameworks of the examples into $(VENV); once."
	@$(INSTALL) --group examples
	@$(COMPILE)
	@touch $@

$(VENV)/.deploy-installed: requirements/deploy.txt requirements/deploy.sh $(PINS) | $(VENV)/.dev-installed
	@echo "Installing what checks deploy/ into $(VENV); once."
	@if bash requirements/deploy.sh $(BIN)/python $(VENV)/node; then touch $@; fi

$(VENV)/.dev-installed: pyproject.toml $(PINS) $(VENV)/.torch-installed
	@echo "Installing vrampool and what tests and checks need into $(VENV); once."
	@$(INSTALL) --editable '.[torch,viz,postgres,dashboard]' --group test --group check
	@$(COMPILE)
	@touch $@
