"""How files of events may be compressed (SEM S)."""

from __future__ import annotations

from typing import Literal

Compression = Literal["none", "zstd", "lz4"]
"""Each buffer of a record batch by itself, as the Arrow format has it."""
