"""Penstock's own protocol: length-prefixed frames, a msgpack header and Arrow columns.

``frames`` cuts a byte stream into frames, ``messages`` says what a header may be: a request of
:mod:`penstock.api`, or what the two sides say besides. Nothing here does I/O; client and server use
the same code.
"""
