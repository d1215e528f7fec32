"""``python -m tests.fuzz --seconds 600``: inputs without end for everything that reads bytes.

Each target gets its share of the time; ``--only NAME`` chooses some. With ``--atheris`` (from
the dependency group ``fuzz``) new inputs follow what code they reach; without, they are drawn
from a seed.
``served`` is a realm in a process of its own, under requests of extreme values over every
protocol: it has to live, keep to ``--memory-mib`` more than at its start, and answer an
administrator within ``--ping-ms``.
No input may take more than 5 s of processor time, nor all of them more than ``--memory-mib``
beyond what there is before the first. ``--examples`` is for a run of a fixed size. An input that
breaks a target is printed, with how to try it again: ``--input HEX``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final

import structlog

from tests.fuzz import served
from tests.fuzz.bounding import in_time, limit_memory
from tests.fuzz.mutating import mutated
from tests.fuzz.targets import TARGETS, Target, missing

SECONDS: Final = 120.0


def main(arguments: list[str]) -> int:
    asked = _parser().parse_args(arguments)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # nothing is printed
    names = asked.only or [*(name for name in TARGETS if not missing(name)), served.NAME]
    whole_s = (asked.seconds or 0.0) + 60 * asked.minutes
    seconds = (whole_s or SECONDS) / len(names)
    if asked.input_file is not None:
        served.replay(asked.input_file.read_bytes(), asked.memory_mib << 20)
        return 0
    if asked.input is not None:
        TARGETS[names[0]].run(bytes.fromhex(asked.input))
        return 0
    broken = 0
    if served.NAME in names:
        names.remove(served.NAME)
        broken += _served(asked, seconds)
        if not names:
            return 1 if broken else 0
    for name in names:
        for seed in TARGETS[name].seeds():
            TARGETS[name].run(seed)  # what is right is taken; and all of it is imported
    if asked.memory_mib and not asked.atheris:  # that one has a limit of its own
        limit_memory(asked.memory_mib << 20)
    if asked.atheris:
        return _guided(names[0], seconds)
    for name in names:
        done, found = _random(name, asked.seed, seconds, asked.examples)
        broken += found
        sys.stdout.write(f"{name:<12} {done:>9,} inputs  {found} broken\n")
        sys.stdout.flush()
    return 1 if broken else 0


def tried(name: str, target: Target, data: bytes) -> bool:
    """Whether a target takes an input well; says so if it does not."""
    try:
        with in_time():
            target.run(data)
    except Exception as error:  # noqa: BLE001  any of them is what is looked for
        sys.stdout.write(f"{name}: {error!r}\n  --only {name} --input {data.hex()}\n")
        return False
    return True


def _served(asked: argparse.Namespace, seconds: float) -> int:
    """How often a realm in a process of its own has broken."""
    memory_bytes, ping_s_max = asked.memory_mib << 20, asked.ping_ms / 1_000
    outcome = served.attack(
        asked.seed,
        seconds=seconds,
        examples=asked.examples,
        memory_bytes=memory_bytes,
        ping_s_max=ping_s_max,
    )
    if outcome.broken:
        sys.stdout.write(f"{served.NAME}: {outcome.broken}\n")
    found = bool(outcome.broken)
    slowest = f", an administrator was answered within {1_000 * outcome.slowest_s:.0f} ms"
    said = f"{served.NAME:<12} {outcome.done:>9,} inputs  {found:d} broken"
    sys.stdout.write(f"{said}{slowest if ping_s_max else ''}\n")
    sys.stdout.flush()
    return found


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


def _guided(name: str, seconds: float) -> int:
    """Inputs that follow what code they reach; ends the process by itself."""
    import tempfile
    from pathlib import Path

    import atheris

    target = TARGETS[name]
    run: Callable[[bytes], None] = target.run
    atheris.instrument_all()
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(target.seeds()):
            (Path(corpus) / str(number)).write_bytes(seed)
        atheris.Setup([sys.argv[0], f"-max_total_time={seconds:.0f}", corpus], run)
        atheris.Fuzz()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    names: Sequence[str] = (*TARGETS, served.NAME)
    parser.add_argument("--only", nargs="*", choices=names, help="these targets alone")
    parser.add_argument("--seconds", type=float, help="of all together; 120 if not given")
    parser.add_argument("--minutes", type=float, default=0.0, help="as many more")
    parser.add_argument("--examples", type=int, default=0, help="inputs a target, not seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory-mib", type=int, default=768, help="at most so much more; 0: any")
    parser.add_argument("--ping-ms", type=float, default=500.0, help="of `served`; 0: any time")
    parser.add_argument("--atheris", action="store_true", help="guided by coverage; one target")
    parser.add_argument("--input", help="one input, in hexadecimal digits, for one target")
    parser.add_argument("--input-file", type=Path, help="one input of `served`, as it wrote it")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
