# Every command of the project. `make` alone lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Empty means: what the environment was made with, cu124 at first.
PROFILE ?=
PRESET ?= p40-grpo
OVERRIDES ?=
MODEL ?=
RESUME ?=
DATA ?= --source url
ARGS ?=
ALL ?=

VENV := $(or $(VERL_P40_VENV),.venv)
RUN := $(VENV)/bin/python
export PYTHONPATH := $(CURDIR)
# The user's own setting of a variable wins over the file's.
$(foreach line,$(shell sed '/^\#/d' env/vars.env),$(eval \
  export $(firstword $(subst =, ,$(line))) ?= $(lastword $(subst =, ,$(line)))))

CACHES := .pytest_cache .ruff_cache .mypy_cache .hypothesis

.PHONY: help env demo data model train test lint lock lock-check clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
	  while IFS='|' read -r target text; do printf '  make %-11s %s\n' "$$target" "$$text"; done
	@echo 'Each command makes the environment first where it is missing, and does so once.'

env: ## the environment in .venv, hash-locked  [PROFILE=cu124|cu118 PYTHON=python3.10]
	@bash env/install/all.sh $(PROFILE)

demo: env ## train a small real model with GRPO, on a CPU if need be
	@$(RUN) -m run.train --preset cpu-demo $(OVERRIDES)

data: env ## check and prepare training data; GSM8K as published  [DATA="--source dir --input ..."]
	@$(RUN) -m data.prepare $(DATA)

model: env ## fetch a model into out/models; without MODEL, list them  [MODEL=qwen2.5-0.5b-instruct]
	@$(RUN) -m env.models $(MODEL)

train: env ## train with a preset  [PRESET=p40-ppo OVERRIDES="..."], or go on  [RESUME=latest]
	@$(RUN) -m run.train $(strip $(if $(RESUME),--resume $(RESUME)) \
	  $(if $(and $(RESUME),$(filter file,$(origin PRESET))),,--preset $(PRESET)) \
	  $(if $(MODEL),--model $(MODEL)) $(OVERRIDES))

test: env ## the whole test suite  [ARGS="tests/unit -k pins"]
	@$(RUN) -m pytest $(ARGS)

lint: env ## formatting, style and types, on the oldest Python served; shell scripts
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@$(VENV)/bin/shellcheck env/install/*.sh .ci/run

lock: env ## make env/locks anew from env/pins.toml; needs a package registry
	@$(RUN) -m env.lock

lock-check: env ## show how env/locks differs from what env/pins.toml gives
	@$(RUN) -m env.lock --check

clean: ## remove caches of the tools; with ALL=1 also .venv and out/: data, models and runs
	@remove=(); \
	for path in $(CACHES) $(if $(ALL),$(VENV) out); do \
	  if [ -e "$$path" ]; then remove+=("$$path"); fi; \
	done; \
	for path in "$${remove[@]}"; do echo "removing $$(du -sh "$$path" | tr '\t' ' ')"; done; \
	rm -rf -- "$${remove[@]}"; \
	find env data run tests -name __pycache__ -type d -prune -exec rm -rf {} +
	$(if $(ALL),,@echo 'kept: .venv and out/ (make clean ALL=1 removes them: data, models, runs)')
