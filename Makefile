# The two main commands are `make lab` and `make test`. Both create the environment first if needed.

.DEFAULT_GOAL := help
.PHONY: help lab test env check suite bench build picture lock clean

# The Python that creates the environment, and arguments that are passed on.
PYTHON ?= python3
ARGS ?=

# Container images often set it.  The many processes that we start would then compile the project
# again, each for itself.
unexport PYTHONDONTWRITEBYTECODE

help: ## list all commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

lab: env ## open JupyterLab on the front page; ARGS=--instructor: with formgrader; others are passed to it
	@.venv/bin/python tools/lab.py $(ARGS)

# In parallel, since mypy keeps only one core busy.  The suite runs even if a check fails.
test: env ## check the code and run the tests; ARGS=--all: also the exhaustive ones, as CI does
	@$(MAKE) --no-print-directory --keep-going --jobs 2 check suite

env: ## create .venv from requirements.lock, unless it is up to date
	@$(PYTHON) -c '' || { echo "shardlab: '$(PYTHON)' does not run: install Python 3.11 or newer," \
		"or name it: make lab PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) tools/environment.py
	@.venv/bin/python -m tools.git_filter

check: env ## run only ruff, oxlint and mypy
	@.venv/bin/ruff check --quiet .
	@.venv/bin/ruff format --check --quiet .
	@.venv/bin/python -m tools.javascript
	@.venv/bin/mypy --no-error-summary

# There is one more worker than there are cores, because many tests wait: for a timeout, a browser
# or another process.  tests/conftest.py says which tests stay together.
suite: env ## run only the tests; ARGS="tests/tools -k lock" selects some
	@.venv/bin/python -m tools.browser > /dev/null || true
	@.venv/bin/python -m tools.sandbox > /dev/null || true
	@.venv/bin/python -m tools.postgres > /dev/null || true
	@.venv/bin/python -m tools.hub > /dev/null || true
	@.venv/bin/python -m tools.launchers > /dev/null || true
	@.venv/bin/python -m pytest --numprocesses $$(($$(nproc) + 1)) --maxprocesses 4 \
		--no-loadscope-reorder --durations 10 $(ARGS)

bench: env ## compare with torchrun and stock nbgrader (half an hour; ARGS=--tiny: a minute)
	@.venv/bin/python -m benchmarks.launch $(ARGS)
	@.venv/bin/python -m benchmarks.grading $(ARGS)
	@.venv/bin/python -m benchmarks.formgrader $(ARGS)
	@.venv/bin/python -m benchmarks.links $(ARGS)

build: env ## build the notebooks from their .nb.py, and labs/ from solutions/
	@.venv/bin/python -m autograder build $(ARGS)

picture: env ## draw the README picture from a real run
	@.venv/bin/python -m tools.readme_picture docs/traffic.png

lock: ## refresh requirements.lock from pyproject.toml
	@$(PYTHON) tools/lock.py

clean: ## remove the environment and caches, but keep student work and grades
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache build dist *.egg-info tests/artifacts
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
