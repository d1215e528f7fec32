"""Where every published event is or went: the sum that always holds (SEM T8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.cli.output import write
from penstock.core.channel import conservation
from penstock.core.channel.conservation import MEANINGS, Term

if TYPE_CHECKING:
    from penstock.api.channels import ChannelInfo

_ONLY_IF_ANY: Final = frozenset(("overdue",))


def terms(info: ChannelInfo) -> list[Term]:
    """Every term of the sum, those that are 0 among them."""
    return conservation.terms(info.counters, live=info.events, overdue=info.overdue)


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
    return f"{published:,} published != {found:,} = {right}; this must not happen: please report it"


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
