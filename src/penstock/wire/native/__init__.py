"""Penstock's own protocol: length-prefixed frames, a msgpack header and Arrow columns.

``frames`` cuts a byte stream into frames, ``messages`` says what a header may be, ``answers``
what requests are answered with. Nothing here does I/O; client and server use the same code.
"""
