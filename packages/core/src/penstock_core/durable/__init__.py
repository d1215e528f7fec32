"""Durables and queues: what is outstanding, in whose hands, in which lane."""
