"""Pages of delivery states: of the stored events, then of dead events (SEM D23)."""

from __future__ import annotations

from typing import Final

from penstock_core.api.durables import DeliveryPage, DescribeDelivery
from penstock_core.channel.delivery_state import Selected, selected_durables
from penstock_core.columns.events.dead_runs import dead_runs
from penstock_core.vocabulary.delivery_runs import DEAD, DeliveryPlace
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_core.vocabulary.start_positions import FromId
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.reading.collecting import collect, count_that_fits
from penstock_server.runtime.reading.dead import DeadOrigins

DEAD_EVENTS_MAX: Final = 10_000
"""Maximum number of events of the dead event store that are read for a page."""


async def describe_delivery(caller: Caller, request: DescribeDelivery) -> DeliveryPage:
    """Return a page of delivery states. Raises ``NameDoesNotExist``, ``InvalidArgument``."""
    states = frozenset(request.states) - {DEAD}
    selected = Selected(request.durable, states, request.limit)
    if request.among_dead or (request.reads_dead and not states):
        return await _dead(caller, request, selected)
    page = await caller.realm.subscriptions.delivery(request.channel, selected, request.place)
    if page.next is not None or DEAD not in request.states:
        return page
    return DeliveryPage(page.runs, DeliveryPlace("", 0, is_dead=True))


async def _dead(caller: Caller, request: DescribeDelivery, selected: Selected) -> DeliveryPage:
    """Return a page of the dead events of a channel or queue. Raises as
    :func:`describe_delivery`."""
    directory, place = caller.realm.directory, request.place
    channel = directory.channels.get(request.channel)
    if channel is None:
        raise NameDoesNotExist(f"channel number {request.channel} was deleted during the request")
    selected_durables(channel.state, selected)  # checks the name
    # The dead event store may have changed since the right to read it was checked.
    caller.check(request)
    dead = directory.dead_event_store_of(request.channel)
    if dead is None:
        return DeliveryPage((), None)
    count_max = count_that_fits(caller.realm.view.store(dead), DEAD_EVENTS_MAX)
    outlet = DeadOrigins(caller.session, count_max)
    next_id = await collect(
        caller.realm,
        dead,
        outlet,
        subscribe=lambda: caller.realm.subscriptions.subscribe(
            dead, FromId(place.first_id), outlet, credit=count_max, browse=True
        ),
    )
    runs, next_place = dead_runs(outlet.columns, channel.state.name, selected, place)
    if next_place is None and next_id is not None:
        next_place = DeliveryPlace("", next_id, is_dead=True)
    return DeliveryPage(tuple(runs), next_place)
