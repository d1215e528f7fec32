"""MQTT 3.1.1 and 5 on the wire, sans-IO: packets in a stream, their properties, topics and filters.

It is as strict as the standard: what is malformed or breaks the protocol is a
:class:`~penstock_mqtt.wire.reasons.MqttViolation` with its reason code.
"""
