"""The route that takes events off queues."""

from __future__ import annotations

from penstock_core.api.reading import PopEvents
from penstock_server.frontends.http.event_documents import document_of, messages_of
from penstock_server.frontends.http.finding import asked_of
from penstock_server.frontends.http.routing import Call, Route
from penstock_server.frontends.http.shapes import NoQuery, Pop, Popped


async def pop(call: Call[NoQuery, Pop]) -> Popped:
    """Take events off a queue for good (SEM Q1): they are committed before the answer is sent.

    If the connection is lost, so are they; use a transactional reader to be sure.
    """
    wanted = call.body
    store, events = await asked_of(
        call,
        PopEvents,
        lambda now: PopEvents(now.channel, wanted.count, wanted.timeout, selector=wanted.selector),
    )
    messages = messages_of(store)
    return Popped(items=[document_of(event, messages) for event in events])


ROUTES = (Route("popEvents", "POST", "queues/{queue}/pop", asks=PopEvents, endpoint=pop),)
