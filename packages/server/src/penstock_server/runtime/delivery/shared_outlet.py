"""An outlet of several clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType


class SharedOutlet:
    """Base of an outlet that passes its events on to several clients."""

    rows_by_session: Mapping[str, Sequence[int]] = MappingProxyType({})
    """Rows of the last delivery that each client got, in order, by the name of its session. Only
    observed deliveries have it."""
