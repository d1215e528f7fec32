"""How the realm answers the opening of a connection, and how it refuses one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from proton import UNDESCRIBED as NO_DESCRIPTOR
from proton import Array, Condition, Connection, Data, symbol, uint

from penstock_amqp.conditions import INVALID, condition_of, description_of
from penstock_amqp.link_terms import desired
from penstock_amqp.outcomes import UNREADABLE
from penstock_core.vocabulary.errors import InvalidArgument, NameAlreadyBound, PenstockError

_SOLE: Final = "sole-connection-for-container"
_OFFERED: Final = ("ANONYMOUS-RELAY", "DELAYED_DELIVERY", "SHARED-SUBS", _SOLE)


_POLICY: Final = symbol("sole-connection-enforcement-policy")
_DETECTION: Final = symbol("sole-connection-detection-policy")
REFUSE: Final = 0
CLOSE: Final = 1
"""What happens when two connections of a container each want to be the only one: the later one is
refused, or the older one is closed."""
_WEAK: Final = 1
"""Connections that did not ask to be the only one are left alone."""


def sole_policy(connection: Connection) -> int | None:
    """The policy towards others, if the peer wants to be the only connection of its container.

    Raises ``InvalidArgument`` for an unknown policy.
    """
    if _SOLE not in desired(connection):
        return None
    try:
        policy = (connection.remote_properties or {}).get(_POLICY, REFUSE)
    except UNREADABLE:
        policy = None
    if policy not in (REFUSE, CLOSE) or isinstance(policy, bool):
        raise InvalidArgument(f"{_POLICY} is {policy!r}; it must be 0 (refuse) or 1 (close)")
    return int(policy)


def sole_properties(policy: int | None) -> dict[Any, Any]:
    """Connection properties that confirm the policy."""
    return {} if policy is None else {_POLICY: uint(policy), _DETECTION: uint(_WEAK)}


def opened(connection: Connection, version: str, more: Mapping[Any, Any]) -> None:
    """Open this side; ``more`` are properties besides the usual ones."""
    connection.offered_capabilities = Array(NO_DESCRIPTOR, Data.SYMBOL, *map(symbol, _OFFERED))
    connection.properties = {
        symbol("product"): "Penstock",
        symbol("version"): version,
        **more,
    }
    connection.open()


def not_opened(connection: Connection, version: str, error: PenstockError) -> None:
    """Refuse a connection as the standard prescribes: open it, and close it with the error."""
    opened(connection, version, {symbol("amqp:connection-establishment-failed"): True})
    if isinstance(error, NameAlreadyBound):
        field = {symbol("invalid-field"): symbol("container-id")}
        connection.condition = Condition(INVALID, str(error), field)
    else:
        connection.condition = Condition(condition_of(error), description_of(error))
    connection.close()
