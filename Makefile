# Everything a person or CI runs here. `make` alone lists the targets.
PYTHON ?= python3
# On Linux the index's default build may bring CUDA (gigabytes). Where pip knows an index with
# PyTorch's CPU builds (PIP_EXTRA_INDEX_URL), the first line of the recipe below takes that one.
TORCH_BUILD ?= cpu
TORCH := torch==2.13.0
BIN := .venv/bin
CODE := src tests tools benchmarks

.DEFAULT_GOAL := help
.PHONY: help setup run test check format lint types size clean-venv

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: .venv/.ready  ## make .venv with everything that running and testing need

run: setup  ## the main job: train in dreams, measure in the real world
	$(BIN)/dreamgym quickstart

test: setup  ## the tests
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: lint types test size  ## all that CI runs

lint: setup  ## format and lint, changing nothing
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)

types: setup  ## the type checker
	$(BIN)/mypy

format: setup  ## put the code into its format
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

size: setup  ## how long files and functions are
	$(BIN)/python tools/size.py

clean-venv:  ## forget .venv, so that the next setup starts afresh
	rm -rf .venv

# The stamp is written last: an interrupted setup is taken up again.
.venv/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'error: dreamgym needs Python 3.11 or newer; name one: make setup PYTHON=python3.12' >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "error: $(PYTHON) cannot make virtual environments: sudo apt-get install -y python3-venv" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
# torch first and by its build, since other packages would bring whichever is newest
	$(BIN)/python -c 'import torch' 2>/dev/null \
	  || $(BIN)/python -m pip install '$(TORCH)+$(TORCH_BUILD)' 2>/dev/null \
	  || $(BIN)/python -m pip install '$(TORCH)'
	$(BIN)/python -m pip install -e '.[train,dev]'
	touch $@
