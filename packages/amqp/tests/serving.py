"""Serves AMQP with limits that differ from those of a realm."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

import penstock
from penstock_amqp.amqp_service import AmqpService
from penstock_server.frontends.shared.buffers import Buffers


def service_of(realm: penstock.Realm) -> AmqpService:
    """Return the object that the AMQP connections of a realm share; the realm must listen
    already."""
    hub: Any = realm.listener.services["amqp"]
    service: AmqpService = hub.service
    return service


def listen_with(realm: penstock.Realm, **limits: Any) -> str:
    """Serve AMQP with these limits, and return its URL."""
    url = realm.listen_amqp()
    service = service_of(realm)
    service.limits = replace(service.limits, **limits)
    service.transaction_bytes = Buffers(2 * service.limits.transaction_bytes_max, small_bytes=0)
    return url
