# `make bench` is the main job, `make test` everything that CI runs, `make quick` its quick tests.
PYTHON ?= python3
VENV := .venv
# What running needs, and what tests and documentation need in addition.
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.current
ARGS ?=
PYTEST := $(VENV)/bin/pytest --numprocesses auto --dist worksteal

.PHONY: bench quick test tests coverage house mutants torture test-gpu speed wheel-test lint types format docs clean

bench: $(RUNTIME)
	$(VENV)/bin/afield bench $(ARGS)

# Lint, and the tests that take no more than a second and need no cluster, browser or downloaded data.
quick: lint
	$(PYTEST) -m "not slow and not ray and not browser and not data" $(ARGS)

# Types are checked beside the tests, because the type checker uses one core only.
test: lint
	$(MAKE) --no-print-directory --jobs=2 types tests

# The tests that need a GPU; without one they are skipped.
test-gpu: $(STAMP)
	$(PYTEST) -m gpu --numprocesses 1 $(ARGS)

tests: $(STAMP)
	$(PYTEST) $(ARGS)

# All tests, and the share of each room that they execute; takes half as long again as the tests.
coverage: $(STAMP)
	$(PYTEST) --cov --cov-report json $(ARGS)
	$(VENV)/bin/python -m tests.room_coverage build/coverage.json

# The rooms and files of the package with a line each, and numbers about its shape.
house: $(STAMP)
	$(VENV)/bin/python -m tests.house

# Change one operator, number or comparison at a time; the tests of the module must notice it.
mutants: $(STAMP)
	$(VENV)/bin/python benchmarks/mutants.py $(ARGS)

# Kills, crowds, full disks and broken files; about half an hour on two cores.
torture: $(STAMP)
	PYTHONPATH=. $(VENV)/bin/python benchmarks/torture.py
	PYTHONPATH=. $(VENV)/bin/python benchmarks/fuzz.py

# Measure the numbers of docs/speed.md again; about half an hour on two cores.
speed: $(STAMP)
	$(VENV)/bin/python benchmarks/speed.py $(ARGS)

# Install the wheel with all that it depends on into a new environment, and run it: minutes, gigabytes.
wheel-test: $(STAMP)
	AFIELD_FRESH_WHEEL=1 $(VENV)/bin/pytest tests/test_wheel.py $(ARGS)

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

# Install packages, with a line every half minute, so that a slow download does not look dead.
define install
	@echo "installing $(1) into $(VENV); this happens once, and can take several minutes"
	@( n=0; while sleep 30; do n=$$((n + 30)); echo "still installing $(1), $$n seconds"; done ) & \
	beat=$$!; trap 'kill $$beat' EXIT; \
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --editable $(2)
endef

# Made anew when pyproject.toml changes; otherwise a no-op.
$(RUNTIME): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(call install,what running needs,.)
	touch $@

$(STAMP): $(RUNTIME)
	$(call install,what tests need,".[dev]")
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
