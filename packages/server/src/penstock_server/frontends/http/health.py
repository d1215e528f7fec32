"""Answers of ``/health`` and ``/ready``."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from penstock_server.runtime.access.incidents import Incident

INCIDENTS_SHOWN_MAX: Final = 20
"""Most incidents in an answer."""
State = Literal[
    "ok", "degraded", "starting", "stopping", "failed", "standstill", "no-quorum", "standing-by"
]
"""``degraded``: the realm serves, but a background task has set channels aside. ``standstill``,
only at ``/ready``: publishers have not been read for five seconds. ``no-quorum``: the engine of the
cluster cannot store anything. ``standing-by``: another node of the cluster serves."""


class Health(Struct, frozen=True, omit_defaults=True):
    """The state of a realm that serves."""

    status: State
    incidents: list[Incident] = []
    """What background tasks could not do; channels are named to those who may monitor the realm."""


class StandbyHealth(Struct, frozen=True):
    """The state of a node that stands by."""

    status: State
    owner: str
    """The node that serves; empty while none is known to."""
    owner_url: str
    """Where that one serves HTTP."""
    unfit: str = ""
    """Why this node could not take the realm over; empty: it could."""
    incidents: list[Incident] = []
    """What background tasks of the node could not do."""
