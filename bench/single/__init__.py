"""Benchmarks of one machine: the sections of `python -m bench`, each in a module of its own."""
