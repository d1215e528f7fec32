"""Answers of ``/health`` and ``/ready``."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from penstock_server.runtime.access.incidents import Incident

INCIDENTS_SHOWN_MAX: Final = 20
"""Maximum number of incidents in an answer."""
State = Literal[
    "ok", "degraded", "starting", "stopping", "failed", "standstill", "no-quorum", "standing-by"
]
"""State of a realm or node.

- ``degraded``: the realm serves, but a background task has suspended work on channels.
- ``standstill`` (only at ``/ready``): publishers have not been read for five seconds.
- ``no-quorum``: the cluster's engine cannot store data.
- ``standing-by``: another node of the cluster serves.
"""


class Health(Struct, frozen=True, omit_defaults=True):
    """The state of a realm that serves."""

    status: State
    incidents: list[Incident] = []
    """Failures of background tasks; only users who may monitor the realm see channel names."""


class StandbyHealth(Struct, frozen=True):
    """The state of a standby node."""

    status: State
    owner: str
    """Name of the node that serves; empty if it is unknown."""
    owner_url: str
    """URL at which the owner serves HTTP."""
    unfit: str = ""
    """Reason why this node could not take over the realm; empty if it could."""
    incidents: list[Incident] = []
    """Failures of the node's background tasks."""
