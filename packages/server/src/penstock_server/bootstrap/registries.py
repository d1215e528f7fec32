"""The registries of channel types, engines and durable types, built from their folders."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType, ModuleType
from typing import Any

from penstock_core import channel_types, durables, engines
from penstock_core.channel.state import RealmRules
from penstock_server.settings import Settings


@cache
def registered(package: ModuleType, export: str) -> Mapping[str, Any]:
    """Return the ``export`` of each module in ``package`` by the name of the module."""
    exports: dict[str, Any] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(package.__path__)):
        value = getattr(importlib.import_module(f"{package.__name__}.{module}"), export)
        if value.name != module:
            raise TypeError(f"{module}.py must define {module!r}, not {value.name!r}")
        exports[module] = value
    return MappingProxyType(exports)


def rules(settings: Settings | None = None) -> RealmRules:
    """Return the registries of channel types, engines and durable types, with the realm's
    limits."""
    return RealmRules(
        types=registered(channel_types, "TYPE"),
        engines=registered(engines, "ENGINE"),
        kinds=registered(durables, "KIND"),
        event_bytes_max=(settings or Settings()).limits.max_event_bytes,
        event_timeout_us=int((settings or Settings()).limits.event_timeout_s * 1_000_000),
        reattach_us=int((settings or Settings()).cluster.reattach_s * 1_000_000),
        stores_max=(settings or Settings()).limits.channels_max,
        outbox_bytes_max=(settings or Settings()).cluster.outbox_bytes_max,
        mqtt_channel=(settings or Settings()).listen.mqtt_channel,
        durables_max=(settings or Settings()).limits.durables_per_channel_max,
    )
