"""Requests that read a channel or queue as a table."""

from __future__ import annotations

from typing import Any

from penstock_core.api.requests import Request
from penstock_core.vocabulary.identities import ChannelNumber


class LoadTable(Request[Any], frozen=True):
    """Make a snapshot of the stored events as a table, or find the current one (SEM B1, B2)."""

    channel: ChannelNumber
