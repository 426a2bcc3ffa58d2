"""Benchmarks: `python -m bench` compares training speed with PyTorch, side by side, on data of Amazon-670K's shape."""
