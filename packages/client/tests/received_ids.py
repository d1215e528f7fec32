"""Ids of received events."""

from __future__ import annotations

from collections.abc import Iterable

import penstock


def ids(events: Iterable[penstock.Event]) -> list[int | None]:
    return [event.event_id for event in events]
