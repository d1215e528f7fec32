"""Nodes that are started otherwise than the others: without the files of the realm, with other
settings, another lease, another format, or a name that another process has."""

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
from tests.faults.cluster.oracles import Differing
from tests.faults.cluster.schedule import Fault

FIT_AGAIN_S: Final = 60.0
"""How long a node may take until it notices that its files are there again."""
BLOBS: Final = "cluster.blobs"
LEASE: Final = "cluster.lease_s"
_LEASES_S: Final = (2.5, 11.0)


class OtherSetting(NamedTuple):
    """A setting that a node has otherwise than the others."""

    name: str
    variable: str
    value: str


SETTINGS: Final = (
    OtherSetting("access.mode", "PENSTOCK_ACCESS_MODE", "mandatory"),
    OtherSetting("limits.max_event_bytes", "PENSTOCK_LIMITS_MAX_EVENT_BYTES", "1000000"),
    OtherSetting("cluster.reattach_s", "PENSTOCK_CLUSTER_REATTACH_S", "1"),
)


class DifferingNodes:
    """One node at a time differs, and the owner is killed meanwhile: another one takes over. What
    was seen of it is in :attr:`seen`."""

    def __init__(self, nodes: Nodes, commands: ClusterCommands) -> None:
        self._nodes = nodes
        self._commands = commands
        self._pause = threading.Event()
        self.seen: list[Differing] = []

    @property
    def acts(self) -> Mapping[str, Callable[[Fault], str]]:
        """What is done, by the kind of fault."""
        return {
            "blobs-unmounted": self._unmount,
            "settings-differ": self._set_otherwise,
            "lease-differs": self._lease_otherwise,
            "format-differs": self._know_another_format,
            "name-taken": self._take_name,
        }

    def _standby(self, fault: Fault) -> Node:
        owner = self._nodes.owner()
        others = [node for node in self._nodes.all if node is not owner]
        return others[int(fault.choice * len(others))]

    def _unmount(self, fault: Fault) -> str:
        """It looks at an empty folder, and takes part again once that is mounted."""
        node = self._standby(fault)
        node.kill()
        self._nodes.unmount(node)
        node.start()
        self._watch(node, "without its blobs", BLOBS, event="node.unfit", fault=fault)
        self._nodes.mount(node)
        if not node.waits_for("node.fit", s=FIT_AGAIN_S):
            self._note_harm(f"it is not fit {FIT_AGAIN_S:g} s after its blobs are there again")
        return f"{node.name} without its blobs"

    def _set_otherwise(self, fault: Fault) -> str:
        setting = SETTINGS[int(fault.choice * 2 % 1 * len(SETTINGS))]
        return self._start_with(setting, fault)

    def _lease_otherwise(self, fault: Fault) -> str:
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

    def _watch(self, node: Node, how: str, named: str, event: str, fault: Fault) -> None:
        """See what becomes of a node that differs, before and after the owner is killed."""
        is_told = node.waits_for(event, named)
        is_examined = named in self._commands.complaints()
        owner = self._nodes.owner()
        owner.kill()
        self._nodes.owner()
        self._pause.wait(fault.for_s)
        has_claimed = bool(node.logged("shard.claimed"))
        self.seen.append(
            Differing(
                node.name,
                how,
                named,
                is_told=is_told,
                is_examined=is_examined,
                has_claimed=has_claimed,
            )
        )
        owner.start()

    def _know_another_format(self, fault: Fault) -> str:
        """An older version does not start; a newer one takes part and writes what the others can
        read, so that it may be replaced by what was there before."""
        node = self._standby(fault)
        is_older = fault.choice * 2 % 1 < 0.5
        format = FORMAT - 1 if is_older else FORMAT + 1
        how = f"which knows format {format}"
        node.kill()
        node.machine.know_format(format)
        if is_older:
            named = f"the cluster writes format {FORMAT}"
            reason = _refusal(node)
            # the doctor sees a node that is not there
            is_examined = f"{node.name} is gone" in self._commands.complaints()
            found = Differing(
                node.name,
                how,
                named,
                is_told=named in reason,
                is_examined=is_examined,
                has_claimed=not reason,
            )
            self.seen.append(found)
            node.close()
        else:
            node.start()
            owner = self._nodes.owner()
            owner.kill()
            self._nodes.owner()
            self._pause.wait(fault.for_s)
            owner.start()
            node.kill()
        node.machine.know_format(None)
        node.start()
        return f"{node.name}, {how}"

    def _take_name(self, fault: Fault) -> str:
        """A second process with a node's name is refused; the first one goes on. A machine that is
        busy may cost it its lease, which is not the second one's doing: that one claims nothing."""
        node = self._nodes.owner() if fault.choice < 0.5 else self._standby(fault)
        is_owner = node.epoch_served > 0
        rival = self._nodes.rival(node)
        named = f"node {node.name} is already running"
        reason = _refusal(rival)
        has_claimed = bool(rival.logged("shard.claimed"))
        rival.close()
        said = node.look()
        harmed = f"the first process ended: {said}" if said else ""
        # the doctor sees one node of this name, which is well
        found = Differing(
            node.name,
            "a second one",
            named,
            is_told=named in reason,
            is_examined=True,
            has_claimed=has_claimed,
        )
        self.seen.append(replace(found, harmed=harmed))
        return f"{node.name}, {'the owner' if is_owner else 'a standby'}"

    def _note_harm(self, what: str) -> None:
        self.seen[-1] = replace(self.seen[-1], harmed=what)


def _refusal(node: Node) -> str:
    """Why a node does not start, or ends soon after; empty if it goes on."""
    try:
        node.start()
    except ServerDidNotStart as failure:
        return _reason_in(str(failure))
    node.waits_for("realm.failed")
    return _reason_in(node.running.log)


def _reason_in(log: str) -> str:
    for line in log.splitlines():
        if '"realm.failed"' in line:
            return str(msgspec.json.decode(line)["reason"])
    return ""
