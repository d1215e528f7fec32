"""Events from the queues and topics of other brokers, each stored once."""
