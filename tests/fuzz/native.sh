#!/usr/bin/env bash
# Coverage-guided fuzzing of the native readers with libFuzzer, under address and undefined-behaviour sanitizers:
#   tests/fuzz/native.sh [SECONDS for each target, default 60] [TARGET ...]
# Needs Clang with its runtime libraries (Debian: clang libclang-rt-14-dev). What is new goes to build/fuzz-native.
set -eu
cd "$(dirname "$0")/../.."
seconds=${1:-60}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- parse_rows wire_decode
flags="-std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Isrc/core -march=x86-64-v2"
[ "$(uname -m)" = x86_64 ] || flags=${flags% *}
export UBSAN_OPTIONS=print_stacktrace=1
for target in "$@"; do
  folder=build/fuzz-native/$target
  mkdir -p "$folder/new" "$folder/findings"
  # shellcheck disable=SC2086  # a list of words
  "${CLANGXX:-clang++}" $flags "tests/fuzz/native/$target.cpp" src/core/data/parse_rows.cpp src/core/wire/message.cpp \
    src/core/runtime/thread_pool.cpp -lpthread -o "$folder/fuzz"
  echo "$target: $seconds s"
  "$folder/fuzz" -max_total_time="$seconds" -max_len=4096 -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
    -verbosity=0 -artifact_prefix="$folder/findings/" "$folder/new" "tests/fuzz/native/corpus/$target"
done
