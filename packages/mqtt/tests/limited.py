"""Serves MQTT with limits that differ from those of a realm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

import penstock


@contextmanager
def limited(realm: penstock.Realm, **limits: int) -> Iterator[None]:
    """Apply these limits to the sessions and connections that begin in the ``with`` block. The
    realm must have MQTT already."""
    hub: Any = realm.listener.services["mqtt"]
    before = hub.mqtt.limits
    hub.mqtt.limits = replace(before, **limits)
    try:
        yield
    finally:
        hub.mqtt.limits = before
