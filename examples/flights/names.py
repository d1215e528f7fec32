"""The names of the run's channels and durable, and its selector."""

from __future__ import annotations

FLIGHTS = "flights"
"""The channel with one event a flight."""

DELAYS = "flights/delays"
"""The channel the roll-up writes to, beside the folder of its name (SEM C2)."""

GROUND_CREW = "ground-crew"
"""The shared durable of ``flights`` from which the workers get their flights."""

SELECTOR = "origin = 'JFK' AND dep_delay > 60"
"""The selector of the filtered subscription: flights that left JFK more than an hour late."""
