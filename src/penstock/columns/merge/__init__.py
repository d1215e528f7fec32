"""Merge channels: deltas and the states they add up to."""
