"""Readers and writers, one module for each file format."""
