"""MQTT 3.1.1 and 5: a topic is a value, a channel is a table.

What clients publish becomes events of one channel, with the topic as a property; what they
subscribe to is found by a tree of their filters. The guide's page on MQTT has the mapping.
"""
