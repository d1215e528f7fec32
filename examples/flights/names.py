"""The names of the run's channels and durable, and its selector."""

from __future__ import annotations

FLIGHTS = "flights"
"""The channel with one event for each flight."""

DELAYS = "flights/delays"
"""The channel that the roll-up writes to. It is in the folder ``flights``, which may exist beside
a channel of that name (SEM C2)."""

GROUND_CREW = "ground-crew"
"""The shared durable of ``flights`` that delivers flights to the workers."""

SELECTOR = "origin = 'JFK' AND dep_delay > 60"
"""The selector of the filtered subscription: flights that left JFK more than an hour late."""
