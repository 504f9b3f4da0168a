# The few commands a person needs. All work from a fresh clone with make and Python 3.11 or newer; what lives in
# namespaces (demo, bench, some tests) needs root.

.DEFAULT_GOAL := help
SHELL := /bin/bash

# The first Python that is new enough; PYTHON=… chooses another.
ifndef PYTHON
PYTHON := $(firstword $(foreach python,python3 python3.13 python3.12 python3.11,$(shell \
	$(python) -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $(python))))
endif
export PYTHON
# Agents are started many times; compiling them anew each time would cost more than all else they do at start.
unexport PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1
BIN := .venv/bin
IMAGE ?= allotment:latest
BUILDER ?= $(firstword $(foreach tool,buildah podman docker,$(shell command -v $(tool))))
# Tests mostly wait for something; WORKERS=1 runs them one after the other.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
ALLOWED := $(if $(filter 0,$(shell id -u)),, and not root)

.PHONY: help
help: ## Show this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

.PHONY: demo
demo: packages venv ## See what Allotment does, on this machine, in a minute (root)
	$(BIN)/allotment demo

.PHONY: test
test: packages venv ## Run all tests but the slow ones; without root, those that don't need it
	$(PYTEST) -m "not slow$(ALLOWED)"

.PHONY: test-quick
test-quick: venv ## Run the unit and property tests alone
	$(PYTEST) -q -m "not slow and not root" tests/unit tests/property tests/repo

.PHONY: test-slow
test-slow: packages venv ## Run the slow tests alone
	$(PYTEST) -m "slow$(ALLOWED)"

.PHONY: bench
bench: packages venv ## Measure, side by side with others, against the bars (root)
	PYTHONPATH=tests $(BIN)/python -m bench $(BENCH)

.PHONY: cluster
cluster: packages venv ## Start a Kubernetes cluster of two nodes on this machine, in namespaces (root)
	PYTHONPATH=tests $(BIN)/python -m cluster up $(NODES)

.PHONY: cluster-down
cluster-down: venv ## End it, and remove all it has made (root)
	PYTHONPATH=tests $(BIN)/python -m cluster down

.PHONY: lint
lint: venv ## Check style, types, layers and generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m allotment.cli.reference --check
	$(BIN)/python -m allotment.cli.crds --check

.PHONY: fmt
fmt: venv ## Put the code into shape
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .

.PHONY: generate
generate: venv ## Write docs/reference and the CRDs from the code
	$(BIN)/python -m allotment.cli.reference
	$(BIN)/python -m allotment.cli.crds

.PHONY: venv
venv: .venv/ready shim ## Make the project's own Python environment, with the shim built

.venv/ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install it, or say make PYTHON=…" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

.PHONY: shim
shim: .venv/ready ## Build the CNI plugin for both architectures, if it has changed
	@$(BIN)/python shim/build.py >/dev/null

.PHONY: image
image: venv ## Build the container image (IMAGE, BASE and BUILDER choose name, base image and tool)
	@test -n "$(BUILDER)" || { echo "buildah, podman or docker is needed to build the image" >&2; exit 1; }
	rm -f dist/allotment-*.whl
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .
	$(BUILDER) build $(if $(BASE),--build-arg BASE=$(BASE)) -t $(IMAGE) -f daemonset/Containerfile .

.PHONY: packages
packages: ## Install what the distribution has to give, if it is missing (root)
	@.ci/packages

.PHONY: clean
clean: ## Remove all that was built
	rm -rf .venv build dist .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f agent/allotment/_shim/allotment-* agent/allotment/_shim/.allotment-*
	find agent controller shim tests -name __pycache__ -type d -prune -exec rm -rf {} +
