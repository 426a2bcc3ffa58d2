"""Benchmarks. `python -m bench` measures one machine: speed beside PyTorch, growth, accuracy, prediction, reading,
memory; `python -m bench.network` and `python -m bench.cluster` emulated clusters; `python -m bench.recipes` accuracy on
real data; `pytest bench/micro --benchmark-only` the kernels."""
