"""``python -m tests.fuzz --seconds 600``: random inputs for all code that reads bytes of others.

Each target gets an equal share of the time; ``--only NAME`` chooses some. With ``--atheris`` (from
the dependency group ``fuzz``) inputs are guided by the code that earlier ones reached, and each
target has a separate process; without it a seed decides. ``served`` is a realm in a separate
process, under requests with extreme values over every protocol. It must survive, use less memory
than ``--memory-mib``, and answer the pings of an administrator within ``--ping-ms`` of its
processor time. An input may take at most 5 s of processor time, and all inputs together at most
``--memory-mib`` more memory than the process had before. ``--examples`` makes a run of a fixed
size. An input that breaks a target is printed with the options that repeat it: ``--input HEX`` or
``--input-file FILE``.
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
"""Memory that the inputs of a target may take in addition to that of the process at the start."""
SERVED_MEMORY_MIB: Final = 400
"""Memory that the process of `served` may have."""


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # suppress all logs
    names = options.only or [*(name for name in TARGETS if not missing(name)), served.NAME]
    if options.input is not None or options.input_file is not None:
        _repeat(names[0], options)
        return 0
    whole_s = (options.seconds or 0.0) + 60 * options.minutes or SECONDS
    with contextlib.ExitStack() as ends:
        corpora = options.corpus or Path(ends.enter_context(tempfile.TemporaryDirectory()))
        return 1 if _run_all(names, whole_s, options, corpora=corpora) else 0


def _run_all(names: list[str], seconds: float, options: argparse.Namespace, corpora: Path) -> int:
    """Run each name for its share of the time; return the number of broken inputs."""
    broken = 0
    if served.NAME in names:  # `served` gets as much time as all other targets together
        names = [name for name in names if name != served.NAME]
        seconds = seconds / 2 if names else seconds
        broken += _attack_served(options, seconds, corpora / served.NAME)
    if not names:
        return broken
    seconds /= len(names)
    memory_mib = MEMORY_MIB if options.memory_mib is None else options.memory_mib
    if options.atheris:
        for name in names:
            played = guided.play(name, seconds, memory_mib, corpus=corpora / name)
            broken += len(played.broken)
            for break_ in played.broken:
                sys.stdout.write(f"{break_}\n")
            reached = f"{played.reached:,} branches and comparisons"
            _report(name, played.done, len(played.broken), reached)
        return broken
    for name in names:
        for seed in TARGETS[name].seeds():
            # the valid inputs must pass, and import all code before the memory is limited
            TARGETS[name].run(seed)
    if memory_mib:
        limit_memory(memory_mib << 20)
    for name in names:
        done, count = _random(name, options.seed, seconds, examples=options.examples)
        broken += count
        _report(name, done, count)
    return broken


def _report(name: str, done: int, broken: int, *more: str) -> None:
    sys.stdout.write(", ".join((f"{name:<12} {done:>9,} inputs  {broken} broken", *more)) + "\n")
    sys.stdout.flush()


def _repeat(name: str, options: argparse.Namespace) -> None:
    """Run one input again, or the requests in a file of `served`."""
    if options.input is not None:
        content = bytes.fromhex(options.input)
    else:
        content = options.input_file.read_bytes()
    if name == served.NAME:
        served.replay(content, SERVED_MEMORY_MIB << 20)
    else:
        TARGETS[name].run(content)


def passes(name: str, target: Target, data: bytes) -> bool:
    """Return whether a target handles an input; print the input if not."""
    try:
        with in_time():
            target.run(data)
    except Exception as error:  # # noqa: BLE001  any error is a finding
        sys.stdout.write(f"{name}: {error!r}\n  --only {name} --input {data.hex()}\n")
        return False
    return True


def _attack_served(options: argparse.Namespace, seconds: float, corpus: Path) -> int:
    """Attack a realm in a separate process; return 1 if it broke."""

    def report(outcome: served.Outcome) -> None:
        own_mib, resident_mib = outcome.memory_bytes >> 20, outcome.resident_bytes >> 20
        more = [f"{own_mib} MiB of memory at most ({resident_mib} MiB with mapped files)"]
        if outcome.pings:
            slowest = f"{1_000 * outcome.slowest_s:.0f} ms of processor time at most"
            more.append(f"{outcome.pings:,} pings of {slowest}")
        if outcome.branches:
            reached = f"{outcome.reached:,} of {outcome.branches:,} branches"
            more += [reached, f"{outcome.kept:,} inputs kept"]
        _report(served.NAME, outcome.done, int(bool(outcome.broken)), *more)

    outcome = served.attack(
        options.seed,
        seconds=seconds,
        examples=options.examples,
        memory_bytes=(options.memory_mib or SERVED_MEMORY_MIB) << 20,
        ping_s_max=options.ping_ms / 1_000,
        corpus=corpus if options.atheris else None,
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
        broken += not passes(name, target, mutated(random, seeds))
        done += 1
        if broken == 5:
            break
    return done, broken


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    names: Sequence[str] = (*TARGETS, served.NAME)
    parser.add_argument("--only", nargs="*", choices=names, help="only these targets")
    parser.add_argument(
        "--seconds", type=float, help="seconds of all targets together; default 120"
    )
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="minutes in addition to --seconds"
    )
    parser.add_argument(
        "--examples", type=int, default=0, help="inputs for each target instead of a time"
    )
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
