# SPDX-License-Identifier: GPL-3.0-or-later
# `make` alone prints what there is. A target is listed when a `##` comment stands on its line.

# What `make run` runs. `make run CMD='…'` takes any text: it travels in the environment and is never quoted again, and
# $(value) keeps make from expanding a `$` in it.
CMD ?= wc -l sandboxd/*.py | sort -n | tail -5
override CMD := $(value CMD)
export CMD

BIN := .venv/bin
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.PHONY: help setup run test check lint types proto proto-check bench peers bench-peers fuzz clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: ## make .venv with .venv/bin/sandboxd, and install bubblewrap and git if they are missing and may be installed
	@.ci/setup

run: setup ## set up, then run one command in a sandbox: make run CMD='git log --oneline | head'
	@$(BIN)/sandboxd run --summary -- "$$CMD"

test: setup ## everything CI runs: lint, types, wire contract, tests (a few minutes)
	@$(MAKE) lint types proto-check
	@$(BIN)/pytest -n 2 --dist loadfile -m "not slow"

check: setup ## what to run before a commit: lint, types and the gates (seconds)
	@$(MAKE) lint types
	@$(BIN)/pytest tests/gates

lint: setup ## ruff: rules and formatting
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: setup ## mypy --strict
	@$(BIN)/mypy

proto: setup ## write sandboxd/v1 from proto/ with pinned tools
	@$(BIN)/python proto/generate.py

proto-check: setup ## sandboxd/v1 is what proto/ makes, and breaks no client
	@$(BIN)/python proto/generate.py --check

bench: setup ## measure; prints a table and writes build/bench.json (at most four minutes)
	@$(BIN)/python -m benchmarks.run

peers: setup ## install what `make bench-peers` measures, into .peers/; what cannot be installed is said
	@.ci/peers

bench-peers: setup ## measure others beside sandboxd, as far as they are installed (a minute)
	@$(BIN)/python -m benchmarks.peers

fuzz: setup ## the long fuzz and load tests that `make test` leaves out
	@$(BIN)/pytest -m slow -p no:xdist

clean: ## remove what was built or cached; keeps .venv and .peers
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -path ./.venv -prune -o -path ./.peers -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
