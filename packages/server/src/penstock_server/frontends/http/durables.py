"""Routes for durables, of one channel or over a pattern: list, create, show, delete; those of one
channel are also browsed, purged, moved and unbound."""

from __future__ import annotations

import msgspec
from msgspec import structs

from penstock_core.api.durables import (
    CountDurablePurge,
    CreateDurable,
    DeleteDurable,
    DescribeDurable,
    DurableInfo,
    ListDurables,
    PreviewSeek,
    PurgeDurable,
    SeekDurable,
    SeekOutcome,
    UnbindDurable,
)
from penstock_core.api.patterns import (
    CreatePatternDurable,
    DeletePatternDurable,
    ListPatternDurables,
    PatternDurableInfo,
)
from penstock_core.api.reading import BrowseOutstanding
from penstock_core.vocabulary.choice import choice_of
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_core.vocabulary.names import durable_name
from penstock_server.frontends.http import events
from penstock_server.frontends.http.finding import cursor_of, start_of
from penstock_server.frontends.http.realm_shapes import NewPatternDurable, PatternDurableAnswer
from penstock_server.frontends.http.routing import Call, Route
from penstock_server.frontends.http.shapes import (
    After,
    Counted,
    Done,
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
)


def answer_of(info: DurableInfo) -> DurableAnswer:
    return msgspec.convert(msgspec.structs.asdict(info), DurableAnswer)


async def list_durables(call: Call[After, None]) -> Page[DurableAnswer]:
    """List the durables of a channel, by name."""
    query = call.query
    every = await call.ask_here(ListDurables, lambda now: ListDurables(now.channel))
    infos = [info for info in every if info.name > query.after]
    more = len(infos) > query.limit
    return Page(
        items=[answer_of(info) for info in infos[: query.limit]],
        next=infos[query.limit - 1].name if more else None,
    )


async def create(call: Call[NoQuery, NewDurable]) -> DurableAnswer:
    """Create a durable. The channel keeps for it what its clients have not acknowledged (SEM D)."""
    given = structs.asdict(call.body)
    kind, start = given.pop("type"), start_of(given.pop("start"))
    return answer_of(
        await call.ask_here(
            CreateDurable, lambda now: CreateDurable(now.channel, kind=kind, start=start, **given)
        )
    )


async def show(call: Call[NoQuery, None]) -> DurableAnswer:
    """Show a durable: position, outstanding events, clients (SEM D17)."""
    name = call.params["durable"]
    return answer_of(
        await call.ask_here(DescribeDurable, lambda now: DescribeDurable(now.channel, name))
    )


async def delete(call: Call[NoQuery, None]) -> Done:
    """Delete a durable; the channel no longer keeps events for it."""
    name = call.params["durable"]
    await call.ask_here(DeleteDurable, lambda now: DeleteDurable(now.channel, name))
    return Done()


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


async def preview_seek(call: Call[SeekQuery, None]) -> SeekAnswer:
    """Show what a seek to this place would change (SEM D20); this changes nothing."""
    to, name = start_of(call.query.to), call.params["durable"]
    outcome = await call.ask_here(PreviewSeek, lambda now: PreviewSeek(now.channel, name, to))
    return _sought(outcome)


async def seek(call: Call[NoQuery, SeekTo]) -> SeekAnswer:
    """Have the durable go on from another place, back or forward; its clients stay (SEM D20)."""
    wanted, name = call.body, call.params["durable"]
    to = start_of(wanted.to)
    outcome = await call.ask_here(
        SeekDurable, lambda now: SeekDurable(now.channel, name, to, key=wanted.key)
    )
    return _sought(outcome)


def _sought(outcome: SeekOutcome) -> SeekAnswer:
    return msgspec.convert(structs.asdict(outcome), SeekAnswer)


async def unbind(call: Call[NoQuery, None]) -> Counted:
    """End all subscriptions of a durable; the events they held go back (SEM D14)."""
    name = call.params["durable"]
    ended = await call.ask_here(UnbindDurable, lambda now: UnbindDurable(now.channel, name))
    return Counted(count=ended)


# --- over a pattern -----------------------------------------------------------------------


def _over_pattern(info: PatternDurableInfo) -> PatternDurableAnswer:
    return msgspec.convert(structs.asdict(info), PatternDurableAnswer)


async def list_over_patterns(call: Call[After, None]) -> Page[PatternDurableAnswer]:
    """List the durables over patterns, by pattern and name."""
    place = cursor_of(call.query.after) or 0
    infos = await call.ask(ListPatternDurables())
    end = place + call.query.limit
    return Page(
        items=[_over_pattern(info) for info in infos[place:end]],
        next=str(end) if end < len(infos) else None,
    )


async def create_over_pattern(call: Call[NoQuery, NewPatternDurable]) -> PatternDurableAnswer:
    """Give each channel of a pattern a durable of one name, also those made later (SEM D22)."""
    given = structs.asdict(call.body)
    kind, start = given.pop("type"), start_of(given.pop("start"))
    return _over_pattern(await call.ask(CreatePatternDurable(kind=kind, start=start, **given)))


async def show_over_pattern(call: Call[NoQuery, None]) -> PatternDurableAnswer:
    """Show a durable over a pattern, and how many channels have it."""
    wanted = choice_of(call.params["pattern"]).text, durable_name(call.params["durable"])
    for info in await call.ask(ListPatternDurables()):
        if (info.pattern, info.name) == wanted:
            return _over_pattern(info)
    raise NameDoesNotExist(f"there is no durable {wanted[1]} over the pattern {wanted[0]}")


async def delete_over_pattern(call: Call[NoQuery, None]) -> Done:
    """End a durable over a pattern, with its durables on all channels, but those that another
    pattern gives to a channel."""
    await call.ask(DeletePatternDurable(call.params["pattern"], call.params["durable"]))
    return Done()


_OVER_PATTERN = "durables/{pattern}/{durable}"
_DURABLE = "channels/{channel}/durables/{durable}"

ROUTES = (
    Route(
        "listDurables",
        "GET",
        "channels/{channel}/durables",
        asks=ListDurables,
        endpoint=list_durables,
    ),
    Route(
        "createDurable",
        "POST",
        "channels/{channel}/durables",
        asks=CreateDurable,
        endpoint=create,
        status=201,
    ),
    Route("getDurable", "GET", _DURABLE, asks=DescribeDurable, endpoint=show),
    Route("deleteDurable", "DELETE", _DURABLE, asks=DeleteDurable, endpoint=delete),
    Route("browseDurable", "GET", f"{_DURABLE}/events", asks=BrowseOutstanding, endpoint=browse),
    Route("purgeDurable", "POST", f"{_DURABLE}/purge", asks=PurgeDurable, endpoint=purge),
    Route("previewSeek", "GET", f"{_DURABLE}/seek", asks=PreviewSeek, endpoint=preview_seek),
    Route("seekDurable", "POST", f"{_DURABLE}/seek", asks=SeekDurable, endpoint=seek),
    Route("unbindDurable", "POST", f"{_DURABLE}/unbind", asks=UnbindDurable, endpoint=unbind),
    Route(
        "listPatternDurables",
        "GET",
        "durables",
        asks=ListPatternDurables,
        endpoint=list_over_patterns,
    ),
    Route(
        "createPatternDurable",
        "POST",
        "durables",
        asks=CreatePatternDurable,
        endpoint=create_over_pattern,
        status=201,
    ),
    Route(
        "getPatternDurable",
        "GET",
        _OVER_PATTERN,
        asks=ListPatternDurables,
        endpoint=show_over_pattern,
    ),
    Route(
        "deletePatternDurable",
        "DELETE",
        _OVER_PATTERN,
        asks=DeletePatternDurable,
        endpoint=delete_over_pattern,
    ),
)
