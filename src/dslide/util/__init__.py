"""Helpers that are independent of networks and data: CSR arrays, files, memory, CPU and threads, signals, units."""
