# Everything goes through .venv, made on first use with the versions pinned in constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: demo test test-all lint bench clean

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

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[train,report,graph,lightning,transformers,cluster,export,dev]"
	touch $@

clean:
	rm -rf .venv build dist src/*.egg-info
