"""The terms of a link's ends: capabilities, filters, durability."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct
from proton import UNDESCRIBED, Array, Data, Link, Terminus, symbol, ulong
from proton import Described as ProtonDescribed

from penstock_amqp.outcomes import UNREADABLE
from penstock_core.vocabulary.errors import InvalidArgument

_SELECTOR: Final = (0x0000468C00000004, "apache.org:selector-filter:string", "jms-selector")
_NO_LOCAL: Final = (0x0000468C00000003, "apache.org:no-local-filter:list", "no-local")
_LIFETIME: Final = symbol("lifetime-policy")
_DELETE_ON_CLOSE: Final = 0x2B
_POLICIES: Final = (
    _DELETE_ON_CLOSE,
    "amqp:delete-on-close:list",
    0x2C,
    "amqp:delete-on-no-links:list",
    0x2D,
    "amqp:delete-on-no-messages:list",
    0x2E,
    "amqp:delete-on-no-links-or-messages:list",
)
_GENERAL_MAX: Final = 64 << 10
"""Most characters of a selector."""


class ReceiverTerms(Struct, frozen=True):
    """The terms that a receiver asks for."""

    selector: str = ""
    no_local: bool = False
    shared: bool = False
    is_global: bool = False
    durable: bool = False
    copies: bool = False
    kind: str = ""
    """Type of the durable, if a filter names one."""


_KINDS: Final = {"serial": "serial", "priority": "priority", "shared-queued": "shared_queued"}


def capabilities(terminus: Terminus) -> frozenset[str]:
    """The capabilities of a terminus as plain strings."""
    return frozenset(map(str, _listed(_value(terminus.capabilities))))


def takes_outcome(source: Terminus, outcome: str) -> bool:
    """Whether the sender accepts an outcome, such as ``rejected``; it does if it names no outcomes
    (3.5.3)."""
    named = _listed(_value(source.outcomes))
    return not named or f"amqp:{outcome}:list" in map(str, named)


def check_dynamic(terminus: Terminus, which: str) -> None:
    """Raise ``InvalidArgument`` for a dynamic terminus that has an address, for properties of a
    node without a dynamic one, and for a lifetime policy that is none (3.5.3, 3.5.9)."""
    properties = _value(terminus.properties)
    if properties and not terminus.dynamic:
        raise InvalidArgument(
            f"a {which} that is not dynamic has dynamic-node-properties; they are for a dynamic "
            f"one, whose node is created; leave them out"
        )
    policy = properties.get(_LIFETIME) if isinstance(properties, dict) else None
    if policy is not None and not (
        isinstance(policy, ProtonDescribed) and _is_one_of(policy.descriptor, _POLICIES)
    ):
        raise InvalidArgument(
            f"lifetime-policy of a dynamic {which} is {str(policy)[:40]}; it may be "
            f"delete-on-close, delete-on-no-links, delete-on-no-messages or "
            f"delete-on-no-links-or-messages, each a described list"
        )
    if terminus.dynamic and terminus.address:
        raise InvalidArgument(
            f"a dynamic {which} with the address {terminus.address[:40]!r}: the realm chooses the "
            f"address of a dynamic one; leave one of the two out"
        )


def tell_node_properties(ours: Terminus) -> None:
    """Say what a dynamic node really is, whatever was asked for: it is deleted with the link that
    has created it (3.5.3, 3.5.10)."""
    policy = ProtonDescribed(ulong(_DELETE_ON_CLOSE), [])
    ours.properties.clear()
    ours.properties.put_object({_LIFETIME: policy})


def desired(link_or_connection: Any) -> frozenset[str]:
    """Capabilities that the other side desires; none if they cannot be read."""
    try:
        data = link_or_connection.remote_desired_capabilities
    except UNREADABLE:
        return frozenset()
    return frozenset(map(str, _listed(_value(data) if isinstance(data, Data) else data)))


def receiver_terms_of(source: Terminus) -> ReceiverTerms:
    """The terms in a source. Raises ``InvalidArgument`` for filters that cannot be read."""
    selector, no_local = "", False
    for key, given in _filters(source).items():
        named = _name_of(key, given)
        value = given.value if isinstance(given, ProtonDescribed) else given
        if _is_one_of(named, _SELECTOR):
            if not isinstance(value, str) or len(value) > _GENERAL_MAX:
                raise InvalidArgument("the selector of a link must be text of at most 64 KiB")
            selector = str(value)
        elif _is_one_of(named, _NO_LOCAL):
            no_local = True
    said = capabilities(source)
    durable = (
        source.durability != Terminus.NONDURABLE or source.expiry_policy == Terminus.EXPIRE_NEVER
    )
    kind = next((kind for word, kind in _KINDS.items() if word in said), "")
    return ReceiverTerms(
        selector.strip(),
        no_local,
        shared="shared" in said,
        is_global="global" in said,
        durable=durable,
        copies=source.distribution_mode == Terminus.DIST_MODE_COPY,
        kind=kind,
    )


def _name_of(key: Any, given: Any) -> Any:
    """The name or code that tells what kind of filter it is."""
    return given.descriptor if isinstance(given, ProtonDescribed) else str(key)


def _is_one_of(named: Any, known: tuple[Any, ...]) -> bool:
    if isinstance(named, str):
        return str(named) in known
    return isinstance(named, int) and int(named) in known


def _filters(source: Terminus) -> dict[Any, Any]:
    found = _value(source.filter)
    return found if isinstance(found, dict) else {}


def _value(data: Data | None) -> Any:
    """The value of AMQP data. Raises ``InvalidArgument`` for data that Proton accepts and cannot
    read."""
    if data is None:
        return None
    data.rewind()
    try:
        found = data.get_object() if data.next() else None
    except UNREADABLE as error:
        raise InvalidArgument(f"a source or target cannot be read: {error}") from None
    data.rewind()
    return found


def echo_terms(theirs: Terminus, ours: Terminus) -> None:
    """Repeat the terms of the peer's end on this side, as far as they are understood. Raises
    ``InvalidArgument``.

    The values are rebuilt, not copied: Proton accepts values that it cannot write, such as an array
    without a type, and writing one of these crashes the process.
    """
    ours.type = theirs.type
    ours.address = theirs.address
    ours.durability = theirs.durability
    ours.expiry_policy = theirs.expiry_policy
    ours.timeout = theirs.timeout
    ours.dynamic = theirs.dynamic
    ours.distribution_mode = theirs.distribution_mode
    for said, again in (
        (theirs.capabilities, ours.capabilities),
        (theirs.outcomes, ours.outcomes),
    ):
        names = [str(each) for each in _listed(_value(said))]
        if not all(map(str.isascii, names)):
            raise InvalidArgument(f"{names} of a source or target must be symbols")
        if names:
            again.put_object(Array(UNDESCRIBED, Data.SYMBOL, *map(symbol, names)))
    filters = {
        symbol(str(key)): _plain(given)
        for key, given in _filters(theirs).items()
        if _is_one_of(_name_of(key, given), _SELECTOR + _NO_LOCAL)
    }
    if filters:
        ours.filter.put_object(filters)


def _plain(given: Any) -> Any:
    """A filter as the standard writes it: its kind, with a text or an empty list."""
    if not isinstance(given, ProtonDescribed):
        return str(given)
    named = given.descriptor
    kind = symbol(str(named)) if isinstance(named, str) else ulong(int(named))
    return ProtonDescribed(kind, str(given.value) if isinstance(given.value, str) else [])


def _listed(found: Any) -> list[Any]:
    if found is None:
        return []
    if isinstance(found, Array):
        return list(found.elements)
    return list(found) if isinstance(found, list | tuple) else [found]


def is_lookup(link: Link) -> bool:
    """Whether a receiver names an existing subscription by the link's name alone."""
    source = link.remote_source
    return source.type == Terminus.UNSPECIFIED or (source.address is None and not source.dynamic)
