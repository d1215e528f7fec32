"""What nodes write into the register of a cluster about themselves and about shards, and what they
read there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from penstock_cluster.owning.orders import Orders
from penstock_core.vocabulary.errors import Damaged
from penstock_core.vocabulary.formats import FORMAT
from penstock_core.vocabulary.node_figures import NodeFigures
from penstock_core.vocabulary.ports import VersionedRecord

T = TypeVar("T")

MEMBERS: Final = "node/"
SHARDS: Final = "shard/"
FORMAT_KEY: Final = "cluster/format"
"""Where the register tells the format that all nodes write; the newest they all know."""


class MemberRecord(msgspec.Struct, frozen=True):
    """A node of the cluster, as it shows itself under ``node/<id>``."""

    node: str
    nonce: str
    """Drawn anew at each start: two processes that were given one name are told apart."""
    counter: int = 0
    """Raised with every renewal."""
    address: str = ""
    """Where the process listens as long as it lives."""
    serves: Mapping[str, str] = {}
    """Addresses of its front ends, by protocol."""
    version: str = ""
    format: int = FORMAT
    """The newest format it knows."""
    leaving: bool = False
    """It takes no shard any more."""
    removed: bool = False
    """Somebody has told that this process will not come back; the process itself never writes
    this, so that one that does come back is there again."""
    wall_us: int = 0
    """Its clock when it renewed, in microseconds since 1970; 0: it does not tell."""
    secret_name: str = ""
    """What it calls the secret of the cluster, by which nodes see that they have the same; empty:
    it takes no connections that others relay."""
    unfit: str = ""
    """Why it could not serve the realm, and does not claim it; empty: it could."""
    settings: Mapping[str, str] = {}
    """The settings that all nodes need to have alike, as it has them; empty: it does not tell."""
    lease_us: int = 0
    """How long its lease is; 0: it does not tell."""
    damages: int = 0
    """How many pieces of damage it found when it recovered the realm that it serves."""
    figures: NodeFigures | None = None
    """Figures of its process when it renewed; None: it does not tell."""


class ClaimRecord(msgspec.Struct, frozen=True):
    """The owner of a shard, under ``shard/<n>``."""

    owner: str
    """A node; "": nobody, for the process with this nonce has released it."""
    nonce: str
    epoch: int
    """How often the shard was claimed."""
    format: int
    """The format it writes."""
    confirmed: int
    """The owner's counter when it wrote this."""
    settings: Mapping[str, str] = {}
    """The settings of the newest owner, with which the realm is served; empty: not known."""
    lease_us: int = 0
    """How long the owner's lease is; 0: not known."""


class RegisterWrite(NamedTuple):
    """A compare-and-set that is due."""

    key: str
    expected: int
    value: bytes
    is_claim: bool = False
    """Whether it makes this node the owner of a shard."""


class RegisterLook(NamedTuple):
    """The register as it was read: all claims first, then all members."""

    claims: Mapping[int, VersionedRecord]
    members: Mapping[str, VersionedRecord]
    began_us: int
    ended_us: int
    wall_us: int = 0
    """What this node's clock shows at the end of the look; 0: nobody compares clocks."""
    format: int = 0
    """What stands under ``cluster/format``; 0: nothing yet."""
    orders: Orders = Orders()
    """What stands under ``cluster/orders``."""


def read_record(
    key: str, record: VersionedRecord, type: type[T], *, what: str = "record of a cluster"
) -> T:
    """Decode a record of the register. Raises ``Damaged`` for a record that is no ``what``."""
    try:
        return msgspec.json.decode(record.value, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"{key} in the register is no {what}: {error}") from error
