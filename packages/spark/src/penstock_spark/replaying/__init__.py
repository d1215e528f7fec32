"""Replay: the events of an archive are published again, in order, at a pace, each once."""
