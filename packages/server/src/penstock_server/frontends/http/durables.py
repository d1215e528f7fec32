"""Routes for durables, of one channel or over a pattern: list, create, show, delete; those of one
channel are also browsed, purged, moved and unbound."""

from __future__ import annotations

from penstock_core.api.durables import (
    CountDurablePurge,
    CreateDurable,
    DeleteDurable,
    DescribeDurable,
    ListDurables,
    PreviewSeek,
    PurgeDurable,
    SeekDurable,
    UnbindDurable,
)
from penstock_core.api.patterns import (
    CreatePatternDurable,
    DeletePatternDurable,
    ListPatternDurables,
)
from penstock_core.api.reading import BrowseOutstanding
from penstock_core.vocabulary.choice import choice_of
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_core.vocabulary.names import durable_name
from penstock_server.frontends.http import events
from penstock_server.frontends.http.binding import bound
from penstock_server.frontends.http.realm_shapes import NewPatternDurable, PatternDurableAnswer
from penstock_server.frontends.http.routing import Call, Route
from penstock_server.frontends.http.shapes import (
    After,
    Counted,
    DurableAnswer,
    EventAnswer,
    NewDurable,
    NoQuery,
    OutstandingQuery,
    Page,
    Purge,
    Purged,
    SeekAnswer,
    SeekQuery,
    SeekTo,
    answer_from,
)


async def browse(call: Call[OutstandingQuery, None]) -> Page[EventAnswer]:
    """Browse the outstanding events, in order; this changes nothing (SEM D16)."""
    return await events.outstanding(call, call.params["durable"])


async def purge(call: Call[NoQuery, Purge]) -> Purged:
    """Acknowledge outstanding events, or only count them; other durables keep theirs."""
    wanted, name = call.body, call.params["durable"]
    asked = CountDurablePurge if wanted.dry_run else PurgeDurable
    count = await call.ask_here(
        asked, lambda now: asked(now.channel, name, wanted.start, wanted.end, wanted.selector)
    )
    return Purged(count=count, dry_run=wanted.dry_run)


async def show_over_pattern(call: Call[NoQuery, None]) -> PatternDurableAnswer:
    """Show a durable over a pattern, and how many channels have it."""
    wanted = choice_of(call.params["pattern"]).text, durable_name(call.params["durable"])
    for info in await call.ask(ListPatternDurables()):
        if (info.pattern, info.name) == wanted:
            return answer_from(info, PatternDurableAnswer)
    raise NameDoesNotExist(f"there is no durable {wanted[1]} over the pattern {wanted[0]}")


_OWN_NAMES = {"kind": "type"}
_OVER_PATTERN = "durables/{pattern}/{durable}"
_DURABLE = "channels/{channel}/durables/{durable}"

ROUTES = (
    bound(
        "listDurables",
        "GET",
        "channels/{channel}/durables",
        asks=ListDurables,
        text="List the durables of a channel, by name.",
        query=After,
        answer=Page[DurableAnswer],
        paged_by="name",
    ),
    bound(
        "createDurable",
        "POST",
        "channels/{channel}/durables",
        asks=CreateDurable,
        text="Create a durable. The channel keeps for it what its clients have not acknowledged "
        "(SEM D).",
        body=NewDurable,
        answer=DurableAnswer,
        names=_OWN_NAMES,
        status=201,
    ),
    bound(
        "getDurable",
        "GET",
        _DURABLE,
        asks=DescribeDurable,
        text="Show a durable: position, outstanding events, clients (SEM D17).",
        answer=DurableAnswer,
    ),
    bound(
        "deleteDurable",
        "DELETE",
        _DURABLE,
        asks=DeleteDurable,
        text="Delete a durable; the channel no longer keeps events for it.",
    ),
    Route("browseDurable", "GET", f"{_DURABLE}/events", asks=BrowseOutstanding, endpoint=browse),
    Route("purgeDurable", "POST", f"{_DURABLE}/purge", asks=PurgeDurable, endpoint=purge),
    bound(
        "previewSeek",
        "GET",
        f"{_DURABLE}/seek",
        asks=PreviewSeek,
        text="Show what a seek to this place would change (SEM D20); this changes nothing.",
        query=SeekQuery,
        answer=SeekAnswer,
    ),
    bound(
        "seekDurable",
        "POST",
        f"{_DURABLE}/seek",
        asks=SeekDurable,
        text="Have the durable go on from another place, back or forward; its clients stay (SEM "
        "D20).",
        body=SeekTo,
        answer=SeekAnswer,
    ),
    bound(
        "unbindDurable",
        "POST",
        f"{_DURABLE}/unbind",
        asks=UnbindDurable,
        text="End all subscriptions of a durable; the events they held go back (SEM D14).",
        answer=Counted,
        show=lambda call, count: Counted(count=count),
    ),
    bound(
        "listPatternDurables",
        "GET",
        "durables",
        asks=ListPatternDurables,
        text="List the durables over patterns, by pattern and name.",
        query=After,
        answer=Page[PatternDurableAnswer],
        paged_by="place",
    ),
    bound(
        "createPatternDurable",
        "POST",
        "durables",
        asks=CreatePatternDurable,
        text="Give each channel of a pattern a durable of one name, also those made later (SEM "
        "D22).",
        body=NewPatternDurable,
        answer=PatternDurableAnswer,
        names=_OWN_NAMES,
        status=201,
    ),
    Route(
        "getPatternDurable",
        "GET",
        _OVER_PATTERN,
        asks=ListPatternDurables,
        endpoint=show_over_pattern,
    ),
    bound(
        "deletePatternDurable",
        "DELETE",
        _OVER_PATTERN,
        asks=DeletePatternDurable,
        text="End a durable over a pattern, with its durables on all channels, but those that "
        "another pattern gives to a channel.",
    ),
)
