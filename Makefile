# Every target works on a fresh checkout: the environment is made on first use and again when its inputs change.
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
VENV := .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
READY := $(VENV)/.ready
# One process per core with one torch thread each (tests/conftest.py). Idle processes take tests
# from the end of others' lists, so that neighbours, which share fixtures, mostly stay together.
PARALLEL := -n auto --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help install demo check test coverage torture lint typecheck docs speed clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(READY): pyproject.toml $(CONSTRAINTS) setup.py $(wildcard src/medbn/kernels/c/*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS) --editable ".[bench,dev,figures]"
	@touch $@

install: $(READY) ## create .venv with medbn and the development tools

demo: $(READY) ## attack a small model on real digits and write a report, in a minute
	$(BIN)/medbn demo

check: $(READY) ## run the fast tests, in under a minute
	$(BIN)/ruff check --quiet
	$(BIN)/python -m pytest $(PARALLEL) -q -m "not slow and not gpu"

test: $(READY) ## run all tests
	$(BIN)/python -m pytest $(PARALLEL) -q

coverage: $(READY) ## run all tests, and show which lines of src they run; fails below 95 %
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(PARALLEL) -q
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

torture: $(READY) ## try in thousands of random trials to break what docs/reliability.md promises, in some minutes
	$(BIN)/python -m tests.torture

lint: $(READY) ## check style, formatting and spelling, and the files that GitHub reads
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml examples/ci_matrix.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/idea.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.citation-file-format CITATION.cff

typecheck: $(READY) ## check types strictly
	$(BIN)/mypy

$(VENV)/.ready-docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS) --editable ".[docs]"
	@touch $@

docs: $(VENV)/.ready-docs ## build the site into build/docs: all examples are run, warnings are errors, links are checked
	rm -rf build/docs docs/gallery
	$(BIN)/sphinx-build --fresh-env --fail-on-warning --keep-going --quiet docs build/docs
	$(BIN)/python docs/_ext/check_links.py build/docs

speed: $(READY) ## time the defence on this machine, beside BatchNorm
	$(BIN)/medbn speed

clean: ## remove the environment and everything generated
	rm -rf $(VENV) build dist src/*.egg-info src/medbn/kernels/c/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
