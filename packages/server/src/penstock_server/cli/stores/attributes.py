"""The attributes of channels, queues and durables, as command options and as facts to print.

``ATTRIBUTES`` has the options of ``create`` and ``edit`` for channels and queues, ``OF_DURABLES``
those of ``create`` for durables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import typer
from msgspec.structs import asdict

from penstock_core.vocabulary.deprecation import DEPRECATED_CHANNELS, DEPRECATED_DURABLES
from penstock_core.vocabulary.durable_attributes import DURABLE_DEFAULTS
from penstock_server.cli.shared import completing, messages, parsers
from penstock_server.cli.shared.options import Command, option, with_options
from penstock_server.cli.shared.output import backoff_shown, count, duration

if TYPE_CHECKING:
    from penstock_core.api.durables import DurableInfo
    from penstock_core.api.patterns import PatternDurableInfo
    from penstock_core.api.requests import Kind
    from penstock_core.vocabulary.definitions import Definition


class Attribute(NamedTuple):
    """An attribute and its command option. It is a field of ``Definition`` (of ``Storage`` if
    ``in_storage``), of ``DurableAttributes`` or of an event."""

    name: str
    option: Any
    """Annotation of the option for Typer: its type and flags."""
    parse: Callable[[Any], Any] | None = None
    """Converts the option's text to the value; None if Typer's value is used unchanged."""
    in_storage: bool = False
    is_fixed: bool = False
    """Whether the attribute cannot be edited later (SEM C3)."""
    only: Kind | None = None
    """The kind of store that has the attribute; None if both kinds have it."""


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
    """Parse the publish keys, and return their depths by name. Raises ``BadParameter``."""
    keys: dict[str, int] = {}
    for name, depth in map(parsers.key, texts):
        if name in keys:
            raise typer.BadParameter(f"publish key {name!r} is given twice")
        keys[name] = depth
    return keys


def _topics(texts: list[str]) -> list[str]:
    # The text '' stands for no topics.
    return [text for text in texts if text]


def _duration(text: str) -> timedelta:
    return timedelta(milliseconds=parsers.milliseconds(text))


_CLUSTER_WIDE: Final = "Make it available on every cluster node; refused without a cluster."

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
        _text(
            "Engine, which decides how long events stay and for whom. [default: default]",
            offered=completing.engines,
        ),
        is_fixed=True,
        only="channel",
    ),
    Attribute(
        "ttl",
        _text(
            "Time after which events expire: 500ms, 10s, 5m, 2h, 1d; 0 is no limit.",
            "TIME",
        ),
        parsers.milliseconds,
    ),
    Attribute(
        "event_ttl",
        _switch("event-ttl", "Honour the TTL that an event carries, whatever the type."),
    ),
    Attribute("capacity", _number("Maximum number of stored events; 0 is no limit.")),
    Attribute(
        "honour_capacity",
        _switch("honour-capacity", "When full, refuse new events instead of dropping the oldest."),
        in_storage=True,
    ),
    Attribute(
        "dead_event_store",
        _text(
            "Channel or queue that receives events which leave unconsumed; '' for none.",
            "NAME",
            completing.stores,
        ),
    ),
    Attribute(
        "keys",
        Annotated[
            list[str] | None,
            typer.Option(
                "--key",
                help="Publish key: keep only this many of the newest events for each value of a "
                "property, as in sku=1. May be repeated.",
                metavar="NAME=DEPTH",
            ),
        ],
        _keys,
        is_fixed=True,
    ),
    Attribute(
        "max_deliveries",
        _number("Deliveries after which a rolled-back event becomes a dead event; 0 is no limit."),
        only="queue",
    ),
    Attribute(
        "backoff",
        _text(
            "Growing wait before a rolled-back event is redelivered: 1s, or "
            "first=1s,factor=2,most=5m,jitter=0.2; '' for no wait.",
            "TIMES",
        ),
        parsers.backoff,
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
            "Path or URI of the table that an archive pipeline writes, in which clients read "
            "events that have left the channel; '' for none.",
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
                help="MQTT topics whose messages the channel stores; {} names a level, as in "
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
                help="Content of messages on the channel's topics; fields of JSON become "
                "properties."
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
            typer.Option(help="Compression of event files written from now on."),
        ],
        in_storage=True,
    ),
    Attribute(
        "sync",
        Annotated[
            Literal["group", "none"] | None,
            typer.Option(
                help="group syncs events to disk before they are acknowledged; none leaves "
                "syncing to the operating system."
            ),
        ],
        in_storage=True,
    ),
    Attribute(
        "sync_each_write",
        _switch("sync-each-write", "Sync each publish separately instead of in groups."),
        in_storage=True,
    ),
    Attribute(
        "sync_max_batch_size",
        _number("Size at which a group is synced.", "BYTES"),
        in_storage=True,
    ),
    Attribute(
        "sync_batch_time",
        _text("Time after which a group is synced: 2ms.", "TIME"),
        parsers.milliseconds,
        in_storage=True,
    ),
    Attribute(
        "events_per_spindle",
        _number("Events per file; 0 keeps all events in a single file."),
        in_storage=True,
    ),
    Attribute(
        "auto_maintenance",
        _switch("auto-maintenance", "Rewrite a single file when much of it is unused."),
        in_storage=True,
    ),
    Attribute(
        "enable_caching",
        _switch("enable-caching", "Cache events in memory after they are read."),
        in_storage=True,
    ),
    Attribute(
        "cache_on_reload",
        _switch("cache-on-reload", "Read all events into the cache at start-up."),
        in_storage=True,
    ),
    Attribute(
        "read_buffer_size",
        _number("Maximum number of bytes read for one delivery.", "BYTES"),
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
                help="Serial durables only: redeliver a rolled-back event before any later event.",
            ),
        ],
    ),
    Attribute(
        "order_by",
        Annotated[
            str,
            typer.Option(
                help="Serial durables only: keep order within each value of this property; "
                "different values may go to different clients at the same time.",
                metavar="PROPERTY",
            ),
        ],
    ),
    Attribute(
        "backoff",
        _text(
            "Growing wait before a rolled-back event is redelivered: 1s, or "
            "first=1s,factor=2,most=5m,jitter=0.2.",
            "TIMES",
        ),
        parsers.backoff,
    ),
    Attribute(
        "ack_timeout",
        _text("Time after which an unacknowledged event goes back to the durable: 30s.", "TIME"),
        _duration,
    ),
)
"""The attributes of a new durable."""


def attributes_of(kind: Kind, *, new: bool) -> Iterator[Attribute]:
    """Yield the attributes that ``create`` (``new``) or ``edit`` accepts for a kind of store."""
    for attribute in ATTRIBUTES:
        if attribute.only in (None, kind) and (new or not attribute.is_fixed):
            yield attribute


def options(kind: Kind, *, new: bool) -> Callable[[Command], Command]:
    """Return a decorator that adds an option for each attribute to a command; the command receives
    the values in ``**written``."""
    added = [option(attribute.name, attribute.option) for attribute in attributes_of(kind, new=new)]
    return lambda command: with_options(command, added)


def durable_options(command: Command) -> Command:
    """Add an option for each attribute of a durable, with its default, to a command."""
    defaults = asdict(DURABLE_DEFAULTS)
    return with_options(
        command,
        [
            option(
                attribute.name,
                attribute.option,
                # A parsed option takes text, so its default cannot be a value. None leaves the
                # default to the client.
                None if attribute.parse else defaults[attribute.name],
            )
            for attribute in OF_DURABLES
        ],
    )


def parsed(attributes: Iterable[Attribute], written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the attributes that are set on the command line.

    Raises ``typer.BadParameter`` if a value is invalid.
    """
    values: dict[str, Any] = {}
    for attribute in attributes:
        value = written.get(attribute.name)
        # Typer passes an empty list for a repeatable option that is not set.
        if value is not None and value != []:
            values[attribute.name] = value if attribute.parse is None else attribute.parse(value)
    return values


def chosen(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes on the command line as arguments of the client's ``create`` and
    ``edit``.

    Raises ``typer.BadParameter`` if a value is invalid.
    """
    values = parsed(ATTRIBUTES, written)
    storage_names = [
        attribute.name
        for attribute in ATTRIBUTES
        if attribute.in_storage and attribute.name in values
    ]
    storage = {name: values.pop(name) for name in storage_names}
    return {**values, "storage": storage} if storage else values


def type_shown(name: str) -> str:
    """Return the name of a channel type for lists, marked if deprecated."""
    return f"{name} (deprecated)" if name in DEPRECATED_CHANNELS else name


def durable_type_shown(name: str) -> str:
    """Return the name of a durable type for lists, marked if deprecated."""
    return f"{name} (deprecated)" if name in DEPRECATED_DURABLES else name


# --- as facts -----------------------------------------------------------------------------


def cluster_wide_fact(described: Definition | DurableInfo | PatternDurableInfo) -> tuple[str, str]:
    """Return the fact whether a store or durable is available on every node."""
    return ("cluster-wide", "yes" if described.cluster_wide else "no")


def after_deliveries(definition: Definition) -> str:
    """Return the text about a queue's delivery limit; it follows the name of the dead event
    store."""
    limit = definition.max_deliveries
    return f"; also events that were delivered {count(limit, 'time')}" if limit else ""


def of_durable(info: DurableInfo | PatternDurableInfo) -> list[tuple[str, str]]:
    """Return the facts about the attributes of a durable."""
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
        return "strict; a rolled-back event is redelivered before any later event"
    if info.order_by:
        return f"by {info.order_by}; in order within each value, different values in parallel"
    return "not strict"
