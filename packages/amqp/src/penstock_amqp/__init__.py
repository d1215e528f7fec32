"""AMQP 1.0: clients written for other servers, including JMS applications, connect unchanged.

Proton's engine (:mod:`.engine`) runs connections, sessions and links according to the standard.
This package maps them to the realm: topics to channels, queues to queues, and subscriptions to
subscriptions or durables. :mod:`.incoming` converts messages to events (:mod:`.single_message` if
a message arrives alone), :mod:`.outgoing` converts events to messages; the guide's page on AMQP has
the table.
"""
