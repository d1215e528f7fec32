"""Penstock as a message server of FastStream::

from faststream import FastStream
from penstock_faststream import PenstockBroker

broker = PenstockBroker("penstock://localhost:9000")
app = FastStream(broker)

@broker.subscriber("orders", durable="billing")
@broker.publisher("invoices")
async def bill(order: Order) -> Invoice: ...
"""

from __future__ import annotations

from faststream import AckPolicy

from penstock_faststream.declared import DurableSub
from penstock_faststream.publish_command import PenstockResponse
from penstock_faststream.realm_broker import (
    CurrentBroker,
    CurrentSession,
    PenstockBroker,
    PenstockMessage,
)
from penstock_faststream.registrator import PenstockPublisher, PenstockRoute, PenstockRouter
from penstock_faststream.testing import TestPenstockBroker

__all__ = [
    "AckPolicy",
    "CurrentBroker",
    "CurrentSession",
    "DurableSub",
    "PenstockBroker",
    "PenstockMessage",
    "PenstockPublisher",
    "PenstockResponse",
    "PenstockRoute",
    "PenstockRouter",
    "TestPenstockBroker",
]
