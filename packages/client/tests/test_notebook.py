"""The blocking client in a thread with an event loop of another library, as in a notebook."""

from __future__ import annotations

import penstock
from tests.loops import on_a_loop


@on_a_loop
async def test_cells_of_a_notebook_may_block_their_own_loop() -> None:
    browsed: list[bytes] = []

    with penstock.Realm() as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        orders.publish(b"embedded")
        with penstock.connect(realm.listen()) as other_session:
            other_session.channels.get("orders").publish_many(iter([penstock.Event(b"over TCP")]))
            with orders.durables.create("d").subscribe(timeout=10.0) as subscription:
                for event in subscription:
                    browsed.append(event.data)
                    event.ack()
                    if len(browsed) == 2:
                        break

    assert browsed == [b"embedded", b"over TCP"]
