"""Penstock: a messaging server whose channels are Arrow tables.

::

    import penstock

    with penstock.Realm("./data") as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        orders.publish(b"...", properties={"price": 9.5})
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from penstock.bootstrap import Realm
    from penstock.client.sync import Session, connect
    from penstock.columns.batch import EventBatch
    from penstock.columns.event import Event, Origin

_PUBLIC = {
    "Realm": "penstock.bootstrap",
    "connect": "penstock.client.sync",
    "Session": "penstock.client.sync",
    "Event": "penstock.columns.event",
    "EventBatch": "penstock.columns.batch",
    "Origin": "penstock.columns.event",
}
"""Loaded when first used: a client does not import the server, nor a look at the version Arrow."""

_ERRORS = "penstock.core.errors"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # What reads it takes longer to load than all the rest of this package's first line.
        globals()[name] = importlib.import_module("importlib.metadata").version("penstock")
        return globals()[name]
    if name in _PUBLIC:
        found = getattr(importlib.import_module(_PUBLIC[name]), name)
        globals()[name] = found  # the next look finds it without asking here
        return found
    errors = importlib.import_module(_ERRORS)
    found = getattr(errors, name, None)
    if isinstance(found, type) and issubclass(found, errors.PenstockError):
        return found
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


__all__ = ["Event", "EventBatch", "Origin", "Realm", "Session", "__version__", "connect"]
