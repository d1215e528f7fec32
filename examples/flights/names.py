"""What the run is called by in the realm, and what it asks of it."""

from __future__ import annotations

FLIGHTS = "flights"
"""The channel with one event a flight."""

DELAYS = "flight-delays"
"""The channel the roll-up writes to. Not ``flights/delays``: that would make ``flights`` a
folder, and a folder cannot have the name of a channel (SEM C2)."""

GROUND_CREW = "ground-crew"
"""The shared durable of ``flights`` that the workers take their flights from."""

SELECTOR = "origin = 'JFK' AND dep_delay > 60"
"""What the filtered subscription asks for: flights that left JFK more than an hour late."""
