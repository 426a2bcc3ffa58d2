# Everything is made inside this folder: .venv, .venv-*, build/, demo/.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check -q
CORE_SOURCES := $(shell find src/core src/bindings -name '*.[ch]pp')

.PHONY: help demo report test test-waiting test-others lint docs notebooks format coverage fuzz bench micro sanitize wheel release clean
.DEFAULT_GOAL := help

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
	  while IFS='|' read -r target text; do printf '%-18s%s\n' "$$target" "$$text"; done

demo: .venv/installed ## train with 200,000 labels, on one rank and two, and predict
	rm -rf demo
	$(BIN)/python examples/demo.py demo

report: .venv/installed ## charts of the demo's two runs in demo/report.html (runs the demo if needed)
	test -f demo/two-ranks/summary.json || $(MAKE) --no-print-directory demo
	$(BIN)/dslide report demo/run demo/two-ranks --out demo/report.html

test: .venv/installed-tests ## lint, documentation and all tests
	$(MAKE) --no-print-directory lint docs
	$(MAKE) --no-print-directory -j2 test-waiting test-others

# Tests that mostly wait run beside the others; their output is printed at their end.
test-waiting:
	$(BIN)/python -m pytest -p no:cacheprovider -m waiting > .venv/waiting.log 2>&1 || (cat .venv/waiting.log; exit 1)
	@echo; tail -n 1 .venv/waiting.log

test-others:
	$(BIN)/python -m pytest -m 'not waiting'

lint: .venv/installed-tests ## check format, style, types and imports between packages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $(CORE_SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: .venv/installed-tests ## the documentation site: build/docs/index.html
	$(BIN)/sphinx-build -q -W --keep-going -d build/doctrees docs build/docs

notebooks: .venv/installed-tests ## run the notebooks of the documentation and store their outputs
	$(BIN)/jupyter execute --inplace docs/notebooks/*.ipynb

format: .venv/installed-tests ## format Python and C++, sort imports
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CORE_SOURCES)

# Without tests that limit files or memory so far that coverage's own files cannot be written.
coverage: .venv/installed-tests ## which lines of Python and of the core the tests run (build/coverage-*/index.html)
	rm -f .coverage .coverage.*
	$(BIN)/python -m pytest -p no:cacheprovider --cov --cov-report=term --cov-report=html:build/coverage-python \
	  -k 'not full_disk and not out_of_memory'
	PYTHON=$(PYTHON) bash tests/coverage.sh

fuzz: .venv/installed-tests ## damaged input for every reader: make fuzz MINUTES=60 TARGETS="model npz"
	PYTHONPATH=tests $(BIN)/python -m fuzz.run --minutes $(MINUTES) $(TARGETS)
MINUTES ?= 10

bench: .venv/installed-bench ## speed, memory and accuracy, beside PyTorch if .venv has it (pip install torch==2.13.0)
	$(BIN)/python -m bench

micro: .venv/installed-bench ## time every kernel at every instruction-set level
	$(BIN)/python -m pytest bench/micro --benchmark-only

sanitize: ## the core's tests under address, undefined-behaviour and thread sanitizers
	PYTHON=$(PYTHON) bash tests/sanitize.sh address
	PYTHON=$(PYTHON) bash tests/sanitize.sh thread

wheel: ## build the wheel of $(PYTHON) and try it without a compiler (build/wheel/dist)
	$(PYTHON) release/wheel.py

release: ## make a release: make release VERSION=1.2.3, or to see what it would do: make release VERSION=1.2.3 DRY=1
	$(if $(VERSION),,$(error give VERSION=1.2.3))
	$(if $(DRY),,$(MAKE) --no-print-directory test)
	$(PYTHON) release/release.py $(VERSION) $(if $(DRY),--dry-run)

clean: ## remove all that was made
	rm -rf .venv .venv-* build demo .coverage .coverage.*

# The package is installed as a user would have it, and again whenever a source changed.
SOURCES := pyproject.toml CMakeLists.txt $(shell find src -type f -not -path '*/__pycache__/*')

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python $(SOURCES)
	$(PIP) install '.[mpi]'
	touch $@

.venv/installed-tests: .venv/bin/python $(SOURCES)
	$(PIP) install '.[test,lint,docs]' -C cmake.define.DSLIDE_WERROR=ON
	touch $@ .venv/installed

.venv/installed-bench: .venv/bin/python $(SOURCES)
	$(PIP) install '.[bench]'
	touch $@ .venv/installed
