"""Reads and writes the terms of a link's source and target: capabilities, filters, durability."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct
from proton import UNDESCRIBED, Array, Data, Link, Terminus, symbol, ulong
from proton import Described as ProtonDescribed

from penstock_amqp.outcomes import UNREADABLE
from penstock_core.vocabulary.errors import InvalidArgument

_SELECTOR: Final = (0x0000468C00000004, "apache.org:selector-filter:string", "jms-selector")
"""Code and names that clients use for a filter with a selector."""
_NO_LOCAL: Final = (0x0000468C00000003, "apache.org:no-local-filter:list", "no-local")
"""Code and names that clients use for the filter that excludes their own messages."""
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
_SELECTOR_MAX: Final = 64 << 10
"""Maximum characters of a selector."""


class ReceiverTerms(Struct, frozen=True):
    """The terms that a receiver asks for."""

    selector: str = ""
    no_local: bool = False
    """Whether the receiver excludes messages that its own container sends."""
    shared: bool = False
    """Whether several receivers may share the subscription."""
    is_global: bool = False
    """Whether receivers of other containers may also share the subscription."""
    durable: bool = False
    """Whether the subscription outlives its receivers."""
    copies: bool = False
    """Whether the receiver browses: it gets copies and consumes nothing."""
    kind: str = ""
    """Type of the durable, if a capability names one."""


_KINDS: Final = {"serial": "serial", "priority": "priority", "shared-queued": "shared_queued"}
"""Types of durables, by the capability that asks for them."""


def capabilities(terminus: Terminus) -> frozenset[str]:
    """Return the capabilities of a terminus as strings."""
    return frozenset(map(str, _as_list(_value(terminus.capabilities))))


def accepts_outcome(source: Terminus, outcome: str) -> bool:
    """Return True if the sender accepts an outcome, such as ``rejected``. A sender that names no
    outcomes accepts all (3.5.3)."""
    accepted_outcomes = _as_list(_value(source.outcomes))
    return not accepted_outcomes or f"amqp:{outcome}:list" in map(str, accepted_outcomes)


def check_dynamic(terminus: Terminus, which: str) -> None:
    """Raise ``InvalidArgument`` for a dynamic terminus with an address, for node properties without
    a dynamic terminus, and for an unknown lifetime policy (3.5.3, 3.5.9)."""
    properties = _value(terminus.properties)
    if properties and not terminus.dynamic:
        raise InvalidArgument(
            f"dynamic-node-properties of a {which} that is not dynamic; they are allowed only with "
            f"dynamic set; leave them out"
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
            f"a dynamic {which} has the address {terminus.address[:40]!r}, but the realm chooses "
            f"the address of a dynamic {which}; leave out dynamic or the address"
        )


def set_node_properties(ours: Terminus) -> None:
    """State the actual lifetime policy of a dynamic node, whatever the peer asked for: the node is
    deleted with the link that created it (3.5.3, 3.5.10)."""
    policy = ProtonDescribed(ulong(_DELETE_ON_CLOSE), [])
    ours.properties.clear()
    ours.properties.put_object({_LIFETIME: policy})


def desired(link_or_connection: Any) -> frozenset[str]:
    """Return the peer's desired capabilities; empty if they cannot be decoded."""
    try:
        data = link_or_connection.remote_desired_capabilities
    except UNREADABLE:
        return frozenset()
    return frozenset(map(str, _as_list(_value(data) if isinstance(data, Data) else data)))


def receiver_terms_of(source: Terminus) -> ReceiverTerms:
    """Return the terms in a source. Raises ``InvalidArgument`` for invalid filters."""
    selector, no_local = "", False
    for key, filter_value in _filters(source).items():
        filter_type = _filter_type(key, filter_value)
        value = filter_value.value if isinstance(filter_value, ProtonDescribed) else filter_value
        if _is_one_of(filter_type, _SELECTOR):
            if not isinstance(value, str) or len(value) > _SELECTOR_MAX:
                raise InvalidArgument(
                    f"the selector of a link must be a string of at most {_SELECTOR_MAX} characters"
                )
            selector = str(value)
        elif _is_one_of(filter_type, _NO_LOCAL):
            no_local = True
    stated = capabilities(source)
    durable = (
        source.durability != Terminus.NONDURABLE or source.expiry_policy == Terminus.EXPIRE_NEVER
    )
    kind = next((kind for word, kind in _KINDS.items() if word in stated), "")
    return ReceiverTerms(
        selector.strip(),
        no_local,
        shared="shared" in stated,
        is_global="global" in stated,
        durable=durable,
        copies=source.distribution_mode == Terminus.DIST_MODE_COPY,
        kind=kind,
    )


def _filter_type(key: Any, filter_value: Any) -> Any:
    """Return the name or code that identifies the type of a filter."""
    return filter_value.descriptor if isinstance(filter_value, ProtonDescribed) else str(key)


def _is_one_of(name: Any, names: tuple[Any, ...]) -> bool:
    if isinstance(name, str):
        return str(name) in names
    return isinstance(name, int) and int(name) in names


def _filters(source: Terminus) -> dict[Any, Any]:
    filters = _value(source.filter)
    return filters if isinstance(filters, dict) else {}


def _value(data: Data | None) -> Any:
    """Decode AMQP data. Raises ``InvalidArgument`` for data that Proton accepts but cannot
    decode."""
    if data is None:
        return None
    # Proton's data has a read position, which earlier readers may have moved.
    data.rewind()
    try:
        value = data.get_object() if data.next() else None
    except UNREADABLE as error:
        raise InvalidArgument(f"a source or target cannot be read: {error}") from None
    data.rewind()
    return value


def echo_terms(theirs: Terminus, ours: Terminus) -> None:
    """Copy the terms of the peer's terminus to this side's, as far as the realm supports them.
    Raises ``InvalidArgument``.

    The values are rebuilt, not copied as data: Proton accepts values that it cannot encode, such as
    an array without a type, and encoding one of these crashes the process.
    """
    ours.type = theirs.type
    ours.address = theirs.address
    ours.durability = theirs.durability
    ours.expiry_policy = theirs.expiry_policy
    ours.timeout = theirs.timeout
    ours.dynamic = theirs.dynamic
    ours.distribution_mode = theirs.distribution_mode
    for stated, repeated in (
        (theirs.capabilities, ours.capabilities),
        (theirs.outcomes, ours.outcomes),
    ):
        names = [str(name) for name in _as_list(_value(stated))]
        if not all(map(str.isascii, names)):
            raise InvalidArgument(
                f"capabilities or outcomes {names} of a source or target must be ASCII symbols"
            )
        if names:
            repeated.put_object(Array(UNDESCRIBED, Data.SYMBOL, *map(symbol, names)))
    filters = {
        symbol(str(key)): _standard_filter(filter_value)
        for key, filter_value in _filters(theirs).items()
        if _is_one_of(_filter_type(key, filter_value), _SELECTOR + _NO_LOCAL)
    }
    if filters:
        ours.filter.put_object(filters)


def _standard_filter(filter_value: Any) -> Any:
    """Return a filter in its standard form: a descriptor with a string or an empty list."""
    if not isinstance(filter_value, ProtonDescribed):
        return str(filter_value)
    descriptor = filter_value.descriptor
    kind = symbol(str(descriptor)) if isinstance(descriptor, str) else ulong(int(descriptor))
    return ProtonDescribed(
        kind, str(filter_value.value) if isinstance(filter_value.value, str) else []
    )


def _as_list(value: Any) -> list[Any]:
    """Return a single value, an array or a list as a list; empty for None."""
    if value is None:
        return []
    if isinstance(value, Array):
        return list(value.elements)
    return list(value) if isinstance(value, list | tuple) else [value]


def is_lookup(link: Link) -> bool:
    """Return True if a receiver names an existing subscription only by the link's name."""
    source = link.remote_source
    return source.type == Terminus.UNSPECIFIED or (source.address is None and not source.dynamic)
