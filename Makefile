SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CONSTRAINTS := requirements/constraints.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -qq
# The codec to compare with in `codec bench`; nothing else needs it, so a machine that cannot build it goes without.
PEER := zipnn==0.5.4
FOLDERS := planner executor kernels topologies
SOURCES := $(wildcard kernels/csrc/*.cpp kernels/csrc/*.h)

.PHONY: help setup test lint demo lab bench bench-planner bench-simulator docs lock clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

setup: $(STAMP) ## make .venv with everything that demo, test and lint need (again: nothing to do)

$(STAMP): pyproject.toml setup.py $(CONSTRAINTS) $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "zipplan needs Python 3.11 or newer; choose one with: make setup PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); } || { rm -rf $(VENV); echo "python3 has no venv module: apt-get install python3-venv" >&2; exit 1; }
	@echo "installing zipplan and its tools into $(VENV) (about a minute the first time)"
	@$(PIP) install --upgrade -c $(CONSTRAINTS) pip setuptools
	@$(PIP) install -c $(CONSTRAINTS) --no-build-isolation --group dev --editable '.[torch,plot]'
	@$(PIP) install -c $(CONSTRAINTS) $(PEER) >/dev/null 2>&1 || echo "$(PEER) does not build here (it needs Python.h): codec bench goes without it" >&2
	@test -z "$(filter %.cpp,$(SOURCES))" || ls kernels/_cpu*.so >/dev/null 2>&1 || echo "the C++ codec did not compile and is left out; see why with: $(BIN)/python setup.py build_ext --inplace; once mended: make -B setup" >&2
	@mkdir -p $(VENV)/typed/zipplan && for folder in $(FOLDERS); do ln -sfn ../../../$$folder $(VENV)/typed/zipplan/$$folder; done
	@touch $@
	@echo "ready: $(BIN)/zipplan --help"

test: setup ## set up, then run the whole test suite
	@$(BIN)/python -m pytest $(PYTEST_FLAGS)

lint: setup ## ruff, mypy, import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy -p zipplan.planner -p zipplan.executor -p zipplan.kernels | sed 's|^$(VENV)/typed/zipplan/||'
	@$(BIN)/lint-imports

demo: setup ## plan on a real machine, then run the plan with four ranks on this one
	@bash scripts/demo.sh

lab: setup ## hosts with shaped links on this machine: gain of compression, choices and predictions measured (root)
	@$(BIN)/python -m zipplan.executor.lab check

bench: setup ## measure the codec, and raw against planned collectives with four ranks, on this machine
	@$(BIN)/zipplan codec bench
	@$(BIN)/zipplan plan --topology loopback --collective all_gather --size 64M --dtype bf16 -o $(VENV)/bench-plan.json
	@$(BIN)/torchrun --nproc-per-node 4 -m zipplan.executor.bench --plan $(VENV)/bench-plan.json

bench-simulator: setup ## time, memory and event rate of the simulator against GPUs, into docs/benchmarks (minutes)
	@$(BIN)/python scripts/simulator_speed.py > docs/benchmarks/simulator.md

bench-planner: setup ## time and memory of a whole plan against GPUs, into docs/benchmarks (minutes)
	@$(BIN)/python scripts/plan_speed.py > docs/benchmarks/planner.md

docs: setup ## docs/machines.md and docs/validation.md from topologies/, and the API reference as HTML into site/
	@$(BIN)/python scripts/machines.py > docs/machines.md
	@$(BIN)/python -m zipplan.planner.schema > docs/plan-schema.json
	@$(BIN)/python scripts/validation.py > docs/validation.md
	@$(BIN)/pdoc --output-directory site zipplan.planner zipplan.kernels '!zipplan.kernels._cpu' zipplan.executor
	@echo "wrote site/index.html"

lock: ## resolve the newest versions into requirements/constraints.txt
	@bash scripts/lock.sh $(CONSTRAINTS)

clean: ## remove everything that make made
	@rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find $(FOLDERS) tests -name __pycache__ -type d -prune -exec rm -rf {} +
	@rm -f kernels/*.so
