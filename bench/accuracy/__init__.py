"""Accuracy on real data: `python -m bench.accuracy DATA_FOLDER`."""
