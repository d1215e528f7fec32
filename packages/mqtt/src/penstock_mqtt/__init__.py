"""MQTT 3.1.1 and 5 for clients of a realm.

Messages that clients publish become events of one channel, with the topic as a property. A tree of
the clients' filters finds the receivers of a message. The guide's page on MQTT has the mapping.
"""
