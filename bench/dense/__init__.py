"""Accuracy on dense rows with defaults, beside simple methods: `python -m bench.dense`."""
