"""Targets guided by coverage: Atheris plays each in a process of its own.

``python -m tests.fuzz.guided NAME SECONDS FOLDER`` is that process. It instruments the package as
it imports it, and begins with the inputs in ``FOLDER/corpus``. An input that breaks the target ends
the process and becomes a file in ``FOLDER``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from tests.fuzz.bounding import in_time, resident_bytes

LEAST_S: Final = 5.0
"""Seconds of inputs that a target gets even where its share is shorter than its start."""
ENDS_S: Final = 600.0
"""Seconds after its share at which a process is ended: on a busy machine minutes go by before its
first input."""
HANGS_S: Final = 120
"""Seconds of one input after which libFuzzer ends the process: code in C does not notice that its
processor time is up."""
BROKEN_MAX: Final = 5
"""Inputs that break a target, after which it is not played any more."""
_INPUTS: Final = re.compile(r"stat::number_of_executed_units: +(\d+)")
_REACHED: Final = re.compile(r"cov: (\d+)")
_ERROR: Final = re.compile(r"=== Uncaught Python exception: ===\n(.*)")


class Played(NamedTuple):
    done: int
    """Inputs of the process."""
    reached: int
    """Branches and comparisons that libFuzzer counts as reached."""
    broken: tuple[str, ...]
    """What broke, with the file of the input."""


def play(name: str, seconds: float, memory_mib: int, corpus: Path) -> Played:
    """Play a target for a time; a process that an input ended is followed by another."""
    done = reached = 0
    broken: list[str] = []
    end_s = time.perf_counter() + seconds
    while (left_s := end_s - time.perf_counter()) > 0 and len(broken) < BROKEN_MAX:
        one = _play_once(name, left_s, memory_mib, corpus=corpus)
        done, reached = done + one.done, max(reached, one.reached)
        broken += one.broken
        if not one.broken:
            break
    return Played(done, reached, tuple(broken))


def _play_once(name: str, seconds: float, memory_mib: int, corpus: Path) -> Played:
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as scratch:
        folder, log = Path(scratch), Path(scratch) / "log"
        command = [sys.executable, "-m", "tests.fuzz.guided", name, str(seconds), scratch]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, str(memory_mib), str(corpus)], stdout=out, stderr=out
            )
            try:
                status = process.wait(seconds + ENDS_S)
                is_late = False
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
                is_late = True
        told = log.read_text(errors="replace")
        inputs = sum(map(int, _INPUTS.findall(told)))
        reached = max(map(int, _REACHED.findall(told)), default=0)
        broken = [_kept(name, file, told) for file in _artifacts(folder)]
        if is_late and not broken:
            broken = [
                f"{name}: the process was ended {ENDS_S:.0f} s after its {seconds:.0f} s, and had "
                f"played {inputs} inputs: none broke it, so the machine is too busy, or it hangs "
                f"outside them:\n{told[-4_000:]}"
            ]
        elif status and not broken:
            broken = [f"{name}: the process ended with status {status}:\n{told[-4_000:]}"]
        return Played(inputs, reached, tuple(broken))


def _artifacts(folder: Path) -> list[Path]:
    kinds = ("crash-", "oom-", "timeout-", "leak-")
    return [path for path in sorted(folder.iterdir()) if path.name.startswith(kinds)]


def _kept(name: str, file: Path, told: str) -> str:
    """Keep an input that broke a target; return what happened and how to repeat it."""
    kept = Path(tempfile.gettempdir()) / f"penstock-fuzz-{name}-{file.name}"
    shutil.copyfile(file, kept)
    errors = _ERROR.findall(told)
    what = errors[-1] if errors else told.strip().splitlines()[-1]
    return f"{name}: {what}\n  --only {name} --input-file {kept}"


def main(arguments: list[str]) -> None:
    """Play one target until its time is up; libFuzzer ends the process."""
    name, seconds, folder, memory_mib, corpus = arguments
    begun_s = time.perf_counter()
    import atheris

    with atheris.instrument_imports(include=["penstock"]):
        from tests.fuzz.targets import TARGETS

        target = TARGETS[name]
        seeds = target.seeds()
        for seed in seeds:
            target.run(seed)  # imports all modules that it needs
    place = Path(corpus)
    place.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds):
        (place / f"seed-{number}").write_bytes(seed)

    def run(data: bytes) -> None:
        with in_time():
            target.run(data)

    seconds_left = max(LEAST_S, float(seconds) - (time.perf_counter() - begun_s))
    limit_mib = (resident_bytes() >> 20) + int(memory_mib)
    options = [
        f"-max_total_time={seconds_left:.0f}",
        f"-rss_limit_mb={limit_mib}",
        f"-timeout={HANGS_S}",
        f"-artifact_prefix={folder}/",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, corpus], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
