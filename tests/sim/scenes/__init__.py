"""The scenes that a world may play, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim.scenes.asked import Asked
from tests.sim.scenes.born import Born
from tests.sim.scenes.breathing import Breathing
from tests.sim.scenes.chain import Chain
from tests.sim.scenes.dead import Dead
from tests.sim.scenes.durables import Durables
from tests.sim.scenes.followed import Followed
from tests.sim.scenes.jms import Jms
from tests.sim.scenes.joined import Joined
from tests.sim.scenes.keyed import Keyed
from tests.sim.scenes.leased import Leased
from tests.sim.scenes.lent import Lent
from tests.sim.scenes.memory import Memory
from tests.sim.scenes.merged import Merged
from tests.sim.scenes.ordered import Ordered
from tests.sim.scenes.passing import Passing
from tests.sim.scenes.paused import Paused
from tests.sim.scenes.queues import Queues
from tests.sim.scenes.scene import Scene
from tests.sim.scenes.scheduled import Scheduled
from tests.sim.scenes.sought import Sought
from tests.sim.scenes.timed import Timed
from tests.sim.scenes.transfers import Transfers
from tests.sim.scenes.travel import Travel
from tests.sim.scenes.wired import Wired

if TYPE_CHECKING:
    from tests.sim.world import World

SCENES: dict[str, Callable[[World], Scene]] = {
    "asked": Asked,
    "born": Born,
    "breathing": Breathing,
    "chain": Chain,
    "dead": Dead,
    "durables": Durables,
    "followed": Followed,
    "jms": Jms,
    "joined": Joined,
    "keyed": Keyed,
    "leased": Leased,
    "lent": Lent,
    "memory": Memory,
    "passing": Passing,
    "paused": Paused,
    "merged": Merged,
    "ordered": Ordered,
    "queues": Queues,
    "scheduled": Scheduled,
    "sought": Sought,
    "timed": Timed,
    "transfers": Transfers,
    "travel": Travel,
    "wired": Wired,
}
