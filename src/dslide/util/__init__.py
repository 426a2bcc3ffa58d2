"""Helpers without knowledge of networks or training: files, memory, threads, units, text tables."""
