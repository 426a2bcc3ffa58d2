"""Measurements on emulated clusters and of what sizes cost: `python -m bench.cluster EXPERIMENT`."""
