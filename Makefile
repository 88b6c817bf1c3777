# Every command of the project. `make` alone lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Empty means: what the environment was made with, cu124 at first.
PROFILE ?=
# Empty means: p40-grpo, or cpu-demo in an image that gets no GPU.
PRESET ?=
OVERRIDES ?=
MODEL ?=
RESUME ?=
DATA ?= --source url
ARGS ?=
ALL ?=
# Of which profile the image is that is tested.
IMAGE ?=
# Where training runs: host, image, or nothing: in the image where an engine and the image are.
WHERE ?=
BASE ?= local/debian:bookworm
DEVICE ?=
base build train: export WHERE := $(WHERE)
base build train: export PROFILE := $(PROFILE)
base build train: export DEVICE := $(DEVICE)

VENV := $(or $(VERL_P40_VENV),.venv)
RUN := $(VENV)/bin/python
export PYTHONPATH := $(CURDIR)
# The user's own setting of a variable wins over the file's.
$(foreach line,$(shell sed '/^\#/d' env/vars.env),$(eval \
  export $(firstword $(subst =, ,$(line))) ?= $(lastword $(subst =, ,$(line)))))

CACHES := .pytest_cache .ruff_cache .mypy_cache .hypothesis

.PHONY: help env demo data model train monitor doctor base build test test-all lint lock lock-check clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
	  while IFS='|' read -r target text; do printf '  make %-11s %s\n' "$$target" "$$text"; done
	@echo 'What runs here makes the environment first where it is missing, and does so once.'

env: ## the environment in .venv, hash-locked  [PROFILE=cu124|cu118 PYTHON=python3.10]
	@bash env/install/all.sh $(PROFILE)

demo: env ## train a small real model with GRPO, on a CPU if need be
	@$(RUN) -m run.train --preset cpu-demo $(OVERRIDES)

data: env ## check and prepare training data; GSM8K as published  [DATA="--source dir --input ..."]
	@$(RUN) -m data.prepare $(DATA)

model: env ## fetch a model into out/models; without MODEL, list them  [MODEL=qwen2.5-0.5b-instruct]
	@$(RUN) -m env.models $(MODEL)

train: ## train with a preset  [PRESET=p40-ppo OVERRIDES="..." WHERE=host|image], or go on  [RESUME=latest]
	@bash env/image/train.sh $(strip $(if $(RESUME),--resume $(RESUME)) \
	  $(if $(PRESET),--preset $(PRESET)) \
	  $(if $(MODEL),--model $(MODEL)) $(OVERRIDES))

monitor: env ## watch memory of cards and host, before, while or after a run trains
	@$(RUN) -m run.monitor $(ARGS)

doctor: env ## what stops training on this machine, why, and what to do  [ARGS="--json"]
	@$(RUN) -m env.doctor $(ARGS)

base: ## a base image from Debian's packages alone, where none can be pulled  [BASE=local/debian:bookworm]
	@bash env/image/base.sh $(BASE)

build: ## the image verl-p40:PROFILE, cu118 unless told  [PROFILE=cu124 BASE_IMAGE=local/debian:bookworm]
	@bash env/image/build.sh $(or $(PROFILE),cu118)

test: env ## the whole test suite  [ARGS="tests/unit -k pins"]
	@$(RUN) -m pytest $(ARGS)

test-all: test ## the same, then what needs an engine: tests of the image, of compose  [IMAGE=cu124]
	@PROFILE=$(IMAGE) $(RUN) -m pytest tests/image

lint: env ## formatting, style and types, on the oldest Python served; shell, Dockerfile, compose
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@$(VENV)/bin/shellcheck env/install/*.sh env/image/*.sh .ci/run .ci/engine
	@$(VENV)/bin/hadolint Dockerfile
	@bash env/image/compose_check.sh

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
