"""What the realm says of itself when a connection is opened, or is not."""

from __future__ import annotations

from typing import Any, Final

from proton import UNDESCRIBED as NO_DESCRIPTOR
from proton import Array, Condition, Connection, Data, symbol

from penstock.core.errors import NameAlreadyBound, PenstockError
from penstock.frontends.amqp.conditions import INVALID, condition_of, description_of
from penstock.frontends.amqp.termini import desired

_SOLE: Final = "sole-connection-for-container"
_OFFERED: Final = ("ANONYMOUS-RELAY", "DELAYED_DELIVERY", "SHARED-SUBS", _SOLE)


def is_sole(connection: Connection) -> bool:
    """Whether the peer wants to be the only one of its container."""
    return _SOLE in desired(connection)


def opened(connection: Connection, version: str, **more: Any) -> None:
    """Open this side."""
    connection.offered_capabilities = Array(NO_DESCRIPTOR, Data.SYMBOL, *map(symbol, _OFFERED))
    connection.properties = {
        symbol("product"): "Penstock",
        symbol("version"): version,
        **{symbol(f"amqp:{name.replace('_', '-')}"): value for name, value in more.items()},
    }
    connection.open()


def not_opened(connection: Connection, version: str, error: PenstockError) -> None:
    """It may not come in, or another connection of its container is there: open as the standard
    wants it, and close."""
    opened(connection, version, connection_establishment_failed=True)
    if isinstance(error, NameAlreadyBound):
        field = {symbol("invalid-field"): symbol("container-id")}
        connection.condition = Condition(INVALID, str(error), field)
    else:
        connection.condition = Condition(condition_of(error), description_of(error))
    connection.close()
