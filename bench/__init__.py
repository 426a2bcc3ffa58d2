"""Benchmarks. `python -m bench` measures one machine: speed beside PyTorch, growth, accuracy, prediction, reading,
memory; `python -m bench.network` an emulated cluster; `python -m bench.recipes` accuracy on real data;
`pytest bench/micro --benchmark-only` the kernels."""
