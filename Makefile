# `make bench` is the main job, `make test` everything that CI runs, `make quick` its quick tests.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.current
ARGS ?=
PYTEST := $(VENV)/bin/pytest --numprocesses auto --dist worksteal

.PHONY: bench quick test tests coverage mutants torture lint types format docs clean

bench: $(STAMP)
	$(VENV)/bin/afield bench $(ARGS)

# Lint, and the tests that take no more than a second and need no cluster, browser or downloaded data.
quick: lint
	$(PYTEST) -m "not slow and not ray and not browser and not data" $(ARGS)

# Types are checked beside the tests, because the type checker uses one core only.
test: lint
	$(MAKE) --no-print-directory --jobs=2 types tests

tests: $(STAMP)
	$(PYTEST) $(ARGS)

# All tests, and the share of each room that they execute; takes half as long again as the tests.
coverage: $(STAMP)
	$(PYTEST) --cov --cov-report json $(ARGS)
	$(VENV)/bin/python -m tests.room_coverage build/coverage.json

# Change one operator, number or comparison at a time; the tests of the module must notice it.
mutants: $(STAMP)
	$(VENV)/bin/python benchmarks/mutants.py $(ARGS)

# Kills, crowds, full disks and broken files; about half an hour on two cores.
torture: $(STAMP)
	$(VENV)/bin/python benchmarks/torture.py
	$(VENV)/bin/python benchmarks/fuzz.py

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(STAMP)
	$(VENV)/bin/mypy

format: $(STAMP)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# The documentation site, in build/site; a broken link or reference is an error.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

# Made anew when pyproject.toml changes; otherwise a no-op.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
