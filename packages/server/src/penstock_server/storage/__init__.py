"""Implementations of the ports in ``penstock_core.vocabulary.ports``: a data directory, and
memory."""
