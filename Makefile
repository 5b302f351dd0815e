# The README's two commands are `make lab` and `make test`. Both install what they need.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help setup setup-tests lab lab-down lint lint-changed test test-quick test-unit test-contract test-integration test-workloads test-all all-faults all-job-faults all-units all-workloads all-backends all-kubernetes all-scenarios all-vms test-lab test-kubernetes kubernetes-programs molecule perf docs collection changelog clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 16

setup: ## Install distribution packages, .venv and the package (skipped if nothing is missing)
	@tools/setup.sh

setup-tests:
	@tools/setup.sh tests

lab: setup ## Start three local hosts and apply inventory/lab/hosts.yaml to them
	@$(BIN)/primus-bootstrap lab up --torch
	@$(BIN)/primus-bootstrap apply inventory/lab/hosts.yaml --yes

lab-down: setup ## Remove the local hosts
	@$(BIN)/primus-bootstrap lab down

# Test tiers, cheapest first. CONTRIBUTING.md lists what each may do and its time budget.
UNIT = $(NICE) $(BIN)/pytest tests/unit -n auto
CONTRACT = $(NICE) $(BIN)/pytest tests/contract tests/golden tests/packaging -n auto --dist loadfile
INTEGRATION = $(NICE) $(BIN)/pytest tests/integration -n auto --dist loadfile

lint: setup-tests ## Run all linters on all files: ruff, mypy, import-linter, yamllint, ansible-lint
	tools/lint.sh all

test-quick: setup-tests ## Lint changed files, run unit and contract tests (at most 3 minutes)
	tools/lint.sh quick
	$(UNIT)
	$(CONTRACT)

# Kubernetes is built first if the cache does not have it: beside the tests, the build and the lab would run out of time. Then three parts
# run at a time, because the lab and Kubernetes tests mostly wait. The lab comes first where processors are short: its hosts have time limits.
# A failure does not stop the others.
# tests/workloads runs in its own process, because torch and Ansible patch the interpreter in incompatible ways.
test: setup-tests ## Run the tests that every commit must pass (target: 15 minutes on two cores)
	-$(MAKE) kubernetes-programs
	$(MAKE) --keep-going --jobs=3 NICE="nice -n 5" test-lab test-kubernetes lint-changed test-unit test-contract test-workloads test-integration
	tools/molecule.sh changed

# Where they cannot be built, the Kubernetes tests are skipped and say why.
kubernetes-programs:
	@$(BIN)/python -m tests.kubernetes.binaries > /dev/null

lint-changed:
	$(NICE) tools/lint.sh changed

test-unit: ## Run the unit tests
	$(UNIT)

test-contract: ## Run the contract, golden and packaging tests
	$(CONTRACT)

test-integration:
	$(INTEGRATION)

test-workloads:
	$(NICE) $(BIN)/pytest tests/workloads

test-lab:
	$(BIN)/pytest tests/lab

test-kubernetes:
	$(BIN)/pytest tests/kubernetes

# Fault tests on labs mostly wait for hosts, so they run beside each other and beside the rest. Benchmarks run alone at the end.
# The longest parts start first. Tests that passed on this commit are skipped, so that an interrupted run continues; REST= runs all.
REST = $(if $(shell git status --porcelain),,--rest)
test-all: setup-tests ## Run every scenario, fault and benchmark; continues an interrupted run (REST= starts over)
	$(MAKE) --keep-going --jobs=3 all-faults all-scenarios all-job-faults all-kubernetes all-vms all-units all-workloads all-backends lint
	$(BIN)/pytest $(REST) --all-faults tests/perf $(MEASURES)

# This test measures six hosts and needs the processors to itself.
MEASURES := tests/lab/test_bench_six_on_lab.py

all-faults:
	$(BIN)/pytest $(REST) tests/lab --all-faults --ignore-glob='*/test_workload_*' --ignore=$(MEASURES)

all-job-faults:
	$(BIN)/pytest $(REST) tests/lab/test_workload_*.py --all-faults

all-units:
	$(UNIT)
	$(CONTRACT)
	$(INTEGRATION) --all-faults

all-workloads:
	$(BIN)/pytest tests/workloads --all-faults

# Environments of some 3 GB each; they stay in the cache. MaxText needs Python 3.12; without it, its tests are skipped.
PYTHON_OF_MAXTEXT ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.12.*/bin/python) python3.12)
BACKENDS := $(HOME)/.cache/primus-bootstrap/backends
all-backends:
	$(BIN)/primus-cli backend install megatron --folder $(BACKENDS) --python $(BIN)/python
	$(BIN)/primus-cli backend install trl --folder $(BACKENDS) --python $(BIN)/python
	-$(BIN)/primus-cli backend install maxtext --folder $(BACKENDS) --python $(PYTHON_OF_MAXTEXT)
	$(BIN)/primus-cli backend install torchtitan --folder $(BACKENDS) --python $(BIN)/python
	$(BIN)/pytest $(REST) tests/backends

all-kubernetes:
	$(BIN)/pytest $(REST) tests/kubernetes --all-faults

all-vms:
	$(BIN)/pytest $(REST) tests/vm --all-faults

all-scenarios:
	tools/molecule.sh $(if $(REST),rest,all)

molecule: setup-tests ## Run one role's scenarios: make molecule ROLE=baseline
	tools/molecule.sh $(ROLE)

perf: setup-tests ## Run the benchmarks and print their table
	$(BIN)/pytest tests/perf -s

docs: setup-tests ## Build the documentation site: site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

collection: setup ## Build the Ansible collection: dist/primus-bootstrap-VERSION.tar.gz
	@$(BIN)/python tools/build_collection.py

changelog: setup-tests ## Print the changelog of the next release
	$(BIN)/towncrier build --draft

clean: ## Remove .venv, caches and build output
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .ansible .cache
