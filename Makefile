# Every target works on a fresh checkout: the environment is made on first use and again when its inputs change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One process per core with one torch thread each (tests/conftest.py). Idle processes take tests
# from the end of others' lists, so that neighbours, which share fixtures, mostly stay together.
PARALLEL := -n auto --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help install demo check test torture lint typecheck speed clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt setup.py $(wildcard src/medbn/kernels/c/*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[bench,dev,figures]"
	@touch $@

install: $(READY) ## create .venv with medbn and the development tools

demo: $(READY) ## attack a small model on real digits and write a report, in a minute
	$(BIN)/medbn demo

check: $(READY) ## run the fast tests, in under a minute
	$(BIN)/ruff check --quiet
	$(BIN)/python -m pytest $(PARALLEL) -q -m "not slow and not gpu"

test: $(READY) ## run all tests
	$(BIN)/python -m pytest $(PARALLEL) -q

torture: $(READY) ## try in thousands of random trials to break what docs/reliability.md promises, in some minutes
	$(BIN)/python -m tests.torture

lint: $(READY) ## check style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

typecheck: $(READY) ## check types strictly
	$(BIN)/mypy

speed: $(READY) ## time the defence on this machine, beside BatchNorm
	$(BIN)/medbn speed

clean: ## remove the environment and everything generated
	rm -rf $(VENV) build dist src/*.egg-info src/medbn/kernels/c/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
