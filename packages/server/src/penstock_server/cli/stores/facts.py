"""Prints the descriptions of channels and queues as facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock_core.channel import conservation
from penstock_core.channel.conservation import MEANINGS, Term
from penstock_server.cli.shared.output import (
    backoff_shown,
    count,
    duration,
    size,
    waits,
    write,
    write_facts,
)
from penstock_server.cli.stores.attributes import after_deliveries, cluster_wide_fact, type_shown
from penstock_server.runtime.subscriptions.documents import types_of

if TYPE_CHECKING:
    from penstock_core.api.channels import ChannelInfo, StorageInfo
    from penstock_core.api.durables import DurableInfo
    from penstock_core.vocabulary.definitions import Definition, Storage

Fact = tuple[str, str]

_ONLY_IF_ANY: Final = frozenset(("overdue",))
"""Terms of the sum that are omitted if they are 0."""

_IN_MEMORY: Final = {
    "heap": "memory",
    "off_heap": "memory outside the Python heap",
    "pages": "memory-mapped pages of its own",
}


def show(info: ChannelInfo, durables: list[DurableInfo]) -> None:
    """Print attributes, content, and where all published events are or went (SEM T8)."""
    content = [*_content_facts(info), *_consumer_facts(info, durables)]
    write_facts([*_attribute_facts(info), *_storage_facts(info), *content])
    write_sum(info)


# --- attributes ---------------------------------------------------------------------------


def _attribute_facts(info: ChannelInfo) -> list[Fact]:
    """Return the labels and texts that describe the attributes of a channel or queue."""
    definition = info.definition
    full = "refuses new events" if definition.storage.honour_capacity else "drops the oldest"
    capacity = f"{count(definition.capacity, 'event')}; when full it {full}"
    keys = ", ".join(f"{name} (newest {depth:,})" for name, depth in definition.keys.items())
    facts = [
        (definition.kind, info.name),
        ("type", f"{type_shown(definition.type)}, engine {definition.engine}"),
        ("lifetime", lifetime(definition)),
        ("capacity", capacity if definition.capacity else "no limit"),
        ("dead events", _dead_events(definition)),
        ("keys", keys or "none"),
        ("messages", _message_types(definition)),
        cluster_wide_fact(definition),
    ]
    if definition.kind == "queue":
        facts.append(("backoff", backoff_shown(definition.backoff)))
    if definition.kind == "channel":
        keeps = definition.retain_consumed or definition.engine == "merge"
        kept = "kept" if keeps else "removed when all durables have acknowledged it"
        facts.append(("consumed", kept))
        facts.append(("archive", definition.archive or "none"))
        if definition.topics:
            carried = ", whose fields are properties" if definition.payload == "json" else ""
            facts.append(("topics", ", ".join(definition.topics)))
            facts.append(("payload", f"{definition.payload}{carried}"))
    return facts


def _message_types(definition: Definition) -> str:
    types = types_of(definition.descriptors)
    if types is None:
        size_text = f"{len(definition.descriptors):,} bytes of descriptors"
        return f"{size_text}; install the extra protobuf to read them"
    return ", ".join(types) or "none"


def lifetime(definition: Definition) -> str:
    """Return how long events stay, as text."""
    honours_event_ttl = definition.event_ttl or definition.type == "mixed"  # SEM T2
    override = "; an event's own TTL takes precedence" if honours_event_ttl else ""
    if definition.type == "transient":
        return "events go to the current subscribers and are not stored"
    condition = ""
    if definition.engine == "jms":
        condition = "while a durable or reader waits for them"
    elif definition.kind == "queue":
        condition = "until a reader takes them"
    if definition.ttl:
        most = f"{condition}, at most " if condition else ""
        return f"events stay {most}{duration(definition.ttl)}{override}"
    return f"events stay {condition or 'for ever'}{override}"


def _dead_events(definition: Definition) -> str:
    if not definition.dead_event_store:
        return "are counted, not kept"
    return f"go to {definition.dead_event_store}{after_deliveries(definition)}"


def _storage_facts(info: ChannelInfo) -> list[Fact]:
    """Return the facts about storage that apply to the place where the events are."""
    storage, home = info.definition.storage, info.storage.home
    stamped = ", publisher, host, time and id" if storage.stamp_dictionary else ""
    facts = [("stamped", f"priority {storage.priority} by default{stamped}")]
    if home in ("journal", "pages"):
        facts.append(("sync", _sync(storage)))
    if home == "journal":
        cached = "cached" if storage.enable_caching else "not cached"
        loaded = ", loaded at start-up" if storage.cache_on_reload else ""
        packed = "" if storage.compression == "none" else f", compressed ({storage.compression})"
        facts.append(("files", f"{_files(storage)}{packed}"))
        facts.append(("reading", f"{size(storage.read_buffer_size)} at a time, {cached}{loaded}"))
    return facts


def _sync(storage: Storage) -> str:
    """Return, as text, when new events are synced to disk."""
    if storage.sync == "none":
        return "left to the operating system"
    if storage.sync_each_write:
        return "each publish separately"
    return (
        f"in groups, at {size(storage.sync_max_batch_size)} or after "
        f"{duration(storage.sync_batch_time)}"
    )


def _files(storage: Storage) -> str:
    if storage.events_per_spindle:
        return f"{count(storage.events_per_spindle, 'event')} each"
    when = "when much of it is unused" if storage.auto_maintenance else "on demand only"
    return f"a single one, rewritten {when}"


# --- content ------------------------------------------------------------------------------


def _content_facts(info: ChannelInfo) -> list[Fact]:
    """Return the labels and texts that describe the stored events."""
    first, last = info.first_event_id, info.last_event_id
    ids = f"{first} .. {last}" if first is not None else f"none stored, the last was {last}"
    scheduled = f"{count(info.scheduled, 'event')} for later"
    facts = [
        ("events", f"{info.events:,}"),
        ("ids", ids if last >= 0 else "none yet"),
        ("scheduled", scheduled if info.scheduled else "none"),
        ("storage", _home(info.storage)),
    ]
    return facts + [("quarantined", item) for item in info.storage.quarantined]


def _home(storage: StorageInfo) -> str:
    """Return, as text, where the events are stored and how many bytes they take there."""
    if storage.home == "nowhere":
        return "none: events are relayed"
    if storage.home == "pages":
        return f"{size(storage.paged_bytes)} in {_IN_MEMORY['pages']}"
    if storage.home in _IN_MEMORY:
        return f"{size(storage.memory_bytes)} in {_IN_MEMORY[storage.home]}"
    in_memory = f", {size(storage.memory_bytes)} of it in memory" if storage.memory_bytes else ""
    return (
        f"{size(storage.sealed_bytes)} in {count(storage.sealed_files, 'segment file')}, "
        f"{size(storage.tail_bytes)} not sealed yet{in_memory}"
    )


def bytes_of(info: ChannelInfo) -> int:
    """Return the size of the stored events in bytes."""
    storage = info.storage
    if storage.home == "pages":
        return storage.paged_bytes
    return storage.tail_bytes + storage.sealed_bytes


def _consumer_facts(info: ChannelInfo, durables: list[DurableInfo]) -> list[Fact]:
    """Return the labels and texts that describe the readers of a queue, or the subscribers and
    durables of a channel."""
    if info.definition.kind == "queue":
        in_flight = f"{count(info.in_flight, 'event')} in flight"
        return [
            ("readers", f"{len(info.readers):,}; {in_flight}" if info.readers else "none"),
            ("redelivered", f"{info.redelivered:,} of the stored events"),
            ("waiting", waits(info.waiting, info.waiting_until_us)),
        ]
    return [
        ("subscribers", f"{info.subscribers:,}"),
        ("durables", "; ".join(_durable(durable) for durable in durables) or "none"),
    ]


def _durable(durable: DurableInfo) -> str:
    return f"{durable.name} ({durable.type}, {durable.outstanding:,} outstanding)"


# --- conservation: counts of all published events by outcome (SEM T8) -----------------------


def conservation_terms(info: ChannelInfo) -> list[Term]:
    """Return all terms of the conservation sum (live, overdue, consumed, dead, ...), including
    those that are 0."""
    return conservation.terms(info.counters, live=info.events, overdue=info.overdue)


def accounted_for(info: ChannelInfo) -> int:
    """Return the number of published events that the terms of the conservation sum account for."""
    return sum(term.events for term in conservation_terms(info))


def equation(info: ChannelInfo) -> str:
    """Return the sum of all terms above 0 as text, as in ``5 published = 2 live + 3 purged``.

    If the terms do not add up, the text states this as an error to report.
    """
    published, total = info.counters.published, accounted_for(info)
    shown = [f"{term.events:,} {term.name}" for term in conservation_terms(info) if term.events]
    right = " + ".join(shown) or "0 live"
    if total == published:
        return f"{published:,} published = {right}"
    return f"{published:,} published != {total:,} = {right}; this must not happen: please report it"


def write_sum(info: ChannelInfo) -> None:
    """Print a line for each term, and the sum."""
    shown = [
        term for term in conservation_terms(info) if term.events or term.name not in _ONLY_IF_ANY
    ]
    names = max(len(term.name) for term in shown)
    numbers = max(len(f"{term.events:,}") for term in shown)
    write("conservation")
    for term in shown:
        number = f"{term.events:,}".rjust(numbers)
        write(f"  {term.name.ljust(names)}  {number}  {MEANINGS[term.name]}")
    write(f"  {equation(info)}")
