"""What the ends of a link say about themselves: capabilities, filters, durability."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct
from proton import Array, Data, Link, Terminus
from proton import Described as ProtonDescribed

from penstock.core.errors import InvalidArgument

_SELECTOR: Final = (0x0000468C00000004, "apache.org:selector-filter:string", "jms-selector")
_NO_LOCAL: Final = (0x0000468C00000003, "apache.org:no-local-filter:list", "no-local")
_GENERAL_MAX: Final = 64 << 10
"""Characters of a selector."""


class Wish(Struct, frozen=True):
    """What a receiver asks for."""

    selector: str = ""
    no_local: bool = False
    shared: bool = False
    is_global: bool = False
    durable: bool = False
    copies: bool = False
    kind: str = ""
    """Of durable, where it names one."""


_KINDS: Final = {"serial": "serial", "priority": "priority", "shared-queued": "shared_queued"}


def capabilities(terminus: Terminus) -> frozenset[str]:
    """As plain strings."""
    return frozenset(map(str, _listed(_value(terminus.capabilities))))


def desired(link_or_connection: Any) -> frozenset[str]:
    """What the other side of a connection hopes for."""
    data = link_or_connection.remote_desired_capabilities
    return frozenset(map(str, _listed(_value(data) if isinstance(data, Data) else data)))


def wish_of(source: Terminus) -> Wish:
    """Raises ``InvalidArgument`` for filters that make no sense."""
    selector, no_local = "", False
    for key, given in _filters(source).items():
        described = isinstance(given, ProtonDescribed)
        named = given.descriptor if described else str(key)
        value = given.value if described else given
        if _is_one_of(named, _SELECTOR):
            if not isinstance(value, str) or len(value) > _GENERAL_MAX:
                raise InvalidArgument("the selector of a link is no text, or longer than 64 KiB")
            selector = str(value)
        elif _is_one_of(named, _NO_LOCAL):
            no_local = True
    said = capabilities(source)
    durable = (
        source.durability != Terminus.NONDURABLE or source.expiry_policy == Terminus.EXPIRE_NEVER
    )
    kind = next((kind for word, kind in _KINDS.items() if word in said), "")
    return Wish(
        selector.strip(),
        no_local,
        shared="shared" in said,
        is_global="global" in said,
        durable=durable,
        copies=source.distribution_mode == Terminus.DIST_MODE_COPY,
        kind=kind,
    )


def _is_one_of(named: Any, known: tuple[Any, ...]) -> bool:
    return (str(named) if isinstance(named, str) else int(named)) in known


def _filters(source: Terminus) -> dict[Any, Any]:
    found = _value(source.filter)
    return found if isinstance(found, dict) else {}


def _value(data: Data | None) -> Any:
    if data is None:
        return None
    data.rewind()
    found = data.get_object() if data.next() else None
    data.rewind()
    return found


def _listed(found: Any) -> list[Any]:
    if found is None:
        return []
    if isinstance(found, Array):
        return list(found.elements)
    return list(found) if isinstance(found, list | tuple) else [found]


def is_lookup(link: Link) -> bool:
    """Whether a receiver asks for a subscription there is, by the link's name alone."""
    source = link.remote_source
    return source.type == Terminus.UNSPECIFIED or (source.address is None and not source.dynamic)
