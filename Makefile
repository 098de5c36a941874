# Needs Python 3.11 or newer with its venv module; everything else is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
# Tests wait for each other's processes for half of their time: two cores are kept busy by three.
WORKERS ?= 3
# Half of what it takes to read the tests is compiling them, and each gateway that a test starts is compiled as well.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run demo test check cover mutants soak lock diagrams setup clean

help: ## Show what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

run: .venv/run ## Start the gateway in front of a slow example server and print commands to try
	@$(BIN)/python examples/local.py run

demo: .venv/run ## Show a task created, polled and fetched in both dialects
	@$(BIN)/python examples/local.py demo

test: .venv/dev check ## Set everything up, check and run all tests
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --cov --cov-report=term-missing:skip-covered
	@$(BIN)/python -m tests.coverage_wall

check: .venv/dev ## Run the linters, the type checker and the import contracts
	@$(BIN)/ruff format --check --quiet . || { echo "run: .venv/bin/ruff format ."; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-cache >.venv/imports.log || { cat .venv/imports.log; exit 1; }

mutants: .venv/dev ## Change what must never change, then the core in a thousand ways, and see what no test notices
	@$(BIN)/python -m tests.mutants

soak: .venv/dev ## Keep a store away from 100 running calls, then kill and pause processes under 10,000 tasks (minutes)
	@$(BIN)/python -m tests.soak

diagrams: .venv/dev ## Write the state diagrams of the tables into ARCHITECTURE.md
	@$(BIN)/python -m tests.diagrams --write

lock: .venv/dev ## Choose versions anew and write the lock files
	@$(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-emit-find-links --no-emit-index-url \
		--no-emit-trusted-host --no-header --extra embedded --extra build -o requirements/run.txt pyproject.toml
	@$(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-emit-find-links --no-emit-index-url \
		--no-emit-trusted-host --no-header --extra embedded --extra build --extra dev -c requirements/run.txt -o requirements/dev.txt pyproject.toml

setup: .venv/dev ## Only install

clean: ## Remove everything that was installed or generated
	rm -rf .venv mutants .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache

.venv/bin/python:
	@$(PYTHON) -m venv .venv

.venv/run: requirements/run.txt pyproject.toml | .venv/bin/python
	@echo "installing into .venv"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/run.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

.venv/dev: requirements/dev.txt .venv/run
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@touch $@
