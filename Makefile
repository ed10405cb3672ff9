# `make run` builds the example from parquet to checkpoint; `make test` runs all tests.
# Both make the environment first. `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
ENV := .venv/.ready
SLURM_ENV := .venv-slurm/.ready
NATIVE := $(patsubst scripts/shardwright/%.c,scripts/shardwright/lib%.so,$(wildcard scripts/shardwright/*.c))
ARGS ?=

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: env
env: $(ENV) $(NATIVE) ## Make the environment (.venv) from the pinned requirement files in envs/

$(ENV): envs/torch.txt envs/main.txt envs/dev.txt
	@test -n "$(PYTHON)" || { echo "error: no Python >= 3.11 found; install one or run make PYTHON=/path/to/python"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { rm -rf .venv; \
		echo "error: $(PYTHON) cannot make a venv; on Debian: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r envs/torch.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r envs/main.txt -r envs/dev.txt
	$(BIN)/python -m pip check
	$(BIN)/python -m compileall -q -j 0 $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') >/dev/null || true
	@touch $@

# Optional: the audit's verdicts are the same without them, at a third of the speed.
$(NATIVE): scripts/shardwright/lib%.so: scripts/shardwright/%.c
	@{ $(CC) -O2 -mtune=native -shared -fPIC -o $@.part $< 2>/dev/null || $(CC) -O2 -shared -fPIC -o $@.part $<; } \
		&& mv $@.part $@ || echo "note: $(CC) did not compile $<: audit_shard will take three times as long"

.PHONY: slurm-env
slurm-env: $(SLURM_ENV) ## Make .venv-slurm: the environment with Snakemake's Slurm plugin

$(SLURM_ENV): $(ENV) envs/slurm.txt envs/slurm_env.sh
	bash envs/slurm_env.sh
	@touch $@

.PHONY: run
run: $(ENV) $(NATIVE) ## Build the example, from parquet to checkpoint (ARGS='...' are passed to Snakemake)
	$(BIN)/python scripts/unlock.py --stale-only
	$(BIN)/snakemake $(ARGS)

.PHONY: test
test: $(ENV) $(SLURM_ENV) $(NATIVE) ## Run all tests (ARGS='-k name' selects)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: slurm-up slurm-down
slurm-up: $(SLURM_ENV) ## Start a Slurm of three pretended nodes on this machine (needs slurm-wlm, munge)
	$(BIN)/python tests/slurm/cluster.py up

slurm-down: ## End it
	$(BIN)/python tests/slurm/cluster.py down

.PHONY: unlock
unlock: $(ENV) ## Take away the lock of a killed run, after looking for a live one
	$(BIN)/python scripts/unlock.py

.PHONY: lint
lint: $(ENV) ## ruff, snakefmt, snakemake --lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/snakefmt --check Snakefile rules
	$(BIN)/python tests/lint_rules.py

.PHONY: fmt
fmt: $(ENV) ## Format programs and rules
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/snakefmt Snakefile rules

.PHONY: pins
pins: $(ENV) ## Compile envs/*.in into hash-pinned envs/*.txt
	bash envs/compile.sh

.PHONY: clean
clean: ## Remove the environment (never the results)
	rm -rf .venv .venv-*
