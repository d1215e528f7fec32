"""Replay: what an archive has is published again, in order, at a pace, once."""
