# Two commands that set everything up on a fresh machine: `make demo` and `make test`.
# On Linux, a smaller torch without CUDA: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make demo

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types pytest docs format clean

demo: $(VENV)/installed
	$(BIN)/vitreous demo

test: lint types pytest

lint: $(VENV)/installed-for-tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: $(VENV)/installed-for-tests
	$(BIN)/mypy

pytest: $(VENV)/installed-for-tests
	$(BIN)/python -m pytest -n 2

# The pages that print their own numbers are made by `python -m scripts.make_pages`, those of the studies by each study.
docs: $(VENV)/installed-for-tests
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

format: $(VENV)/installed-for-tests
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/installed-for-tests: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test]"
	touch $@ $(VENV)/installed

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
