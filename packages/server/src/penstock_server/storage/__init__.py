"""Implementations of the ports in ``core.vocabulary.ports``: a data directory, and memory."""
