"""Experiments on emulated clusters (dslide netlab): `sudo python -m bench.cluster EXPERIMENT`."""
