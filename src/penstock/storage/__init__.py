"""Adapters of the ports in ``core.ports``: a data directory, or memory."""
