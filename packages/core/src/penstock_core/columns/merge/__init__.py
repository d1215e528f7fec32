"""Merge channels: deltas, and the merged state of each key."""
