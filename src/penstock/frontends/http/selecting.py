"""The route that explains a selector and shows what it would choose (SEM F)."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from penstock.api.channels import DescribeColumns
from penstock.api.requests import Kind
from penstock.columns.schema.ipc import schema_from
from penstock.columns.selectors import MalformedSelector, Selector
from penstock.columns.selectors.checking import checked
from penstock.columns.selectors.explaining import explained
from penstock.core.bounds import GivenName
from penstock.core.durable.queue import READERS
from penstock.core.vocabulary.messages import Spans
from penstock.core.vocabulary.names import destination_name
from penstock.core.vocabulary.start_positions import FromId
from penstock.frontends.http.collecting import Collected, collect
from penstock.frontends.http.event_documents import messages_of
from penstock.frontends.http.finding import Store, may_read_at, store_of
from penstock.frontends.http.routing import Call, Route
from penstock.frontends.http.shapes import Answer, Body, NoQuery
from penstock.runtime.delivery.delivery import Outlet
from penstock.runtime.store.outgoing_batch import Rows
from penstock.runtime.subscriptions.subscriptions import Opened

MATCHES_MAX: Final = 100_000
"""Most matching events that are counted."""
SAMPLE: Final = 5
"""How many ids of matching events are shown."""


class CheckSelector(Body, frozen=True):
    selector: Annotated[str, Meta(max_length=65_536)]
    channel: GivenName = ""
    """A channel or queue: also show what it would choose there."""


class SelectorName(Answer, frozen=True):
    name: str
    kind: Literal["header", "property"]
    types: tuple[str, ...] | None
    """Types of the stored column, empty if no event had it; null: no channel was named."""


class Chosen(Answer, frozen=True):
    """What the selector chooses of the events stored now."""

    channel: str
    events: int
    """Events stored, matching or not."""
    matches: int
    first_ids: list[int]
    is_complete: bool
    """Whether all stored events were examined; otherwise it took too long, or matched too many."""


class SelectorAnswer(Answer, frozen=True):
    valid: bool
    message: str = ""
    """What is wrong, if it is not valid."""
    line: int | None = None
    column: int | None = None
    """Line and column of the error, both from 1."""
    expected: str = ""
    chooses: tuple[str, ...] = ()
    """The selector in words."""
    names: tuple[SelectorName, ...] = ()
    remarks: tuple[str, ...] = ()
    """Parts that can never match there, and why."""
    chosen: Chosen | None = None


class Counted(Collected):
    """An outlet that counts events, and keeps the first ids."""

    def __init__(self, selector: str) -> None:
        super().__init__(selector, MATCHES_MAX)
        self.ids: list[int] = []

    def deliver(self, rows: Rows, redeliveries: tuple[tuple[int, Spans], ...]) -> None:
        """Count the events of a batch."""
        ids = rows.batch.column("event_id")
        self.ids += ids[: max(0, SAMPLE - len(self.ids))].to_pylist()
        self.count += len(ids)
        self.last_id = ids[-1].as_py()
        if self.count >= self.count_max:
            self.is_full = True
            self.done.set()


async def check(call: Call[NoQuery, CheckSelector]) -> SelectorAnswer:
    """Explain a selector, or say where it is wrong; with a channel, show what it chooses there.

    A selector that does not parse is answered with ``valid`` false, and is not an error.
    """
    store = await _store(call)
    try:
        selector = Selector(call.body.selector)
    except MalformedSelector as error:
        return SelectorAnswer(
            valid=False,
            message=str(error),
            line=error.line,
            column=error.column,
            expected=error.expected,
        )
    stored = None
    if store is not None:
        stored = schema_from(await call.answer(DescribeColumns(store.number)))
        messages = messages_of(store)
        stored = stored if messages is None else messages.seen_in(stored)
    said = checked(selector.expression, stored)
    return SelectorAnswer(
        valid=True,
        chooses=tuple(explained(selector.expression)),
        names=tuple(
            SelectorName(name=each.name, kind=each.kind, types=each.types)  # type: ignore[arg-type]  # it is one of the two
            for each in said.names
        ),
        remarks=tuple(said.remarks),
        chosen=None if store is None else await _chosen(call, store),
    )


async def _store(call: Call[NoQuery, CheckSelector]) -> Store | None:
    """The channel or queue in the body, which must be one whose events may be read; None: none."""
    if not call.body.channel:
        return None
    name = destination_name(call.body.channel)
    may_read_at(call, name)
    kind: Kind = "queue" if call.seen_as(name) == "queue" else "channel"
    return await store_of(call.realm, name, kind)


async def _chosen(call: Call[NoQuery, CheckSelector], store: Store) -> Chosen:
    realm = call.realm
    outlet = Counted(call.body.selector)
    next_id = await collect(realm, store.number, outlet, lambda: _opened(call, store, outlet))
    now = realm.view.store(store.number)
    return Chosen(
        channel=store.name,
        events=0 if now is None else len(now.stored),
        matches=outlet.count,
        first_ids=outlet.ids,
        is_complete=next_id is None,
    )


async def _opened(call: Call[NoQuery, CheckSelector], store: Store, outlet: Outlet) -> Opened:
    subscriptions = call.realm.subscriptions
    if store.kind == "queue":
        return await subscriptions.browse_durable(store.number, READERS, outlet, MATCHES_MAX)
    return await subscriptions.subscribe(
        store.number, FromId(0), outlet, credit=MATCHES_MAX, browse=True
    )


ROUTES = (
    Route("checkSelector", "POST", "selectors/check", "realm.describe", check, only_asks=True),
)
