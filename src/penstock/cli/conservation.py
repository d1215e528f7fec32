"""Where every published event is or went: the sum that always holds (SEM T8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.cli.output import write

if TYPE_CHECKING:
    from penstock.wire.native.answers import ChannelInfo

MEANINGS: Final = {
    "live": "stored, and there to be read",
    "overdue": "past their TTL, on their way to the dead event store",
    "consumed": "acknowledged by all who wanted them",
    "dead": "moved to the dead event store",
    "expired": "past their TTL",
    "evicted": "pushed out by newer ones when it was full",
    "purged": "removed by somebody",
    "replaced": "replaced by a newer event of the same key",
    "relayed": "transient: given to those who were there, never stored",
    "redriven": "published again, where they came from or elsewhere",
    "dropped": "of interest to nobody",
    "quarantined": "unreadable, set aside",
}
"""What each term of the sum counts, in the order it is printed."""

_ONLY_IF_ANY: Final = frozenset(("overdue",))


class Term(NamedTuple):
    name: str
    events: int


def terms(info: ChannelInfo) -> list[Term]:
    """Every term of the sum, those that are 0 among them."""
    here = {"live": info.events, "overdue": info.overdue}
    return [
        Term(name, here[name] if name in here else getattr(info.counters, name))
        for name in MEANINGS
    ]


def accounted_for(info: ChannelInfo) -> int:
    """The sum."""
    return sum(term.events for term in terms(info))


def equation(info: ChannelInfo) -> str:
    """``5 published = 2 live + 3 purged``: the terms that are not 0, and whether they add up."""
    published, found = info.counters.published, accounted_for(info)
    shown = [f"{each.events:,} {each.name}" for each in terms(info) if each.events]
    right = " + ".join(shown) or "0 live"
    if found == published:
        return f"{published:,} published = {right}"
    return f"{published:,} published != {found:,} = {right}; this should never be: please report it"


def document_of(info: ChannelInfo) -> dict[str, Any]:
    """The sum for programs."""
    published, found = info.counters.published, accounted_for(info)
    return {
        "published": published,
        **{term.name: term.events for term in terms(info)},
        "sum": found,
        "holds": found == published,
    }


def write_sum(info: ChannelInfo) -> None:
    """A line for each term, and the sum."""
    shown = [each for each in terms(info) if each.events or each.name not in _ONLY_IF_ANY]
    names = max(len(term.name) for term in shown)
    numbers = max(len(f"{term.events:,}") for term in shown)
    write("conservation")
    for term in shown:
        number = f"{term.events:,}".rjust(numbers)
        write(f"  {term.name.ljust(names)}  {number}  {MEANINGS[term.name]}")
    write(f"  {equation(info)}")
