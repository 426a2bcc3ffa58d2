"""Helpers that know nothing of networks: files, memory, threads, signals, units."""
