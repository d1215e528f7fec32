"""Targets guided by coverage: Atheris runs each in a separate process.

``python -m tests.fuzz.guided NAME SECONDS FOLDER`` is that process. It instruments the package at
import, and begins with the inputs in ``FOLDER/corpus``. An input that breaks the target ends the
process and becomes a file in ``FOLDER``.
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
"""Minimum seconds of inputs for a target, even if its share is shorter than its start."""
ENDS_S: Final = 600.0
"""Seconds after its share at which a process is killed: on a busy machine it may take minutes until
its first input."""
HANGS_S: Final = 120
"""Seconds after which libFuzzer ends a process that works on one input: C code does not notice the
limit on processor time."""
BROKEN_MAX: Final = 5
"""Number of inputs that break a target before it is given up."""
_INPUTS: Final = re.compile(r"stat::number_of_executed_units: +(\d+)")
_REACHED: Final = re.compile(r"cov: (\d+)")
_ERROR: Final = re.compile(r"=== Uncaught Python exception: ===\n(.*)")


class Played(NamedTuple):
    done: int
    """Number of inputs."""
    reached: int
    """Branches and comparisons that libFuzzer counts as reached."""
    broken: tuple[str, ...]
    """Errors, each with the file of its input."""


def play(name: str, seconds: float, memory_mib: int, corpus: Path) -> Played:
    """Run a target for a time; a process that an input has ended is followed by another."""
    done = reached = 0
    broken: list[str] = []
    end_s = time.perf_counter() + seconds
    while (left_s := end_s - time.perf_counter()) > 0 and len(broken) < BROKEN_MAX:
        outcome = _play_once(name, left_s, memory_mib, corpus=corpus)
        done, reached = done + outcome.done, max(reached, outcome.reached)
        broken += outcome.broken
        if not outcome.broken:
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
        log_text = log.read_text(errors="replace")
        inputs = sum(map(int, _INPUTS.findall(log_text)))
        reached = max(map(int, _REACHED.findall(log_text)), default=0)
        broken = [_keep_input(name, file, log_text) for file in _artifacts(folder)]
        if is_late and not broken:
            broken = [
                f"{name}: the process was ended {ENDS_S:.0f} s after its {seconds:.0f} s, and had "
                f"played {inputs} inputs: none broke it, so the machine is too busy, or it hangs "
                f"outside them:\n{log_text[-4_000:]}"
            ]
        elif status and not broken:
            broken = [f"{name}: the process ended with status {status}:\n{log_text[-4_000:]}"]
        return Played(inputs, reached, tuple(broken))


def _artifacts(folder: Path) -> list[Path]:
    kinds = ("crash-", "oom-", "timeout-", "leak-")
    return [path for path in sorted(folder.iterdir()) if path.name.startswith(kinds)]


def _keep_input(name: str, file: Path, log_text: str) -> str:
    """Keep an input that broke a target; return the error and the options that repeat it."""
    kept = Path(tempfile.gettempdir()) / f"penstock-fuzz-{name}-{file.name}"
    shutil.copyfile(file, kept)
    errors = _ERROR.findall(log_text)
    what = errors[-1] if errors else log_text.strip().splitlines()[-1]
    return f"{name}: {what}\n  --only {name} --input-file {kept}"


def main(arguments: list[str]) -> None:
    """Run one target until its time is up; libFuzzer ends the process."""
    name, seconds, folder, memory_mib, corpus = arguments
    begun_s = time.perf_counter()
    import atheris

    with atheris.instrument_imports(include=["penstock"]):
        from tests.fuzz.targets import TARGETS

        target = TARGETS[name]
        seeds = target.seeds()
        for seed in seeds:
            target.run(seed)  # import all modules that the target needs
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
