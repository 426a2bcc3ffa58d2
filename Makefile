# For newcomers: `make demo`, `make report` and `make test`. Everything is made inside this folder (.venv, demo/).
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check -q

.PHONY: demo report test test-waiting test-others lint fuzz bench micro sanitize clean

demo: .venv/installed
	rm -rf demo
	$(BIN)/python examples/demo.py demo

# A page with charts of the demo's two runs, which are made if they are not there.
report: .venv/installed
	test -f demo/two-ranks/summary.json || $(MAKE) --no-print-directory demo
	$(BIN)/dslide report demo/run demo/two-ranks --out demo/report.html

# Tests that mostly wait, for ranks and nodes that are lost, run beside the others; what they print comes at their end.
WAITING := $(wildcard tests/integration/test_elastic*.py) tests/netlab/test_netlab.py tests/bench/test_cluster_peers.py
test: .venv/installed-tests
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory -j2 test-waiting test-others

test-waiting:
	$(BIN)/python -m pytest -p no:cacheprovider $(WAITING) > .venv/waiting.log 2>&1 || (cat .venv/waiting.log; exit 1)
	@echo; tail -n 1 .venv/waiting.log

test-others:
	$(BIN)/python -m pytest $(WAITING:%=--ignore=%)

lint: .venv/installed-tests
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(shell find src/core src/bindings -name '*.[ch]pp')

# Damaged input for every reader, other damage each time: make fuzz MINUTES=60 TARGETS="model npz"
MINUTES ?= 10
fuzz: .venv/installed-tests
	$(BIN)/python tests/fuzz/run.py --minutes $(MINUTES) $(TARGETS)

# Compared with PyTorch too if it is there: .venv/bin/pip install torch==2.13.0
bench: .venv/installed-bench
	$(BIN)/python -m bench

micro: .venv/installed-bench
	$(BIN)/python -m pytest bench/micro --benchmark-only

sanitize:
	PYTHON=$(PYTHON) bash tests/sanitize.sh address
	PYTHON=$(PYTHON) bash tests/sanitize.sh thread

# The package is installed as a user would have it, and again whenever a source changed.
SOURCES := pyproject.toml CMakeLists.txt $(shell find src -type f -not -path '*/__pycache__/*')

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python $(SOURCES)
	$(PIP) install '.[mpi]'
	touch $@

.venv/installed-tests: .venv/bin/python $(SOURCES)
	$(PIP) install '.[test,lint]' -C cmake.define.DSLIDE_WERROR=ON
	touch $@ .venv/installed

.venv/installed-bench: .venv/bin/python $(SOURCES)
	$(PIP) install '.[bench]'
	touch $@ .venv/installed

clean:
	rm -rf .venv .venv-* build demo
