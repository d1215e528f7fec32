"""A node of a cluster: what it owns of the shared engine, it serves."""
