"""Hypothesis strategies for all packets of both versions, with all their fields."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from penstock_mqtt.wire import packets, properties, reasons
from penstock_mqtt.wire.packets import MQTT_3, MQTT_5
from penstock_mqtt.wire.properties import NO_PROPERTIES, PROPERTIES, PacketProperties, Property
from penstock_mqtt.wire.reasons import Reason

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
LEVELS = st.text(st.characters(codec="utf-8", exclude_characters="\0+#/"), max_size=4)
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
_IDS = st.integers(1, 65_535)


@st.composite
def filters(draw: st.DrawFn, *, may_be_shared: bool = True) -> str:
    levels = draw(st.lists(LEVELS | st.just("+"), min_size=1, max_size=4))
    if draw(st.booleans()):
        levels.append("#")
    text = "/".join(levels) or "+"
    if text.startswith("$share/"):
        text = f"x{text}"
    if may_be_shared and draw(st.booleans()):
        group = draw(LEVELS.filter(bool))
        return f"$share/{group}/{text}"
    return text


def _values(definition: Property) -> st.SearchStrategy[Any]:
    kinds: dict[object, st.SearchStrategy[Any]] = {
        properties.PROPERTIES[2].type: TEXTS,
        properties.PROPERTIES[4].type: st.binary(max_size=20),
        properties.PROPERTIES[22].type: st.tuples(TEXTS, TEXTS),
        properties.PROPERTIES[0].type: st.integers(0, 255),
        properties.PROPERTIES[8].type: st.integers(0, 65_535),
    }
    if definition.name == "response_topic":
        return NAMES
    numbers = st.integers(definition.minimum, definition.maximum)
    values = kinds.get(definition.type, numbers)
    if values is not numbers and definition.type in (PROPERTIES[0].type, PROPERTIES[8].type):
        values = values.filter(lambda value: definition.minimum <= value <= definition.maximum)
    if definition.maximum == 1:
        values = st.integers(0, 1)
    return values


@st.composite
def properties_of(draw: st.DrawFn, packet: int) -> PacketProperties:
    strategies: dict[str, Any] = {}
    for property_ in PROPERTIES:
        if packet not in property_.packets or not draw(st.booleans()):
            continue
        if property_.is_repeated:
            most = (
                1 if packet == properties.SUBSCRIBE and property_.name == "subscription_ids" else 3
            )
            strategies[property_.name] = tuple(
                draw(st.lists(_values(property_), min_size=1, max_size=most))
            )
        else:
            strategies[property_.name] = draw(_values(property_))
    if "authentication_data" in strategies or packet == properties.AUTH:
        strategies.setdefault("authentication_method", "SCRAM-SHA-256")
    return PacketProperties(**strategies) if strategies else NO_PROPERTIES


def _properties_strategy(version: int, packet: int) -> st.SearchStrategy[PacketProperties]:
    return properties_of(packet) if version == MQTT_5 else st.just(NO_PROPERTIES)


def _reasons(version: int, group: int) -> st.SearchStrategy[Reason]:
    codes = sorted(reasons.ALLOWED[group]) if version == MQTT_5 else [0]
    return st.sampled_from([Reason(code) for code in codes])


@st.composite
def _connects(draw: st.DrawFn, version: int) -> packets.ConnectPacket:
    user = draw(st.none() | TEXTS)
    has_password = version == MQTT_5 or user is not None
    will = None
    if draw(st.booleans()):
        will = packets.Will(
            draw(NAMES),
            draw(st.binary(max_size=20)),
            draw(st.integers(0, 2)),
            retain=draw(st.booleans()),
            properties=draw(_properties_strategy(version, properties.WILL)),
        )
    return packets.ConnectPacket(
        client_id=draw(TEXTS),
        version=version,
        clean_start=draw(st.booleans()),
        keep_alive_s=draw(st.integers(0, 65_535)),
        user=user,
        password=draw(st.none() | st.binary(max_size=20)) if has_password else None,
        will=will,
        properties=draw(_properties_strategy(version, properties.CONNECT)),
    )


@st.composite
def _connacks(draw: st.DrawFn, version: int) -> packets.ConnackPacket:
    codes = sorted(reasons.ALLOWED[reasons.CONNACK]) if version == MQTT_5 else range(6)
    reason = draw(st.sampled_from(list(codes)))
    present = draw(st.booleans()) and not reason
    return packets.ConnackPacket(
        reason, present, draw(_properties_strategy(version, properties.CONNACK))
    )


@st.composite
def publishes(draw: st.DrawFn, version: int) -> packets.PublishPacket:
    qos = draw(st.integers(0, 2))
    publish_properties = draw(_properties_strategy(version, properties.PUBLISH))
    topic = draw(NAMES if publish_properties.topic_alias is None else NAMES | st.just(""))
    return packets.PublishPacket(
        topic,
        draw(st.binary(max_size=300)),
        qos,
        packet_id=draw(_IDS) if qos else 0,
        retain=draw(st.booleans()),
        is_duplicate=draw(st.booleans()) and qos > 0,
        properties=publish_properties,
    )


def _subscriptions(version: int) -> st.SearchStrategy[packets.TopicSubscription]:
    if version == MQTT_3:
        return st.builds(packets.TopicSubscription, filters(), st.integers(0, 2))
    return st.builds(
        packets.TopicSubscription,
        filters(),
        st.integers(0, 2),
        st.just(value=False),
        st.booleans(),
        st.integers(0, 2),
    ) | st.builds(
        packets.TopicSubscription,
        filters(may_be_shared=False),
        st.integers(0, 2),
        st.just(value=True),
        st.booleans(),
        st.integers(0, 2),
    )


def drawn(version: int) -> st.SearchStrategy[Any]:
    """Return a strategy for all packets of a version."""
    answers = [
        st.builds(make, _IDS, _reasons(version, group), _properties_strategy(version, packet))
        for make, group, packet in (
            (packets.PubackPacket, reasons.PUBLISHED, properties.PUBACK),
            (packets.PubrecPacket, reasons.PUBLISHED, properties.PUBREC),
            (packets.PubrelPacket, reasons.COMPLETED, properties.PUBREL),
            (packets.PubcompPacket, reasons.COMPLETED, properties.PUBCOMP),
        )
    ]
    granted = (
        _reasons(version, reasons.SUBACK)
        if version == MQTT_5
        else st.sampled_from([Reason(0), Reason(1), Reason(2), Reason(0x80)])
    )
    reason_lists = st.lists(_reasons(version, reasons.UNSUBACK), min_size=1, max_size=3).map(tuple)
    packets_drawn = [
        *answers,
        _connects(version),
        _connacks(version),
        publishes(version),
        st.builds(
            packets.SubscribePacket,
            _IDS,
            st.lists(_subscriptions(version), min_size=1, max_size=3).map(tuple),
            _properties_strategy(version, properties.SUBSCRIBE),
        ),
        st.builds(
            packets.SubackPacket,
            _IDS,
            st.lists(granted, min_size=1, max_size=3).map(tuple),
            _properties_strategy(version, properties.SUBACK),
        ),
        st.builds(
            packets.UnsubscribePacket,
            _IDS,
            st.lists(filters(), min_size=1, max_size=3).map(tuple),
            _properties_strategy(version, properties.UNSUBSCRIBE),
        ),
        st.builds(
            packets.UnsubackPacket,
            _IDS,
            reason_lists if version == MQTT_5 else st.just(()),
            _properties_strategy(version, properties.UNSUBACK),
        ),
        st.just(packets.PingreqPacket()),
        st.just(packets.PingrespPacket()),
        st.builds(
            packets.DisconnectPacket,
            _reasons(version, reasons.DISCONNECT),
            _properties_strategy(version, properties.DISCONNECT),
        ),
    ]
    if version == MQTT_5:
        packets_drawn.append(
            st.builds(
                packets.AuthPacket,
                _reasons(version, reasons.AUTH),
                properties_of(properties.AUTH),
            )
        )
    return st.one_of(packets_drawn)
