"""The Python client: an async client over the wire codec, and its sync facade."""
