"""Experiments on an emulated cluster (dslide netlab): `sudo python -m bench.cluster EXPERIMENT`, one command each."""
