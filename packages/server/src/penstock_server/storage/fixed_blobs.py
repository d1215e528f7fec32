"""Base class of adapters whose blobs never change after they are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from penstock_core.vocabulary.errors import IllegalState
from penstock_core.vocabulary.ports import Buffer
from penstock_server.storage.blob_names import check_blob_name


class FixedBlobs:
    """Base class of :class:`~penstock_core.vocabulary.ports.Blobs` that do not grow, and that other
    processes cannot map."""

    grows: Final = False
    _fixed_because: ClassVar[str]
    """The reason in the error of :meth:`extend`."""

    async def extend(self, name: str, at: int, chunks: Sequence[Buffer]) -> None:
        """Raise ``IllegalState``, because blobs do not grow."""
        check_blob_name(name)
        raise IllegalState(f"{name} cannot be extended: {self._fixed_because}")

    def local_path(self, name: str) -> str | None:
        """Return None, because the bytes are elsewhere, or may be removed at any time."""
        check_blob_name(name)
        return None
