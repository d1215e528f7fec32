"""Delivery: events that the core has offered are read from the store and sent."""
