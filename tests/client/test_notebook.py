"""The blocking client in a thread whose event loop is somebody else's, as in a notebook."""

from __future__ import annotations

import asyncio

import penstock


def test_cells_of_a_notebook_may_block_their_own_loop() -> None:
    async def cell() -> list[bytes]:
        with penstock.Realm() as realm, realm.connect() as session:
            orders = session.channels.create("orders")
            orders.publish(b"embedded")
            with penstock.connect(realm.listen()) as other:
                other.channels.get("orders").publish_many(iter([penstock.Event(b"over TCP")]))
                with orders.durables.create("d").subscribe(timeout=10.0) as subscription:
                    found = []
                    for event in subscription:
                        found.append(event.data)
                        event.ack()
                        if len(found) == 2:
                            return found
            return []

    assert asyncio.run(cell()) == [b"embedded", b"over TCP"]
