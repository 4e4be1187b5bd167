# Everything goes through .venv, made on first use with the versions pinned in constraints.txt.
# The demo installs what it runs; tests, docs and benchmarks add the rest on their first use.
PYTHON ?= python3
BIN := .venv/bin
DEMO := .venv/.demo
ALL := .venv/.all
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-all test-gpu lint bench docs dist library clean

demo: $(DEMO)
	$(BIN)/bitcycle demo

test: lint
	$(PYTEST) -n 2 --dist worksteal -m "not slow"

test-all: $(ALL)
	$(PYTEST) -n 2 --dist worksteal -m slow
	$(PYTEST) -n 2 --dist worksteal -p tests.gpu.emulated tests/gpu

# On a real device, if there is one.
test-gpu: $(ALL)
	@if $(BIN)/python -c "import torch; raise SystemExit(not torch.cuda.is_available())"; \
	then $(PYTEST) -p tests.gpu.emulated tests/gpu; \
	else echo "no CUDA device here; make test-all runs tests/gpu on an emulated one"; fi

lint: $(ALL)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2

bench: $(ALL)
	$(BIN)/python benchmarks/step_time.py

docs: $(ALL)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict >/dev/null
	@echo site/index.html

# The sdist and a wheel of Linux. auditwheel tags it with the oldest glibc that it runs on, which is
# the one that its compiler is from: an older system makes a wheel for more systems.
dist: $(ALL)
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist dist/*-linux_*.whl
	rm dist/*-linux_*.whl
	@ls dist/*

# Seconds after a change of the C++ sources, otherwise nothing; all works without it, too.
library:
	@$(PYTHON) src/bitcycle/native/build.py >/dev/null || true

$(DEMO): pyproject.toml constraints.txt setup.py | library
	$(PYTHON) -m venv .venv
	$(PIP) -e ".[train,report]"
	touch $@

$(ALL): pyproject.toml constraints.txt setup.py | library
	$(PYTHON) -m venv .venv
	$(PIP) -e ".[all,docs,dev]"
	touch $(DEMO) $@

clean:
	rm -rf .venv build dist site src/*.egg-info
	rm -f src/bitcycle/native/libbitcycle.so src/bitcycle/native/not_built.txt
