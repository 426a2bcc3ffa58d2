"""Predictions before a run: memory, traffic, time of a step."""
