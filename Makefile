# Two commands do everything on a machine that has only Python (3.11 or newer) and make:
#   make run     set up, then compare seven ways to learn on real images that come with a package
#   make test    set up, then run every check
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Tests run in parallel processes, each with one torch thread: the models are small.
WORKERS ?= auto

.PHONY: run test setup lint types floors docs tests paper browser serve-docs format clean help lock sbom advisories

help:            ## show this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

run: $(VENV)/.ready-run       ## set up and run the demo
	$(BIN)/kfl demo

test: lint types floors docs tests   ## set up and run every check

setup: $(VENV)/.ready-dev     ## set up for development

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "kfl needs Python 3.11 or newer; $$($(PYTHON) --version) was found. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-run: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[data,fast,plot]'
	@touch $@

$(VENV)/.ready-dev: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.ready-run

lint: setup      ## format and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup     ## strict types
	$(BIN)/mypy

floors: setup    ## who may import whom
	$(BIN)/lint-imports

docs: setup      ## build the documentation, warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict   # not --quiet, which hides warnings; and its notice about a successor is no warning of ours

tests: setup     ## the test suite
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup

paper: setup     ## judge the paper's claims from the committed results
	$(BIN)/python -m reproduction claims --out docs/results/paper

browser:         ## install Chromium and its driver, for the tests of the pages
	@if { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null && command -v chromedriver >/dev/null; then \
	  echo "Chromium and chromedriver are here."; \
	elif ! command -v apt-get >/dev/null; then \
	  echo "make browser: there is no apt-get here. Install Chromium and chromedriver your system's way; the tests find them on the PATH." >&2; exit 1; \
	elif [ "$$(id -u)" != 0 ]; then \
	  echo "make browser: only root can install packages. Try: sudo make browser" >&2; exit 1; \
	else \
	  apt-get update --quiet --quiet && DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends chromium chromium-driver; \
	fi

serve-docs: setup    ## read the documentation at http://127.0.0.1:8000
	$(BIN)/mkdocs serve

format: setup    ## format in place
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# constraints.txt says which versions; the lock, made and attached by the release workflow, adds the hashes of their files. PyTorch is left out: its files differ by
# processor and come from PyTorch's own index, which pip checks against that index's hashes.
lock: setup      ## write build/requirements.lock: the tested versions with the hashes of their files
	mkdir -p build && grep -v '^torch==' constraints.txt | $(BIN)/uv pip compile --quiet --generate-hashes --no-deps --no-header --no-annotate - --output-file build/requirements.lock

sbom: setup      ## write build/sbom.json, what is installed here as CycloneDX
	mkdir -p build
	$(BIN)/uvx --quiet --from 'cyclonedx-bom>=7,<8' cyclonedx-py environment --of JSON --output-reproducible --output-file build/sbom.json $(BIN)/python

advisories: setup    ## ask the advisory database about every tested version; needs a network
	mkdir -p build && sed 's/+cpu$$//' constraints.txt > build/audited.txt
	$(BIN)/uvx --quiet --from 'pip-audit>=2.10,<3' pip-audit --no-deps --disable-pip --requirement build/audited.txt

clean:           ## remove what was built, keep runs and data
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
