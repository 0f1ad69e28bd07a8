# Every target makes what it needs: .venv is rebuilt when pyproject.toml or requirements.lock changes.
# PYTHON=/path/to/python3.11 chooses the Python.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test test-vllm test-system bench sim mutants lint clean

venv := .venv/.made
torch := .venv-torch/.made
python := .venv/bin/python
pytest := $(python) -m pytest
# What there is by now of the packages that mypy reads.
typed := $(wildcard sidecar lockserver gms engine_shim tools/vmm_refcount tests/sidecar tests/sim tests/gms tests/engine \
	tests/gpu tests/emulated_driver tests/tools tests/test_imports.py demo bench)

SEEDS ?= 20000

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(venv) ## two contenders, a kill, the handoff and its evidence
	@$(python) -m demo

# Chaos tests run alone: what they wait for should be late because of the code, not because of a neighbour.
test: $(venv) ## all tests that need no root
	$(pytest) -n 2 -m "not chaos and not root" tests
	$(pytest) -m "chaos and not root" tests || test $$? -eq 5 # 5: there are none

test-vllm: $(torch) ## what needs torch (the scenarios on vLLM itself come with its engine)
	.venv-torch/bin/python -m pytest -m torch tests

test-system: $(venv) ## the tests that need root
	@if [ "$$(id -u)" = 0 ]; then $(pytest) -m root tests; \
	else echo "These tests need root: sudo make test-system"; fi

bench: $(venv) ## the benchmarks
	@$(python) -m bench

sim: $(venv) ## SEEDS=20000 schedules in the simulator
	@$(python) -m tests.sim --seeds $(SEEDS)

mutants: $(venv) ## breaks each rule on purpose and shows how soon that is found
	@$(python) -m tests.mutants

lint: $(venv) ## ruff and mypy
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy $(typed)

clean: ## removes what the other targets made
	rm -rf .venv .venv.log .venv-torch .venv-torch.log build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(venv): pyproject.toml requirements.lock tools/venv.sh
	@tools/venv.sh .venv

$(torch): pyproject.toml requirements.lock tools/venv.sh
	@tools/venv.sh .venv-torch torch==2.13.0
