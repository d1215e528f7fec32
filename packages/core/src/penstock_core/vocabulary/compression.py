"""Compression of files of events (SEM S)."""

from __future__ import annotations

from typing import Literal

Compression = Literal["none", "zstd", "lz4"]
"""Codec of a file of events. Each buffer of a record batch is compressed separately, as in the
Arrow format."""
