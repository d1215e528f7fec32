"""What the run is called by in the realm, and what it asks of it."""

from __future__ import annotations

FLIGHTS = "flights"
"""The channel with one event a flight."""

DELAYS = "flights/delays"
"""The channel the roll-up writes to, beside the folder of its name (SEM C2)."""

GROUND_CREW = "ground-crew"
"""The shared durable of ``flights`` that the workers take their flights from."""

SELECTOR = "origin = 'JFK' AND dep_delay > 60"
"""What the filtered subscription asks for: flights that left JFK more than an hour late."""
