# Every target does the set-up it needs; nothing has to be run before it.
VENV := .venv
PY := $(VENV)/bin/python
LAUNCH := $(PY) -m autoglobal.commands.launcher --limit 300 --ranks
READY := $(VENV)/.ready
RANKS ?= 1 2 4
# Once more as on OneFlow 1.0 and later, where a new Parameter takes a local one's place.
REPLACING ?= 2
# PyTorch wants another Python than OneFlow: a virtual environment of its own, or any that has it.
PEERS := .venv-peers
PEERS_PYTHON ?= python3
TORCH := $(or $(AUTOGLOBAL_BENCH_TORCH),$(wildcard $(PEERS)/bin/python))

.PHONY: help venv demo tensor-parallel examples test test-models lint format bench bench-peers
.PHONY: docs dist clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 17

venv: $(READY) ## make .venv with OneFlow 0.9.0 (PYTHON=... picks the interpreter)

$(READY): setup.cfg pyproject.toml tools/venv.sh tools/build-constraints.txt
	@bash tools/venv.sh $(VENV)

demo: $(READY) ## the case of Oneflow-Inc/oneflow#8869 on two CPU ranks
	@$(LAUNCH) 2 -- examples/extend_global_model.py

tensor-parallel: $(READY) ## a GPT block split by rules, on two CPU ranks
	@$(LAUNCH) 2 -- examples/tensor_parallel.py

examples: $(READY) ## every example on two CPU ranks, the pipeline on four
	@for one in examples/*.py; do n=2; [ $$one = examples/pipeline.py ] && n=4; \
		echo "== $$one"; $(LAUNCH) $$n -- $$one || exit 1; done

test: $(READY) ## the tests on 1, 2 and 4 ranks (RANKS="1 2" picks, ARGS=... goes to pytest)
	@$(PY) -m tests.run --ranks $(RANKS) --replacing $(REPLACING) -- $(ARGS)

test-models: $(READY) ## build every flowvision model in a scope (slow)
	@$(PY) -m tests.helpers.all_models

lint: $(READY) ## ruff, mypy, and import-linter: packages import one way
	@$(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m mypy
	@$(VENV)/bin/lint-imports --no-logo --no-cache

format: $(READY) ## let ruff mend what it can
	@$(PY) -m ruff check --fix . && $(PY) -m ruff format .

bench: $(READY) ## every benchmark, into benchmarks/results (under 10 minutes)
	@AUTOGLOBAL_BENCH_TORCH=$(TORCH) $(PY) -m benchmarks all --results benchmarks/results

bench-peers: $(PEERS)/.ready ## make .venv-peers with PyTorch and accelerate, for "make bench"

$(PEERS)/.ready: benchmarks/peers/requirements.txt
	@$(PEERS_PYTHON) -m venv $(PEERS) && $(PEERS)/bin/python -m pip install --quiet -r $< && touch $@

dist: $(READY) ## the sdist and the wheel, and some tests of them outside the checkout
	@$(PY) -m pip install --quiet build && $(PY) -m tools.check_dist

docs: $(VENV)/.docs ## the documentation, into site/ (open site/index.html)
	@for n in 2 4; do $(LAUNCH) $$n -- docs/pictures.py || exit 1; done
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet && $(PY) -m tools.check_site site

$(VENV)/.docs: $(READY)
	@$(PY) -m pip install --quiet --editable '.[docs]' && touch $@

clean: ## remove the virtual environments and what was built
	@rm -rf $(VENV) $(PEERS) build dist site docs/pictures *.egg-info log
