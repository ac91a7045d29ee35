# Two commands: `make bench` (the main job) and `make test` (everything that CI runs).
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.current
ARGS ?=

.PHONY: bench test lint types format clean

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

# Made anew when pyproject.toml changes; otherwise a no-op.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
