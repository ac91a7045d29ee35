# Two commands: `make bench` (the main job) and `make test` (everything that CI runs).
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.current
ARGS ?=

.PHONY: bench test lint types format docs clean

bench: $(STAMP)
	$(VENV)/bin/afield bench $(ARGS)

test: lint types
	$(VENV)/bin/pytest --numprocesses auto --dist loadfile $(ARGS)

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
