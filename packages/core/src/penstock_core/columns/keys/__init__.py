"""Publish keys: the slot of each event's value, and the events that each value keeps."""
