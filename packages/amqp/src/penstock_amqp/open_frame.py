"""Builds the realm's answer to the opening of a connection: acceptance or refusal."""

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
"""Capabilities of the realm. JMS clients use features only if the server offers them."""


_POLICY: Final = symbol("sole-connection-enforcement-policy")
_DETECTION: Final = symbol("sole-connection-detection-policy")
REFUSE: Final = 0
CLOSE: Final = 1
"""Policies for two connections of a container that both claim to be the only one: refuse the later
one, or close the older one."""
_WEAK: Final = 1
"""Detection policy: connections without such a claim are ignored."""


def sole_policy(connection: Connection) -> int | None:
    """Return the policy if the peer claims to be the only connection of its container; else None.

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
    """Return the connection properties that confirm the policy."""
    return {} if policy is None else {_POLICY: uint(policy), _DETECTION: uint(_WEAK)}


def open_connection(
    connection: Connection, version: str, additional_properties: Mapping[Any, Any]
) -> None:
    """Open this side of the connection, with product, version and ``additional_properties``."""
    connection.offered_capabilities = Array(NO_DESCRIPTOR, Data.SYMBOL, *map(symbol, _OFFERED))
    connection.properties = {
        symbol("product"): "Penstock",
        symbol("version"): version,
        **additional_properties,
    }
    connection.open()


def refuse_connection(connection: Connection, version: str, error: PenstockError) -> None:
    """Refuse a connection as the standard requires: open it, then close it with the error."""
    open_connection(connection, version, {symbol("amqp:connection-establishment-failed"): True})
    if isinstance(error, NameAlreadyBound):
        field = {symbol("invalid-field"): symbol("container-id")}
        connection.condition = Condition(INVALID, str(error), field)
    else:
        connection.condition = Condition(condition_of(error), description_of(error))
    connection.close()
