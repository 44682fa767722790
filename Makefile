# From a bare checkout with Python 3.11 to 3.14: `make demo` shows darner, `make test` checks all of it.
# Both make .venv and install what they need from the package index; later runs find it there.

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install -q
JOBS ?= 2

# The first interpreter that is new enough and able to make a virtual environment.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	if $$python -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' \
	2>/dev/null; then echo $$python; break; fi; done)

# What `make bench` passes on: make bench BENCH="--quick", BENCH="llama-s --batch 1 4".
BENCH ?=

# What `make fuzz` passes on: make fuzz FUZZ="graph_text plan --seconds 600".
FUZZ ?=

# What `make kernels` passes on: make kernels KERNELS=gemm, KERNELS="--sweep conv".
KERNELS ?=

# What `make coverage` passes on: make coverage COVERAGE=--quick, COVERAGE=tests/optim.
COVERAGE ?=

# What `make release` passes on: make release RELEASE=--allow-dirty.
RELEASE ?=

.PHONY: help setup hooks demo smoke quick test coverage bench kernels fuzz docs release clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    a small Llama learns to write like Shakespeare: about a minute"
	@echo "make smoke   a little of everything, on another Python: make smoke PYTHON=python3.14 VENV=.venv-3.14"
	@echo "make test    everything: format, lint, types, all tests"
	@echo "make quick   the same without the slow tests: about a minute"
	@echo "make coverage which lines the tests run, in build/coverage; COVERAGE=--quick, COVERAGE=tests/optim"
	@echo "make bench   the same work beside PyTorch, JAX and NumPy; BENCH=--quick takes two minutes"
	@echo "make kernels single kernels beside PyTorch, NumPy and MKL; KERNELS=--sweep takes random sizes"
	@echo "make fuzz    readers of files and texts given what nobody wrote; FUZZ=\"plan --seconds 600\""
	@echo "make docs    rewrite the files that are generated from the op registry"
	@echo "make release sdist and wheel in dist/, built and tried in clean environments; nothing is uploaded"
	@echo "make setup   install everything development needs"
	@echo "make hooks   check format, lint, types and architecture before each commit of this checkout"
	@echo "make clean   remove what the other targets made"

setup: $(VENV)/.dev

hooks: $(VENV)/.tools
	@$(BIN)/pre-commit install

demo: $(VENV)/.runtime
	@$(BIN)/python examples/shakespeare.py

smoke: $(VENV)/.runtime
	@$(BIN)/python -W error tests/smoke.py

quick: $(VENV)/.dev
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -n $(JOBS) --quick

test: $(VENV)/.dev
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -n $(JOBS)

coverage: $(VENV)/.tools
	@mkdir -p build/coverage
	@$(BIN)/python -m pytest -n $(JOBS) --cov --cov-report=term:skip-covered --cov-report=html $(COVERAGE)

bench: $(VENV)/.bench
	@$(BIN)/python -m bench.peers $(BENCH)

kernels: $(VENV)/.bench
	@$(BIN)/python -m bench.kernels $(KERNELS)

fuzz: $(VENV)/.fuzz
	@$(BIN)/python -m fuzz.run $(FUZZ)

docs: $(VENV)/.runtime
	@$(BIN)/python -m darner.cli.generate

release: | $(BIN)/python
	@$(BIN)/python tools/release.py $(RELEASE)

clean:
	rm -rf $(VENV) .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "darner needs Python 3.11, 3.12, 3.13 or 3.14 with the venv module; none was found." >&2; \
		echo "Install one, or name it: make PYTHON=/path/to/python3.12" >&2; \
		exit 1; \
	fi
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

# What darner runs on, and darner itself in place.
$(VENV)/.runtime: requirements/runtime.lock pyproject.toml | $(BIN)/python
	@echo "installing runtime dependencies"
	@$(INSTALL) --no-deps -r requirements/runtime.lock
	@$(INSTALL) --no-deps -e .
	@touch $@

# Besides, what tests and checks need (PyTorch is one of them, so the first time takes a while). The index's build of PyTorch
# for Linux loads NVIDIA's libraries wherever it runs, so they come with it (5 GB); the build for CPUs names none:
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make setup
$(VENV)/.dev: requirements/dev.lock $(VENV)/.runtime
	@echo "installing development dependencies"
	@$(INSTALL) --no-deps -r requirements/dev.lock
	@$(INSTALL) torch
	@touch $@

# Besides, what measures coverage and runs the hooks.
$(VENV)/.tools: requirements/tools.lock $(VENV)/.dev
	@echo "installing coverage and pre-commit"
	@$(INSTALL) --no-deps -r requirements/tools.lock
	@touch $@

# Besides, what is measured beside darner: the extra `bench` of pyproject.toml.
$(VENV)/.bench: pyproject.toml $(VENV)/.dev
	@echo "installing the peers"
	@$(BIN)/python -c "import tomllib; \
		extras = tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']; \
		print(*extras['bench'], sep='\n')" > $(VENV)/bench.txt
	@$(INSTALL) --no-deps -r $(VENV)/bench.txt
	@touch $@

# Besides, the fuzzer: the extra `fuzz` of pyproject.toml.
$(VENV)/.fuzz: pyproject.toml $(VENV)/.dev
	@echo "installing the fuzzer"
	@$(BIN)/python -c "import tomllib; \
		extras = tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']; \
		print(*extras['fuzz'], sep='\n')" > $(VENV)/fuzz.txt
	@$(INSTALL) --no-deps -r $(VENV)/fuzz.txt
	@touch $@
