"""Spark as a client of the realm: sources, sinks, and a session tuned for them."""
