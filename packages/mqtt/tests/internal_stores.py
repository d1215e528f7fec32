"""Reads and changes the internal stores of MQTT, which no client can open."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import penstock
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.messages.definitions import ChannelCreated, ChannelDeleted
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.reading.stretches import pages_of
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.store.bodies import body_from
from penstock_server.runtime.writer.group import Group


def stored_in(realm: penstock.Realm, name: str) -> list[Event]:
    """Return the events of an internal store."""
    running = realm.running

    async def read() -> list[Event]:
        number = number_of(running, name)
        return [event async for page in pages_of(running, number) for event in page]

    return realm.loop.call(read())


def put_into(
    realm: penstock.Realm,
    name: str,
    events: Iterable[tuple[Mapping[str, str], bytes]],
    *,
    publisher: str = "",
) -> None:
    """Publish events as only the realm itself can; with a ``publisher``, as users could in earlier
    versions."""
    stored_events = [Event(data, properties=dict(properties)) for properties, data in events]
    put_whole(realm, name, stored_events, publisher=publisher)


def put_whole(
    realm: penstock.Realm, name: str, events: Sequence[Event], *, publisher: str = ""
) -> None:
    """Do the same as :func:`put_into` with events that have all fields."""
    running = realm.running
    realm.loop.call(put(running, name, events, publisher=publisher))


async def put(
    realm: RunningRealm, name: str, events: Sequence[Event], *, publisher: str = ""
) -> None:
    """Do the same as :func:`put_into` on a realm that runs on this loop."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def reply(_: object, error: BaseException | None) -> None:
        done.set_result(None) if error is None else done.set_exception(error)

    bodies = [body_from(body_of(events))]
    realm.publish(number_of(realm, name), bodies, "", sequence=0, reply=reply, publisher=publisher)
    await done


def number_of(realm: RunningRealm, name: str) -> ChannelId:
    """Return the number of a store, internal or not."""
    number = realm.directory.internal.ids_by_name.get(name) or realm.directory.find(name)
    assert number is not None, f"there is no store {name}"
    return number


def definition_of(realm: penstock.Realm, name: str) -> Definition:
    """Return the attributes of an internal store."""
    running = realm.running
    return running.directory.channels[number_of(running, name)].state.definition


def made_before(realm: penstock.Realm, name: str, definition: Definition) -> None:
    """Create a store with a reserved name, as users could before the name was reserved."""
    running = realm.running

    def make(group: Group) -> None:
        number = running.directory.next_channel_id
        group.realm_fact(0, ChannelCreated(number, name, definition))

    realm.loop.call(running.shard.act(make))


def take_away(realm: penstock.Realm, name: str) -> None:
    """Delete an internal store, which otherwise only damage can remove."""
    running = realm.running

    def delete(group: Group) -> None:
        group.realm_fact(0, ChannelDeleted(number_of(running, name)))

    realm.loop.call(running.shard.act(delete))


async def replace_by_unfit(realm: RunningRealm, name: str) -> None:
    """Replace an internal store by a channel without keys, as users could create it before its name
    was reserved."""
    definition = Definition(type="persistent", cluster_wide=True)

    def replace(group: Group) -> None:
        group.realm_fact(0, ChannelDeleted(number_of(realm, name)))
        group.realm_fact(0, ChannelCreated(realm.directory.next_channel_id, name, definition))

    await realm.shard.act(replace)


GUARDED: dict[str, Any] = {
    "access__mode": "mandatory",
    "access__password_rounds": 4_096,
    "access__password_length_min": 1,
}
