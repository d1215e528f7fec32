"""Nodes that are started differently from the others: without the files of the realm, with other
settings, another lease, another format, or the name of another process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from penstock_core.vocabulary.formats import FORMAT
from penstock_testing.process import ServerDidNotStart
from tests.faults.cluster.commands import ClusterCommands
from tests.faults.cluster.nodes import Node, Nodes
from tests.faults.cluster.oracles import DifferingNode
from tests.faults.cluster.schedule import Fault

FIT_AGAIN_S: Final = 60.0
"""The longest time that a node needs to notice that its files are available again."""
BLOBS: Final = "cluster.blobs"
LEASE: Final = "cluster.lease_s"
_LEASES_S: Final = (2.5, 11.0)


class OtherSetting(NamedTuple):
    """A setting of a node that differs from the other nodes."""

    name: str
    variable: str
    value: str


SETTINGS: Final = (
    OtherSetting("access.mode", "PENSTOCK_ACCESS_MODE", "mandatory"),
    OtherSetting("limits.max_event_bytes", "PENSTOCK_LIMITS_MAX_EVENT_BYTES", "1000000"),
    OtherSetting("cluster.reattach_s", "PENSTOCK_CLUSTER_REATTACH_S", "1"),
)


class DifferingNodes:
    """Starts one node at a time with a difference, and kills the owner meanwhile, so that another
    node takes over. :attr:`seen` has the observations."""

    def __init__(self, nodes: Nodes, commands: ClusterCommands) -> None:
        self._nodes = nodes
        self._commands = commands
        self._pause = threading.Event()
        self.seen: list[DifferingNode] = []

    @property
    def actions(self) -> Mapping[str, Callable[[Fault], str]]:
        """Actions by kind of fault."""
        return {
            "blobs-unmounted": self._unmount,
            "settings-differ": self._change_setting,
            "lease-differs": self._change_lease,
            "format-differs": self._change_format,
            "name-taken": self._take_name,
        }

    def _standby(self, fault: Fault) -> Node:
        owner = self._nodes.owner()
        standbys = [node for node in self._nodes.all if node is not owner]
        return standbys[int(fault.choice * len(standbys))]

    def _unmount(self, fault: Fault) -> str:
        """Start a node with an empty folder as mount; it must take part again once the right one is
        mounted."""
        node = self._standby(fault)
        node.kill()
        self._nodes.unmount(node)
        node.start()
        self._watch(node, "without its blobs", BLOBS, event="node.unfit", fault=fault)
        self._nodes.mount(node)
        if not node.has_logged_within("node.fit", s=FIT_AGAIN_S):
            self._note_harm(f"it is not fit {FIT_AGAIN_S:g} s after its blobs are there again")
        return f"{node.name} without its blobs"

    def _change_setting(self, fault: Fault) -> str:
        setting = SETTINGS[int(fault.choice * 2 % 1 * len(SETTINGS))]
        return self._start_with(setting, fault)

    def _change_lease(self, fault: Fault) -> str:
        lease = _LEASES_S[int(fault.choice * 2 % 1 * len(_LEASES_S))]
        return self._start_with(
            OtherSetting(LEASE, "PENSTOCK_CLUSTER_LEASE_S", f"{lease:g}"), fault
        )

    def _start_with(self, setting: OtherSetting, fault: Fault) -> str:
        node = self._standby(fault)
        node.kill()
        node.start({setting.variable: setting.value})
        how = f"with {setting.name} = {setting.value}"
        self._watch(node, how, setting.name, event="node.settings_differ", fault=fault)
        node.kill()
        node.start()
        return f"{node.name} {how}"

    def _watch(self, node: Node, how: str, cause: str, event: str, fault: Fault) -> None:
        """Observe a node that differs, before and after the owner is killed."""
        is_reported = node.has_logged_within(event, cause)
        is_diagnosed = cause in self._commands.doctor_complaints()
        owner = self._nodes.owner()
        owner.kill()
        self._nodes.owner()
        self._pause.wait(fault.for_s)
        has_claimed = bool(node.logged("shard.claimed"))
        self.seen.append(
            DifferingNode(
                node.name,
                how,
                cause,
                is_reported=is_reported,
                is_diagnosed=is_diagnosed,
                has_claimed=has_claimed,
            )
        )
        owner.start()

    def _change_format(self, fault: Fault) -> str:
        """An older version must not start; a newer one takes part and writes a format that the
        others can read, so that it can be replaced by the earlier version."""
        node = self._standby(fault)
        is_older = fault.choice * 2 % 1 < 0.5
        format = FORMAT - 1 if is_older else FORMAT + 1
        how = f"which knows format {format}"
        node.kill()
        node.machine.set_format(format)
        if is_older:
            cause = f"the cluster writes format {FORMAT}"
            reason = _refusal(node)
            # the doctor reports that the node does not run
            is_diagnosed = f"{node.name} is gone" in self._commands.doctor_complaints()
            observation = DifferingNode(
                node.name,
                how,
                cause,
                is_reported=cause in reason,
                is_diagnosed=is_diagnosed,
                has_claimed=not reason,
            )
            self.seen.append(observation)
            node.close()
        else:
            node.start()
            owner = self._nodes.owner()
            owner.kill()
            self._nodes.owner()
            self._pause.wait(fault.for_s)
            owner.start()
            node.kill()
        node.machine.set_format(None)
        node.start()
        return f"{node.name}, {how}"

    def _take_name(self, fault: Fault) -> str:
        """Start a second process with a node's name: it is refused, and the first one continues. On
        a busy machine the first may lose its lease, which does not matter as long as the second
        claims nothing."""
        node = self._nodes.owner() if fault.choice < 0.5 else self._standby(fault)
        is_owner = node.epoch_served > 0
        rival = self._nodes.rival(node)
        cause = f"node {node.name} is already running"
        reason = _refusal(rival)
        has_claimed = bool(rival.logged("shard.claimed"))
        rival.close()
        end_report = node.end_report()
        harmed = f"the first process ended: {end_report}" if end_report else ""
        # the doctor sees one node of this name, as it should
        observation = DifferingNode(
            node.name,
            "a second one",
            cause,
            is_reported=cause in reason,
            is_diagnosed=True,
            has_claimed=has_claimed,
        )
        self.seen.append(replace(observation, harmed=harmed))
        return f"{node.name}, {'the owner' if is_owner else 'a standby'}"

    def _note_harm(self, what: str) -> None:
        self.seen[-1] = replace(self.seen[-1], harmed=what)


def _refusal(node: Node) -> str:
    """Return the reason why a node does not start or soon ends; "" if it keeps running."""
    try:
        node.start()
    except ServerDidNotStart as failure:
        return _reason_in(str(failure))
    node.has_logged_within("realm.failed")
    return _reason_in(node.running.log)


def _reason_in(log: str) -> str:
    for line in log.splitlines():
        if '"realm.failed"' in line:
            return str(msgspec.json.decode(line)["reason"])
    return ""
