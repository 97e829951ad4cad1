# Two commands matter: `make lab` and `make test`. Both make the environment first if need be.

.DEFAULT_GOAL := help
.PHONY: help lab test env check suite bench build picture lock clean

# Which Python the environment is made with, and what to pass on to the program that is started.
PYTHON ?= python3
ARGS ?=

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

lab: env ## open JupyterLab on the first chapter; ARGS="--ip 0.0.0.0" is passed on
	@.venv/bin/python tools/lab.py $(ARGS)

# The suite runs even where a check fails, and its closing line comes last.
test: env ## check the code and run every test, those in a browser included
	@$(MAKE) --no-print-directory --keep-going check suite

env: ## make .venv from requirements.lock, unless it is there and up to date
	@$(PYTHON) -c '' || { echo "shardlab: '$(PYTHON)' does not run: install Python 3.11 or newer," \
		"or name it: make lab PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) tools/environment.py

check: env ## ruff and mypy alone
	@.venv/bin/ruff check --quiet .
	@.venv/bin/ruff format --check --quiet .
	@.venv/bin/mypy --no-error-summary

# One file at a time on each core: what a module has set up serves all of its tests.
suite: env ## the tests alone; ARGS="tests/tools -k lock" picks some
	@.venv/bin/python -m tools.browser > /dev/null || true
	@.venv/bin/python -m tools.sandbox > /dev/null || true
	@.venv/bin/python -m tools.postgres > /dev/null || true
	@.venv/bin/python -m pytest --numprocesses logical --maxprocesses 4 \
		--dist loadfile --no-loadscope-reorder $(ARGS)

bench: env ## time launch beside torchrun, and a class beside stock nbgrader (half an hour)
	@.venv/bin/python -m benchmarks.launch $(ARGS)
	@.venv/bin/python -m benchmarks.grading
	@.venv/bin/python -m benchmarks.formgrader

build: env ## build the notebooks from their .nb.py, and labs/ from solutions/
	@.venv/bin/python -m autograder build $(ARGS)

picture: env ## draw the README's picture from a real run
	@.venv/bin/python -m shardlab picture docs/traffic.png

lock: ## refresh requirements.lock from pyproject.toml
	@$(PYTHON) tools/lock.py

clean: ## remove the environment and the tools' caches; students' work and grades stay
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache build dist *.egg-info tests/artifacts
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
