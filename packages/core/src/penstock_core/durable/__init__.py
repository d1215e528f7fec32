"""Durables and queues: outstanding events, the seats that hold them, and their lanes."""
