"""Adapters of the ports in ``core.vocabulary.ports``: a data directory, or memory."""
