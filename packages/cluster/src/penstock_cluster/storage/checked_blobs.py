"""Blobs that are compared with the sizes and checksums that the realm has for its files."""

from __future__ import annotations

from collections.abc import Callable

from xxhash import xxh3_64_intdigest

from penstock_core.vocabulary.ports import Blobs, BlobSum, Offload
from penstock_server.storage.fixed_blobs import FixedBlobs


class CheckedBlobs(FixedBlobs):
    """Base class of blobs that have copies in a ``cache`` on the disk of this node."""

    def __init__(self, cache: Blobs, offload: Offload) -> None:
        self._cache = cache
        self._offload = offload
        self._expected_sum: Callable[[str], BlobSum | None] = lambda name: None
        self._checked: set[str] = set()
        """Files in the cache that this run has written, fetched or compared. A file of an earlier
        run is compared before it is used."""

    def check_against(self, expected_sum: Callable[[str], BlobSum | None]) -> None:
        """Verify fetched blobs with the size and checksum that ``expected_sum`` returns
        (:meth:`penstock_core.vocabulary.ports.ChecksBlobs.check_against`)."""
        self._expected_sum = expected_sum

    async def _find_mismatch(self, name: str, data: memoryview) -> BlobSum | None:
        """Return the size and checksum that the realm expects if the bytes of a file differ. None
        if they match, or if the realm does not know the file: a snapshot has a checksum inside."""
        expected = self._expected_sum(name)
        if expected is None:
            return None
        checksum = await self._offload(lambda: xxh3_64_intdigest(data))
        return None if expected == BlobSum(len(data), checksum) else expected
