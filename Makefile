# Everything goes through .venv, made on first use with the versions pinned in constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: demo test test-all lint bench docs clean

demo: $(STAMP)
	$(BIN)/bitcycle demo

test: lint
	$(PYTEST) -n 2 --dist worksteal -m "not slow"

test-all: $(STAMP)
	$(PYTEST) -m slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python benchmarks/step_time.py

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo site/index.html

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[train,report,graph,lightning,transformers,cluster,export,docs,dev]"
	touch $@

clean:
	rm -rf .venv build dist site src/*.egg-info
