#!/usr/bin/env bash
# Builds the core with gcov's counters, in an environment and build folder of its own, runs the core's tests and reports
# which of its lines they reach: a table, and build/coverage-core/index.html. Needs GCC with gcov.
set -eu

cd "$(dirname "$0")/.."
core_tests="tests/core tests/data tests/model tests/util/test_speeds.py --ignore tests/model/test_learning.py"

python=.venv-coverage/bin/python
[ -x "$python" ] || "${PYTHON:-python3}" -m venv .venv-coverage
"$python" -m pip install -q "pytest>=8" "pytest-timeout>=2.3" "hypothesis>=6.100" "gcovr>=8"
"$python" -m pip install -q . -C cmake.define.DSLIDE_COVERAGE=ON -C build-dir=build/coverage

find build/coverage -name '*.gcda' -delete
# shellcheck disable=SC2086  # a list of words
DSLIDE_TEST_PROFILE=quick "$python" -m pytest -p no:cacheprovider --timeout 900 $core_tests
mkdir -p build/coverage-core
# A line counts if any instance of it ran: of a template, or of a kernel that is compiled for several instruction sets.
"$python" -m gcovr --root . --filter src/core/ --gcov-executable "${GCOV:-gcov}" --gcov-suspicious-hits-threshold 0 \
  --merge-mode-functions separate --merge-lines --txt \
  --html-details build/coverage-core/index.html build/coverage/CMakeFiles/dslide_*.dir
