"""AMQP 1.0: clients written for other servers connect unchanged, JMS applications among them.

Proton's engine (:mod:`.engine`) keeps connections, sessions and links as the standard says. This
package maps them to the realm: topics are channels, queues are queues, and subscriptions are
subscriptions or durables. Messages become events in :mod:`.incoming` (in :mod:`.single_message`
when one comes alone), events become messages in :mod:`.outgoing`; the guide's page on AMQP has the
table.
"""
