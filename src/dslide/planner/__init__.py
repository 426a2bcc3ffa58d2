"""Predictions before a run: memory, traffic, time of a step, and how many nodes to use."""
