# make demo   a page for the digits training, in an environment of its own
# make test   everything that judges the project: ruff, mypy, pytest
#
# PYTHON chooses the interpreter the environment is made of, PYTEST_ARGS reaches pytest,
# WORKERS= and TIMED_WORKERS= run the tests in one process.

PYTHON ?= python3
PYTEST_ARGS ?=
# Processes, each with whole files: most of the suite waits for processes of its own. Tests that
# judge a program by its times have two, and the machine for themselves.
WORKERS ?= -n 3 --dist loadfile
TIMED_WORKERS ?= -n 2 --dist loadfile
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest
# What PYTEST_ARGS selects may all be on one side.
OR_NONE := || [ $$? -eq 5 ]

# What an installation depends on; sources are seen through the editable install.
DECLARED := setup.cfg pyproject.toml constraints.txt

# What tests compare or check with, beside the environment: without its dependencies, so that pip
# leaves torch alone, and where no other import finds it.
BESIDE := $(BIN)/python -m pip install --quiet -c constraints.txt --no-deps --upgrade --target $(VENV)

.PHONY: demo test clean

demo: $(VENV)/.demo-installed
	$(BIN)/profstack run examples/train_digits.py

# One thread per process: where other processes share the cores, waiting OpenMP threads spin.
test: export OMP_NUM_THREADS ?= 1
test: $(VENV)/.test-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(PYTEST) -m "not timed" $(WORKERS) $(PYTEST_ARGS) $(OR_NONE)
	$(PYTEST) -m timed $(TIMED_WORKERS) $(PYTEST_ARGS) $(OR_NONE)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo-installed: $(DECLARED) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[all,examples]'
	touch $@

$(VENV)/.test-installed: $(DECLARED) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[all,examples,test]'
	$(BESIDE)/torchvision torchvision pillow
	$(BESIDE)/counters thop fvcore iopath portalocker tabulate termcolor tqdm yacs
	$(BESIDE)/axe axe-playwright-python
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
