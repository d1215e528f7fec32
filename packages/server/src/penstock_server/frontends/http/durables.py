"""Routes that list, create, show and delete durables of a channel or over a pattern, and that
browse, purge, seek and unbind durables of a channel."""

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
from penstock_server.frontends.http.routing import Call, EventStream, Route
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


async def browse(call: Call[OutstandingQuery, None]) -> Page[EventAnswer] | EventStream:
    """Browse the outstanding events in order; the durable does not change (SEM D16).

    With another content type than JSON, by ``Accept`` or ``format``, the answer is a stream of all
    selected events (SEM E12).
    """
    return await events.outstanding(call, call.params["durable"])


async def purge(call: Call[NoQuery, Purge]) -> Purged:
    """Acknowledge outstanding events of the durable, or only count them; other durables keep
    them."""
    body, name = call.body, call.params["durable"]
    request_type = CountDurablePurge if body.dry_run else PurgeDurable
    count = await call.ask_here(
        request_type,
        lambda now: request_type(now.channel, name, body.start, body.end, body.selector),
    )
    return Purged(count=count, dry_run=body.dry_run)


async def show_over_pattern(call: Call[NoQuery, None]) -> PatternDurableAnswer:
    """Show a durable over a pattern, and how many channels have it."""
    # Durables over patterns are few, and the realm has no request for a single one.
    pattern, name = choice_of(call.params["pattern"]).text, durable_name(call.params["durable"])
    for info in await call.ask(ListPatternDurables()):
        if (info.pattern, info.name) == (pattern, name):
            return answer_from(info, PatternDurableAnswer)
    raise NameDoesNotExist(f"no durable {name} over the pattern {pattern} exists")


_HTTP_NAMES = {"kind": "type"}
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
        text="Create a durable. The channel keeps events until the durable's clients have "
        "acknowledged them (SEM D).",
        body=NewDurable,
        answer=DurableAnswer,
        names=_HTTP_NAMES,
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
        text="Show the effect of a seek to this position, without moving the durable (SEM D20).",
        query=SeekQuery,
        answer=SeekAnswer,
    ),
    bound(
        "seekDurable",
        "POST",
        f"{_DURABLE}/seek",
        asks=SeekDurable,
        text="Move the durable to another position, back or forward; its clients stay connected "
        "(SEM D20).",
        body=SeekTo,
        answer=SeekAnswer,
    ),
    bound(
        "unbindDurable",
        "POST",
        f"{_DURABLE}/unbind",
        asks=UnbindDurable,
        text="End all subscriptions of a durable; their unacknowledged events go back to it (SEM "
        "D14).",
        answer=Counted,
        show=lambda call, count: Counted(count=count),
    ),
    bound(
        "listPatternDurables",
        "GET",
        "durables",
        asks=ListPatternDurables,
        text="List the durables over patterns, sorted by pattern and name.",
        query=After,
        answer=Page[PatternDurableAnswer],
        paged_by="place",
    ),
    bound(
        "createPatternDurable",
        "POST",
        "durables",
        asks=CreatePatternDurable,
        text="Create a durable of one name on every channel of a pattern, including channels "
        "created later (SEM D22).",
        body=NewPatternDurable,
        answer=PatternDurableAnswer,
        names=_HTTP_NAMES,
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
        text="Delete a durable over a pattern on all its channels, except channels on which "
        "another pattern requires it.",
    ),
)
