#!/usr/bin/env bash
# Builds the core with a sanitizer, in an environment and build folder of its own, and runs the core's tests with it:
#   tests/sanitize.sh address    memory errors and undefined behaviour
#   tests/sanitize.sh thread     data races
# Needs GCC with its sanitizer libraries, and Linux.
set -eu

kind=${1:?usage: tests/sanitize.sh address|thread}
cd "$(dirname "$0")/.."
core_tests="tests/core/test_active.py tests/core/test_layers.py tests/core/test_threads.py tests/core/test_tables.py
            tests/core/test_query.py tests/core/test_wire.py tests/core/test_label_prior.py tests/core/test_linear.py
            tests/core/test_item_regressions.py tests/core/test_candidates.py tests/core/test_int8.py
            tests/core/test_random_negatives.py tests/core/test_wire_collectives.py tests/core/test_neighbours.py
            tests/core/test_second_ranking.py tests/core/test_topk_of_cells.py
            tests/data/test_parse.py tests/model/test_products.py"
case $kind in
  address)
    flags=address,undefined
    libraries="libasan.so libubsan.so"
    core_tests="$core_tests tests/core/test_kernels.py tests/core/test_kernels_pairs.py tests/core/test_hash.py
                tests/core/test_kernels_stored.py tests/model/test_network_gradients.py
                tests/integration/test_fuzz.py"
    ;;
  thread)
    flags=thread
    libraries=libtsan.so
    core_tests="$core_tests tests/integration/test_races.py"
    ;;
  *)
    echo "there is no sanitizer '$kind': address or thread" >&2
    exit 2
    ;;
esac

python=.venv-sanitize-$kind/bin/python
[ -x "$python" ] || "${PYTHON:-python3}" -m venv ".venv-sanitize-$kind"
"$python" -m pip install -q "pytest>=8" "pytest-timeout>=2.3" "hypothesis>=6.100"
"$python" -m pip install -q . -C "cmake.define.DSLIDE_SANITIZE=$flags" -C "build-dir=build/sanitize-$kind"

# Python is not built with the sanitizer: its runtime is preloaded, and libstdc++, so that it can intercept exceptions.
preload=""
for library in $libraries libstdc++.so; do
  preload="$preload $("${CXX:-g++}" -print-file-name="$library")"
done
export DSLIDE_TEST_PROFILE=quick
export OPENBLAS_NUM_THREADS=1  # numpy's own threads are not built with the sanitizer
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1  # Python does not free all memory at exit
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=halt_on_error=1:die_after_fork=0  # a forked child gets threads of its own
# shellcheck disable=SC2086  # lists of words
LD_PRELOAD="${preload# }" exec "$python" -m pytest -p no:cacheprovider --capture=sys --timeout 900 $core_tests
