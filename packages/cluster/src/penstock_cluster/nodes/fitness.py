"""Check whether this node could serve a realm: it must be able to read the blobs and to recover the
realm from them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NoReturn

from penstock_cluster.nodes.blob_identity import BlobPlaces
from penstock_cluster.owning.claims import Claims
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import Damaged, Unavailable
from penstock_server.runtime.access.incidents import Incidents
from penstock_server.runtime.upkeep.backoff import RetryPauses

CHECK_S: Final = 15.0
"""Pause between two checks of a node that could serve the realm, in seconds."""
CHECK_UNFIT_S: Final = 2.0
"""Pause between two checks of a node that could not serve the realm, in seconds."""
NOT_RECOVERED_S: Final = 5.0
NOT_RECOVERED_S_MAX: Final = 30.0
"""Pause after a failed recovery; other nodes may take the realm during the pause. It doubles with
each failure, up to ``NOT_RECOVERED_S_MAX``."""

_log = logger("penstock.cluster")


class NodeFitness:
    """Keeps a node from claiming a realm that it could not serve. The reason is logged once and
    published in the member record, where other nodes and observers read it."""

    def __init__(
        self,
        claims: Claims,
        places: BlobPlaces,
        shards: int,
        has_quorum: Callable[[], bool],
        incidents: Incidents,
    ) -> None:
        self._claims = claims
        self._places = places
        self._shards = shards
        self._has_quorum = has_quorum
        self._incidents = incidents
        self._place_reason = ""
        """Why the blobs cannot be used; empty if they can."""
        self._opening_reason = ""
        """Why the latest recovery failed; empty after `_retry_at_s`."""
        self._logged_reason = ""
        self._logged_disagreement = ""
        self._retry_at_s = 0.0
        """Time on the loop's clock from which this node may try to recover the realm again."""
        self._pauses = RetryPauses(NOT_RECOVERED_S, NOT_RECOVERED_S_MAX)

    async def watch(self) -> NoReturn:
        """Check periodically, until cancelled."""
        while True:
            for shard in range(self._shards):
                with self._incidents.barrier("fitness", ends=()):
                    await self._check(shard)
            await asyncio.sleep(CHECK_UNFIT_S if self._claims.me.unfit else CHECK_S)

    def compare_settings(self) -> None:
        """Log once if the settings of this node keep it from claiming."""
        for shard in range(self._shards):
            reason = self._claims.disagreement(shard)
            if reason != self._logged_disagreement:
                self._logged_disagreement = reason
                if reason:
                    _log.error("node.settings_differ", reason=reason)
                else:
                    _log.info("node.settings_agree")

    async def may_claim(self, shard: int) -> bool:
        """Return whether this node could serve an unowned shard. Called right before it claims;
        False if the check fails."""
        with self._incidents.barrier("fitness", ends=()):
            return await self._check(shard) and not self._claims.me.unfit
        return False  # the barrier has caught an exception

    def record_failed_recovery(self, reason: str) -> None:
        """Leave a realm that this node could not recover to other nodes for a while."""
        self._opening_reason = reason
        self._retry_at_s = asyncio.get_running_loop().time() + self._pauses.failed()
        self._publish()

    def record_recovery(self) -> None:
        """Record that this node has recovered the realm."""
        self._pauses.record_success()
        self._log_change("")

    async def _check(self, shard: int) -> bool:
        """Check the blobs of a shard; False if the engine does not answer and the result is
        unknown."""
        if self._opening_reason and asyncio.get_running_loop().time() >= self._retry_at_s:
            self._opening_reason = ""
        try:
            reason = await self._places.failure(shard)
        except Damaged as error:
            reason = f"{error}"
        except Unavailable:
            return False
        # Without a quorum the failure may be that of the engine, not of the file store.
        if reason and not self._has_quorum():
            return False
        if self._place_reason and not reason:
            self._log_change("")
        self._place_reason = reason
        self._publish()
        return True

    def _publish(self) -> None:
        """Publish in the member record whether this node could serve, and why not."""
        reason = self._place_reason or self._opening_reason
        if reason != self._claims.me.unfit:
            self._claims.note_unfit(reason)
        if reason:
            self._log_change(reason)

    def _log_change(self, reason: str) -> None:
        """Log a reason once, however often the node tries again for the same one."""
        if reason == self._logged_reason:
            return
        self._logged_reason = reason
        if reason:
            _log.error("node.unfit", reason=reason)
        else:
            _log.info("node.fit")
