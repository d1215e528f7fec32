"""The handles of a session: channels, queues, durables, joins and access."""
