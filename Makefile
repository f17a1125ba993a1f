# make demo   a page for the digits training, in an environment of its own
# make test   everything that judges the project: ruff, mypy, biome where npm is, pytest
# make test-fast   the unit tests alone
# make mutants   changes that tests must notice: a sample, and what survived
# make lint-js   the page's scripts alone: biome, from npm
# make docs   the documentation as a site, build/docs/index.html; a broken link fails
#
# PYTHON chooses the interpreter the environment is made of, PYTEST_ARGS reaches pytest,
# MUTANTS_ARGS scripts/mutants.py, WORKERS= and TIMED_WORKERS= run the tests in one process.

PYTHON ?= python3
PYTEST_ARGS ?=
MUTANTS_ARGS ?=
# Processes, each with whole files, in the order of folders: those that start processes come first,
# so that none of them runs alone at the end. Tests that judge a program by its times have two that
# share the tests, and the machine for themselves.
WORKERS ?= -n 3 --dist loadfile --no-loadscope-reorder
TIMED_WORKERS ?= -n 2
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest
# Each collects its own folders, if PYTEST_ARGS selects none.
UNTIMED := $(or $(PYTEST_ARGS),--ignore=tests/timed)
TIMED := $(or $(PYTEST_ARGS),tests/timed)
# What PYTEST_ARGS selects may all be on one side.
OR_NONE := || [ $$? -eq 5 ]
# A neighbour on the machine may spoil a test that judges by times: those that failed run once more,
# one at a time. A fault of the code fails again.
OR_AGAIN := || $(PYTEST) -m timed --last-failed --last-failed-no-failures none -p no:xdist

# What an installation depends on; sources are seen through the editable install.
DECLARED := setup.cfg pyproject.toml constraints.txt

# What tests compare or check with, beside the environment: without its dependencies, so that pip
# leaves torch alone, and where no other import finds it.
BESIDE := $(BIN)/python -m pip install --quiet -c constraints.txt --no-deps --upgrade --target $(VENV)

.PHONY: demo test test-fast test-untimed check-types mutants lint-js docs clean

demo: $(VENV)/.demo-installed
	$(BIN)/profstack run examples/train_digits.py

# One thread per process: where other processes share the cores, waiting OpenMP threads spin.
test test-fast: export OMP_NUM_THREADS ?= 1
# pytest compiles 40,000 lines with their assertions, in each of its processes: they share the result.
test test-fast: export PYTHONDONTWRITEBYTECODE :=
test: $(VENV)/.test-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --no-print-directory --jobs=2 test-untimed check-types
	$(PYTEST) -m timed $(TIMED_WORKERS) $(TIMED) $(OR_NONE) $(OR_AGAIN)

# Beside each other, since mypy has one process: parts of `make test`.
test-untimed:
	$(PYTEST) -m "not timed" $(WORKERS) $(UNTIMED) $(OR_NONE)

check-types:
	$(BIN)/mypy --strict
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory lint-js; \
	else echo "npm is not installed: the page's scripts were not linted"; fi

test-fast: $(VENV)/.test-installed
	$(PYTEST) tests/unit $(WORKERS) $(PYTEST_ARGS)

mutants: $(VENV)/.mutants-installed
	$(BIN)/python scripts/mutants.py $(MUTANTS_ARGS)

# Biome lints and formats; nothing of it ships. `npx biome check --write` mends what it can.
lint-js: node_modules/.installed
	npx --no-install biome check --error-on-warnings

node_modules/.installed: package.json package-lock.json
	npm ci --no-audit --no-fund --loglevel=error
	touch $@

# Every warning of the build is an error; it writes what changed alone.
docs: $(VENV)/.docs-installed
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c docs . build/docs
	@echo "Wrote build/docs/index.html"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo-installed: $(DECLARED) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[all,examples]'
	touch $@

$(VENV)/.docs-installed: $(DECLARED) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@

$(VENV)/.test-installed: $(DECLARED) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[all,docs,examples,scale,test]'
	$(BESIDE)/torchvision torchvision pillow
	$(BESIDE)/counters thop fvcore iopath portalocker tabulate termcolor tqdm yacs
	$(BESIDE)/axe axe-playwright-python
	touch $@

$(VENV)/.mutants-installed: $(VENV)/.test-installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[mutants]'
	touch $@

clean:
	rm -rf $(VENV) node_modules build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
