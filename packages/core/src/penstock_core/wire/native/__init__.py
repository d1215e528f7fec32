"""Penstock's own protocol: length-prefixed frames, a msgpack header and Arrow columns.

``frames`` splits a byte stream into frames. ``messages`` defines the headers: requests of
:mod:`penstock_core.api`, and messages of the protocol itself. These modules do no I/O, so that
client and server share them.
"""
