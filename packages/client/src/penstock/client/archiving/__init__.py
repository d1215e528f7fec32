"""Copies the events of channels to tables, each event once."""
