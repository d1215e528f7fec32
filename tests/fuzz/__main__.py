"""``python -m tests.fuzz --seconds 600``: inputs without end for everything that reads bytes.

Each target gets its share of the time; ``--only NAME`` chooses some. With ``--atheris`` (from
the dependency group ``fuzz``) inputs follow the code that earlier ones reached, and each target has
a process of its own; without, a seed decides.
``served`` is a realm in a process of its own, under requests of extreme values over every
protocol. It has to live, to have less memory than ``--memory-mib``, and to answer the pings of an
administrator within ``--ping-ms`` of its processor time.
No input may take more than 5 s of processor time, nor all of them more than ``--memory-mib``
beyond the memory before the first. ``--examples`` is for a run of a fixed size. An input that
breaks a target is printed, with how to try it again: ``--input HEX`` or ``--input-file FILE``.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import structlog

from tests.fuzz import guided, served
from tests.fuzz.bounding import in_time, limit_memory
from tests.fuzz.mutating import mutated
from tests.fuzz.targets import TARGETS, Target, missing

SECONDS: Final = 120.0
MEMORY_MIB: Final = 768
"""Memory that the inputs of a target may take beyond that of its process at the start."""
SERVED_MEMORY_MIB: Final = 400
"""Bound on the memory of the process of `served`."""


def main(arguments: list[str]) -> int:
    asked = _parser().parse_args(arguments)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # nothing is printed
    names = asked.only or [*(name for name in TARGETS if not missing(name)), served.NAME]
    if asked.input is not None or asked.input_file is not None:
        _repeat(names[0], asked)
        return 0
    whole_s = (asked.seconds or 0.0) + 60 * asked.minutes or SECONDS
    with contextlib.ExitStack() as ends:
        corpora = asked.corpus or Path(ends.enter_context(tempfile.TemporaryDirectory()))
        return 1 if _all(names, whole_s, asked, corpora=corpora) else 0


def _all(names: list[str], seconds: float, asked: argparse.Namespace, corpora: Path) -> int:
    """Play each name for its share of the time; return how many inputs broke something."""
    broken = 0
    if served.NAME in names:  # it gets as much time as all others together
        names = [name for name in names if name != served.NAME]
        seconds = seconds / 2 if names else seconds
        broken += _served(asked, seconds, corpora / served.NAME)
    if not names:
        return broken
    seconds /= len(names)
    memory_mib = MEMORY_MIB if asked.memory_mib is None else asked.memory_mib
    if asked.atheris:
        for name in names:
            played = guided.play(name, seconds, memory_mib, corpus=corpora / name)
            broken += len(played.broken)
            for what in played.broken:
                sys.stdout.write(f"{what}\n")
            reached = f"{played.reached:,} branches and comparisons"
            _report(name, played.done, len(played.broken), reached)
        return broken
    for name in names:
        for seed in TARGETS[name].seeds():
            TARGETS[name].run(seed)  # what is right is taken; and all of it is imported
    if memory_mib:
        limit_memory(memory_mib << 20)
    for name in names:
        done, count = _random(name, asked.seed, seconds, examples=asked.examples)
        broken += count
        _report(name, done, count)
    return broken


def _report(name: str, done: int, broken: int, *more: str) -> None:
    sys.stdout.write(", ".join((f"{name:<12} {done:>9,} inputs  {broken} broken", *more)) + "\n")
    sys.stdout.flush()


def _repeat(name: str, asked: argparse.Namespace) -> None:
    """Try one input again, or the requests of a file of `served`."""
    if asked.input is not None:
        content = bytes.fromhex(asked.input)
    else:
        content = asked.input_file.read_bytes()
    if name == served.NAME:
        served.replay(content, SERVED_MEMORY_MIB << 20)
    else:
        TARGETS[name].run(content)


def tried(name: str, target: Target, data: bytes) -> bool:
    """Whether a target takes an input well; says so if it does not."""
    try:
        with in_time():
            target.run(data)
    except Exception as error:  # noqa: BLE001  any of them is what is looked for
        sys.stdout.write(f"{name}: {error!r}\n  --only {name} --input {data.hex()}\n")
        return False
    return True


def _served(asked: argparse.Namespace, seconds: float, corpus: Path) -> int:
    """Attack a realm in a process of its own; return 1 if it broke."""

    def report(outcome: served.Outcome) -> None:
        own, resident = outcome.memory_bytes >> 20, outcome.resident_bytes >> 20
        more = [f"{own} MiB of memory at most ({resident} MiB with mapped files)"]
        if outcome.pings:
            slowest = f"{1_000 * outcome.slowest_s:.0f} ms of processor time at most"
            more.append(f"{outcome.pings:,} pings of {slowest}")
        if outcome.branches:
            reached = f"{outcome.reached:,} of {outcome.branches:,} branches"
            more += [reached, f"{outcome.kept:,} inputs kept"]
        _report(served.NAME, outcome.done, int(bool(outcome.broken)), *more)

    outcome = served.attack(
        asked.seed,
        seconds=seconds,
        examples=asked.examples,
        memory_bytes=(asked.memory_mib or SERVED_MEMORY_MIB) << 20,
        ping_s_max=asked.ping_ms / 1_000,
        corpus=corpus if asked.atheris else None,
        report=report,
    )
    if outcome.broken:
        sys.stdout.write(f"{served.NAME}: {outcome.broken}\n")
    report(outcome)
    return bool(outcome.broken)


def _random(name: str, seed: int, seconds: float, examples: int) -> tuple[int, int]:
    target, random = TARGETS[name], Random(f"{name}/{seed}")
    seeds = target.seeds()
    end_s = time.monotonic_ns() / 1e9 + seconds
    done = broken = 0
    while done < examples if examples else time.monotonic_ns() / 1e9 < end_s:
        broken += not tried(name, target, mutated(random, seeds))
        done += 1
        if broken == 5:
            break
    return done, broken


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    names: Sequence[str] = (*TARGETS, served.NAME)
    parser.add_argument("--only", nargs="*", choices=names, help="these targets alone")
    parser.add_argument("--seconds", type=float, help="of all together; 120 if not given")
    parser.add_argument("--minutes", type=float, default=0.0, help="as many more")
    parser.add_argument("--examples", type=int, default=0, help="inputs a target, not seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory-mib", type=int, help="bound on memory: 768 more, of `served` 400")
    parser.add_argument("--ping-ms", type=float, default=500.0, help="of `served`; 0: any time")
    parser.add_argument("--atheris", action="store_true", help="inputs follow coverage")
    parser.add_argument("--corpus", type=Path, help="keep inputs of --atheris in this folder")
    parser.add_argument("--input", help="one input, in hexadecimal digits, for one target")
    parser.add_argument("--input-file", type=Path, help="the same, or requests of `served`")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
