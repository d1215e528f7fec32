"""MQTT 3.1.1 and 5 on the wire, sans-IO: packets in a stream, their properties, topics and filters.

The package is as strict as the standard: malformed packets and protocol errors raise
:class:`~penstock_mqtt.wire.reasons.MqttViolation` with their reason code.
"""
