"""Saved models and checkpoints: writing, reading, resharding, replication between disks."""
