"""The attributes of channels, queues and durables as options and as facts: a table for ``create``
and ``edit`` of channels and queues, and one for ``create`` of durables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import typer
from msgspec.structs import asdict

from penstock_core.vocabulary.deprecation import DEPRECATED_CHANNELS, DEPRECATED_DURABLES
from penstock_core.vocabulary.durable_attributes import DURABLE_DEFAULTS
from penstock_server.cli.shared import completing, given, messages
from penstock_server.cli.shared.options import Command, option, with_options
from penstock_server.cli.shared.output import backoff_shown, count, duration

if TYPE_CHECKING:
    from penstock_core.api.durables import DurableInfo
    from penstock_core.api.patterns import PatternDurableInfo
    from penstock_core.api.requests import Kind
    from penstock_core.vocabulary.definitions import Definition


class Attribute(NamedTuple):
    """A field of ``Definition`` or, ``in_storage``, of ``Storage``, of ``DurableAttributes``, or of
    an event."""

    name: str
    option: Any
    """The option's type and flags, as typer takes them."""
    parse: Callable[[Any], Any] | None = None
    """Converts the option's text to the value; None: it is the value already."""
    in_storage: bool = False
    is_fixed: bool = False
    """Whether it cannot be edited later (SEM C3)."""
    only: Kind | None = None
    """The kind of store that has it; None: both have."""


def _number(help: str, metavar: str = "N", option: str | None = None) -> Any:
    names = () if option is None else (option,)
    return Annotated[int | None, typer.Option(*names, help=help, metavar=metavar)]


def _text(
    help: str, metavar: str | None = None, offered: Callable[..., list[str]] | None = None
) -> Any:
    return Annotated[str | None, typer.Option(help=help, metavar=metavar, autocompletion=offered)]


def _switch(name: str, help: str) -> Any:
    return Annotated[bool | None, typer.Option(f"--{name}/--no-{name}", help=help)]


def _keys(texts: list[str]) -> dict[str, int]:
    keys: dict[str, int] = {}
    for name, depth in map(given.key, texts):
        if name in keys:
            raise typer.BadParameter(f"publish key {name!r} is given twice")
        keys[name] = depth
    return keys


def _topics(texts: list[str]) -> list[str]:
    return [each for each in texts if each]


def _duration(text: str) -> timedelta:
    return timedelta(milliseconds=given.milliseconds(text))


_CLUSTER_WIDE: Final = "Exists on every node of a cluster; refused where there is none."

ATTRIBUTES: Final = (
    Attribute(
        "type",
        _text(
            "mixed (default), persistent, reliable or transient; deprecated: simple, paged, "
            "off_heap.",
            "TYPE",
            completing.channel_types,
        ),
        is_fixed=True,
    ),
    Attribute(
        "engine",
        _text("How events are kept. [default: default]", offered=completing.engines),
        is_fixed=True,
        only="channel",
    ),
    Attribute(
        "ttl",
        _text(
            "How long events stay at most: 500ms, 10s, 5m, 2h, 1d; 0 is without such a limit.",
            "TIME",
        ),
        given.milliseconds,
    ),
    Attribute("event_ttl", _switch("event-ttl", "Honour an event's own TTL on any type.")),
    Attribute("capacity", _number("Most events that are stored; 0 is no limit.")),
    Attribute(
        "honour_capacity",
        _switch("honour-capacity", "When full, refuse new events instead of dropping the oldest."),
        in_storage=True,
    ),
    Attribute(
        "dead_event_store",
        _text("Where events go that leave unconsumed; '' for none.", "NAME", completing.stores),
    ),
    Attribute(
        "keys",
        Annotated[
            list[str] | None,
            typer.Option(
                "--key",
                help="Publish key: of each value of a property only so many of the newest stay, "
                "sku=1. May be repeated.",
                metavar="NAME=DEPTH",
            ),
        ],
        _keys,
        is_fixed=True,
    ),
    Attribute(
        "max_deliveries",
        _number("Deliveries after which a rolled-back event is dead; 0 is no limit."),
        only="queue",
    ),
    Attribute(
        "backoff",
        _text(
            "How long a rolled-back event waits, each time longer: 1s, or "
            "first=1s,factor=2,most=5m,jitter=0.2; '' for not at all.",
            "TIMES",
        ),
        given.backoff,
        only="queue",
    ),
    Attribute(
        "retain_consumed",
        _switch("retain-consumed", "Keep events that every durable has acknowledged."),
        only="channel",
    ),
    Attribute(
        "descriptors",
        _text(
            "Protocol Buffers message types: a file made by protoc --include_imports "
            "--descriptor_set_out; '' for none.",
            "FILE",
        ),
        messages.descriptors,
    ),
    Attribute(
        "archive",
        _text(
            "Where clients find events that have left: the path or URI of a table an archive "
            "pipeline writes; '' for none.",
            "URI",
        ),
        only="channel",
    ),
    Attribute(
        "topics",
        Annotated[
            list[str] | None,
            typer.Option(
                "--topic",
                "--topics",
                help="Topics of MQTT whose messages it takes, with names for levels: "
                "plant/{line}/temp; '' for none. May be repeated.",
                metavar="TEMPLATE",
            ),
        ],
        _topics,
        only="channel",
    ),
    Attribute(
        "payload",
        Annotated[
            Literal["bytes", "json"] | None,
            typer.Option(
                help="What messages of its topics carry; the fields of JSON are properties."
            ),
        ],
        only="channel",
    ),
    Attribute(
        "cluster_wide",
        _switch("cluster-wide", _CLUSTER_WIDE),
    ),
    Attribute("start_event_id", _number("Id of the first event.", "ID"), is_fixed=True),
    Attribute(
        "priority", _number("Priority of events published without one, 0 to 9."), in_storage=True
    ),
    Attribute(
        "stamp_dictionary",
        _switch("stamp-dictionary", "Add publisher, host, time and id to events, as $penstock."),
        in_storage=True,
    ),
    Attribute(
        "compression",
        Annotated[
            Literal["none", "zstd", "lz4"] | None,
            typer.Option(help="How files of events are compressed that are written from now on."),
        ],
        in_storage=True,
    ),
    Attribute(
        "sync",
        Annotated[
            Literal["group", "none"] | None,
            typer.Option(
                help="When an acknowledged event is on disk: with its group, or whenever."
            ),
        ],
        in_storage=True,
    ),
    Attribute(
        "sync_each_write",
        _switch("sync-each-write", "Sync each publish by itself instead of a group."),
        in_storage=True,
    ),
    Attribute(
        "sync_max_batch_size",
        _number("A group is synced at so many bytes.", "BYTES"),
        in_storage=True,
    ),
    Attribute(
        "sync_batch_time",
        _text("A group is synced after so long: 2ms.", "TIME"),
        given.milliseconds,
        in_storage=True,
    ),
    Attribute(
        "events_per_spindle",
        _number("Events in a file; 0 is a single file."),
        in_storage=True,
    ),
    Attribute(
        "auto_maintenance",
        _switch("auto-maintenance", "Rewrite a single file once much of it is dead."),
        in_storage=True,
    ),
    Attribute(
        "enable_caching",
        _switch("enable-caching", "Keep what was read in memory."),
        in_storage=True,
    ),
    Attribute(
        "cache_on_reload",
        _switch("cache-on-reload", "Read everything once at start-up."),
        in_storage=True,
    ),
    Attribute(
        "read_buffer_size",
        _number("Most bytes read for one delivery.", "BYTES"),
        in_storage=True,
    ),
)


OF_DURABLES: Final = (
    Attribute(
        "max_deliveries",
        Annotated[
            int,
            typer.Option(
                min=0,
                help="Deliveries after which a rolled-back event goes to the channel's dead event "
                "store; 0 is no limit.",
                metavar="N",
            ),
        ],
    ),
    Attribute(
        "cluster_wide",
        Annotated[bool, typer.Option("--cluster-wide", help=_CLUSTER_WIDE)],
    ),
    Attribute(
        "strict_order",
        Annotated[
            bool,
            typer.Option(
                "--strict-order",
                help="Of a serial durable: a rolled-back event comes before every later one.",
            ),
        ],
    ),
    Attribute(
        "order_by",
        Annotated[
            str,
            typer.Option(
                help="Of a serial durable: keep order within each value of this property, and "
                "serve different values to different clients.",
                metavar="PROPERTY",
            ),
        ],
    ),
    Attribute(
        "backoff",
        _text(
            "How long a rolled-back event waits, each time longer: 1s, or "
            "first=1s,factor=2,most=5m,jitter=0.2.",
            "TIMES",
        ),
        given.backoff,
    ),
    Attribute(
        "ack_timeout",
        _text("How long a client may have an event in hand before it goes back: 30s.", "TIME"),
        _duration,
    ),
)
"""The attributes of a new durable."""


def attributes_of(kind: Kind, *, new: bool) -> Iterator[Attribute]:
    """The attributes that ``create`` (``new``) or ``edit`` takes for a store of this kind."""
    for attribute in ATTRIBUTES:
        if attribute.only in (None, kind) and (new or not attribute.is_fixed):
            yield attribute


def options(kind: Kind, *, new: bool) -> Callable[[Command], Command]:
    """Add an option for each attribute to a command; those that were set are in ``**given``."""
    added = [option(each.name, each.option) for each in attributes_of(kind, new=new)]
    return lambda command: with_options(command, added)


def durable_options(command: Command) -> Command:
    """Add an option for each attribute of a durable, with its default, to a command."""
    default = asdict(DURABLE_DEFAULTS)
    return with_options(
        command,
        [
            option(each.name, each.option, None if each.parse else default[each.name])
            for each in OF_DURABLES
        ],
    )


def parsed(attributes: Iterable[Attribute], written: Mapping[str, Any]) -> dict[str, Any]:
    """The values of those attributes that the command line has. Raises ``typer.BadParameter``."""
    values: dict[str, Any] = {}
    for attribute in attributes:
        value = written.get(attribute.name)
        if value is not None and value != []:
            values[attribute.name] = value if attribute.parse is None else attribute.parse(value)
    return values


def chosen(written: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes on the command line as ``create`` and ``edit`` of the client take them.

    Raises ``typer.BadParameter``.
    """
    values = parsed(ATTRIBUTES, written)
    in_storage = [each.name for each in ATTRIBUTES if each.in_storage and each.name in values]
    storage = {name: values.pop(name) for name in in_storage}
    return {**values, "storage": storage} if storage else values


def type_shown(name: str) -> str:
    """A channel type as lists show it."""
    return f"{name} (deprecated)" if name in DEPRECATED_CHANNELS else name


def durable_type_shown(name: str) -> str:
    """The type of a durable as lists show it."""
    return f"{name} (deprecated)" if name in DEPRECATED_DURABLES else name


# --- as facts -----------------------------------------------------------------------------


def cluster_wide_fact(described: Definition | DurableInfo | PatternDurableInfo) -> tuple[str, str]:
    """Whether a store or a durable is on every node."""
    return ("cluster-wide", "yes" if described.cluster_wide else "no")


def after_deliveries(definition: Definition) -> str:
    """What is said of a queue's limit of deliveries behind the name of its dead event store."""
    limit = definition.max_deliveries
    return f"; also what was delivered {count(limit, 'time')}" if limit else ""


def of_durable(info: DurableInfo | PatternDurableInfo) -> list[tuple[str, str]]:
    """The facts about the attributes of a durable."""
    limit = f"{info.max_deliveries:,} at most, then an event is dead"
    return [
        ("order", _order(info)),
        ("deliveries", limit if info.max_deliveries else "no limit"),
        ("backoff", backoff_shown(info.backoff)),
        ("ack timeout", duration(info.ack_timeout) if info.ack_timeout else "none"),
        cluster_wide_fact(info),
    ]


def _order(info: DurableInfo | PatternDurableInfo) -> str:
    if info.strict_order:
        return "strict; a rolled-back event comes before every later one"
    if info.order_by:
        return f"by {info.order_by}; each value in order, different ones at the same time"
    return "not strict"
