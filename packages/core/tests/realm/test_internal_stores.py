"""The names of internal stores, and the stores with these names."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock_core.messages.definitions import ChannelCreated, ChannelDeleted
from penstock_core.realm.directory import Directory
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import (
    IllegalState,
    InvalidName,
    NameAlreadyBound,
    NameDoesNotExist,
)
from penstock_server.bootstrap.registries import rules

SESSIONS = Definition(type="persistent", keys={"entry": 1}, retain_consumed=True)

pytestmark = pytest.mark.spec("A6")


def realm(mqtt_channel: str = "mqtt") -> Directory:
    return Directory(replace(rules(), mqtt_channel=mqtt_channel))


def test_users_cannot_make_what_the_realm_makes_for_itself_whether_mqtt_is_served_or_not() -> None:
    directory = realm("plant")
    for name in ("plant-sessions", "plant-retained"):
        with pytest.raises(NameAlreadyBound, match="reserved for an internal store"):
            directory.decide_create(name, SESSIONS)

    directory.apply(directory.decide_internal("plant-sessions", SESSIONS))

    assert directory.find("plant-sessions") is None
    assert directory.names("channel") == []
    with pytest.raises(NameDoesNotExist, match="which no right opens"):
        directory.channel_id_of("plant-sessions")
    with pytest.raises(NameAlreadyBound, match="already exists"):
        directory.decide_internal("plant-sessions", SESSIONS)
    directory.apply(directory.decide_create("mqtt-sessions", Definition()))
    assert directory.names("channel") == ["mqtt-sessions"]


def test_a_store_of_another_shape_that_has_the_name_is_its_users() -> None:
    directory = realm()
    directory.apply(ChannelCreated(1, "mqtt-sessions", Definition()))

    assert directory.channel_id_of("mqtt-sessions") == 1
    with pytest.raises(NameAlreadyBound, match="already exists"):
        directory.decide_internal("mqtt-sessions", SESSIONS)
    for fact in directory.decide_delete("mqtt-sessions"):
        directory.apply(fact)
    directory.apply(directory.decide_internal("mqtt-sessions", SESSIONS))
    assert directory.internal.ids_by_name == {"mqtt-sessions": 2}


def test_a_store_becomes_internal_when_mqtt_is_served_beside_it() -> None:
    directory = realm()
    directory.apply(directory.decide_internal("plant-sessions", SESSIONS))
    directory.apply(directory.decide_create("plant", Definition()))

    directory.serve_mqtt("plant")

    assert directory.names("channel") == ["plant"]
    assert directory.internal.ids_by_name == {"plant-sessions": 1}
    with pytest.raises(IllegalState, match="the channel of all topics of MQTT"):
        directory.decide_delete("plant")
    directory.apply(ChannelDeleted(1))
    assert not directory.internal.machines
    assert not directory.internal.ids_by_name


def test_no_user_makes_what_would_be_internal_beside_another_channel() -> None:
    """MQTT may later be served for a channel of any name, which then needs the internal store."""
    directory = realm()
    for name, key in (("iot-sessions", "entry"), ("iot-retained", "topic")):
        shape = Definition(keys={key: 1})
        with pytest.raises(InvalidName, match="choose another name, or another key"):
            directory.decide_create(name, shape)
        directory.decide_create(name, Definition(keys={"sku": 1}))
        directory.decide_create(name, Definition())
        directory.decide_create(f"{name}-of-mine", shape)
