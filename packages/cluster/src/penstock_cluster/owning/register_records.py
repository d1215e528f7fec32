"""Records of nodes and shards in the register of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from penstock_cluster.owning.operator_orders import Orders
from penstock_core.vocabulary.errors import Damaged
from penstock_core.vocabulary.formats import FORMAT
from penstock_core.vocabulary.node_figures import NodeFigures
from penstock_core.vocabulary.ports import VersionedRecord

T = TypeVar("T")

MEMBERS: Final = "node/"
"""Prefix of the keys of nodes."""
SHARDS: Final = "shard/"
"""Prefix of the keys of shards' claims."""
FORMAT_KEY: Final = "cluster/format"
"""Key of the format that all nodes write, which is the newest format they all know."""


class MemberRecord(msgspec.Struct, frozen=True):
    """A node of the cluster, as it describes itself under ``node/<id>``."""

    node: str
    nonce: str
    """Random token of this start, which distinguishes two processes with the same name."""
    counter: int = 0
    """Number of renewals; a change shows that the process is alive."""
    address: str = ""
    """Address at which the process listens as long as it lives."""
    serves: Mapping[str, str] = {}
    """Addresses of the node's front ends, by protocol."""
    version: str = ""
    format: int = FORMAT
    """Newest format that the node knows."""
    leaving: bool = False
    """Whether the node takes no more shards."""
    removed: bool = False
    """Set by an operator whose node will not return. The process itself never writes it, so a node
    that does return counts as a member again."""
    wall_us: int = 0
    """The node's wall clock at the renewal, in microseconds since 1970; 0 if unknown."""
    secret_name: str = ""
    """Public name of the node's cluster secret, equal on nodes that share the secret; empty if the
    node accepts no relayed connections."""
    unfit: str = ""
    """Reason why the node could not serve the realm and does not claim it; empty if it could."""
    settings: Mapping[str, str] = {}
    """The node's values of the settings that must be equal on all nodes; empty if unknown."""
    lease_us: int = 0
    """Length of the node's lease; 0 if unknown."""
    damages: int = 0
    """Number of pieces of damage that the node found when it recovered the realm that it serves."""
    figures: NodeFigures | None = None
    """Figures of the node's process at the renewal; None if unknown."""


class ClaimRecord(msgspec.Struct, frozen=True):
    """The owner of a shard, under ``shard/<n>``."""

    owner: str
    """Node that owns the shard; empty after the process with this nonce has released it."""
    nonce: str
    epoch: int
    """Number of claims of the shard so far."""
    format: int
    """Format that the owner writes."""
    confirmed: int
    """The owner's counter of renewals when it wrote this record."""
    settings: Mapping[str, str] = {}
    """Settings of the newest owner, which apply to the realm; empty if unknown."""
    lease_us: int = 0
    """Length of the owner's lease; 0 if unknown."""


class RegisterWrite(NamedTuple):
    """A compare-and-set that is due."""

    key: str
    expected: int
    """Version that the write replaces; 0 for a new record."""
    value: bytes
    is_claim: bool = False
    """Whether the write makes this node the owner of a shard."""


class RegisterPoll(NamedTuple):
    """The contents of the register in one poll: all claims are read first, then all members."""

    claims: Mapping[int, VersionedRecord]
    members: Mapping[str, VersionedRecord]
    began_us: int
    ended_us: int
    wall_us: int = 0
    """Wall clock of this node at the end of the poll; 0 if clocks are not compared."""
    format: int = 0
    """Format stored under ``cluster/format``; 0 before the first write."""
    orders: Orders = Orders()
    """Orders stored under ``cluster/orders``."""


def read_record(
    key: str, record: VersionedRecord, type: type[T], *, description: str = "record of a cluster"
) -> T:
    """Decode a record of the register. Raises ``Damaged``, whose text calls it ``description``."""
    try:
        return msgspec.json.decode(record.value, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"{key} in the register is not a valid {description}: {error}") from error
