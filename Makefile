# The two commands of the README are `make lab` and `make test`; both do all set-up themselves.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help setup setup-tests lab lab-down lint lint-changed test test-quick test-unit test-contract test-integration test-all all-faults all-job-faults all-units all-workloads all-kubernetes all-scenarios test-lab test-kubernetes molecule perf clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 16

setup: ## Install distribution packages, .venv and the package (quick when nothing is missing)
	@tools/setup.sh

setup-tests:
	@tools/setup.sh tests

lab: setup ## Bring up three local hosts and make them a cluster: inventory/lab/hosts.yaml
	@$(BIN)/primus-bootstrap lab up
	@$(BIN)/primus-bootstrap apply inventory/lab/hosts.yaml --yes

lab-down: setup ## Remove the local hosts
	@$(BIN)/primus-bootstrap lab down

# Tiers, cheapest first; CONTRIBUTING.md has what each may do and how long it may take.
UNIT := $(BIN)/pytest tests/unit -n auto
CONTRACT := $(BIN)/pytest tests/contract tests/golden tests/packaging -n auto --dist loadfile
INTEGRATION := $(BIN)/pytest tests/integration -n auto --dist loadfile

lint: setup-tests ## All linters on everything: ruff, mypy, import-linter, yamllint, ansible-lint
	tools/lint.sh all

test-quick: setup-tests ## While writing: linters on what changed, unit and contract tests (at most 3 minutes)
	tools/lint.sh quick
	$(UNIT)
	$(CONTRACT)

# Two parts at a time: the lab waits for its hosts, the others want a core. What fails does not keep the others from being seen.
# tests/workloads has a process of its own: torch and Ansible each patch the interpreter in ways that the other does not bear.
test: setup-tests ## What must hold on every commit (the aim: 15 minutes on two cores)
	$(MAKE) --keep-going --jobs=2 test-lab lint-changed test-unit test-contract all-workloads test-integration test-kubernetes
	tools/molecule.sh changed

lint-changed:
	tools/lint.sh changed

test-unit:
	$(UNIT)

test-contract:
	$(CONTRACT)

test-integration:
	$(INTEGRATION)

test-lab:
	$(BIN)/pytest tests/lab

test-kubernetes:
	$(BIN)/pytest tests/kubernetes

# The faults on the labs wait for other hosts most of the time, so that they run beside each other and the rest beside them; the benchmarks
# want the machine to themselves. The longest parts begin first, so that none is left alone at the end. What has passed on this code before
# is left out, so that a run which was cut off goes on: REST= runs everything.
REST = $(if $(shell git status --porcelain),,--rest)
test-all: setup-tests ## Every scenario, every fault, every benchmark; goes on where it was cut off (REST= begins anew)
	$(MAKE) --keep-going --jobs=3 all-faults all-scenarios all-job-faults all-kubernetes all-units all-workloads lint
	$(BIN)/pytest $(REST) --all-faults tests/perf $(MEASURES)

# How fast six hosts are is judged there; other work on the same processors would be judged with it.
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
	$(BIN)/pytest tests/workloads

all-kubernetes:
	$(BIN)/pytest $(REST) tests/kubernetes --all-faults

all-scenarios:
	tools/molecule.sh $(if $(REST),rest,all)

molecule: setup-tests ## One role's scenarios: make molecule ROLE=baseline
	tools/molecule.sh $(ROLE)

perf: setup-tests ## The benchmarks, with their table
	$(BIN)/pytest tests/perf -s

clean: ## Remove what setup and the tools made in this folder
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .ansible .cache
