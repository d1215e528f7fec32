"""``python -m tests.faults --seed 4711 --minutes 5 --loops 3``: real faults for real processes.

Each loop has the seed after the one before. Prints a table; ``--json FILE`` keeps all of it.
Exit status 1: something did not hold; the seed is with it, and its files stay where it says.
With ``--cluster`` the realm is three nodes over three servers of an engine (``--engine``);
``--times COUNT`` plays each kind of fault so often instead of its share of the minutes, and
``--pauses COUNT`` measures so many takeovers of each way instead of faults, on a realm with so many
``--events`` and so many ``--sessions``. There are two controls there.
``--wrong SETTING``: exit status 0 says that no node starts on an engine with that setting.
``--unfenced``: exit status 0 says that a run on nodes without the fence was found to do harm.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from msgspec.structs import replace

from tests.faults import nemesis, report, run
from tests.faults.cluster import engines, schedule, unfenced, wrong
from tests.faults.cluster import report as cluster_report
from tests.faults.cluster import run as cluster_run
from tests.faults.cluster.report import ClusterLoop
from tests.faults.report import Loop


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGTERM, _end)
    asked = _parser().parse_args(arguments)
    kinds = schedule.KINDS if asked.cluster else nemesis.KINDS
    if unknown := [kind for kind in asked.only or () if kind not in kinds]:
        sys.stderr.write(f"--only {unknown[0]}: choose from {', '.join(kinds)}\n")
        return 2
    if complaint := _complaint(asked):
        sys.stderr.write(f"{complaint}\n")
        return 2
    if asked.wrong:
        return _control(asked)
    if asked.unfenced:
        return _play_unfenced(asked)
    loops: list[Loop | ClusterLoop] = []
    for number in range(asked.loops):
        loops.append(_play(asked, asked.seed + number))
        if asked.json:
            asked.json.write_bytes(report.as_json(loops))
    single = [loop for loop in loops if isinstance(loop, Loop)]
    for loop in loops:
        if isinstance(loop, ClusterLoop):
            sys.stdout.write(f"{cluster_report.table(loop)}\n")
    if single:
        sys.stdout.write(report.table(single))
    return 0 if all(loop.is_well for loop in loops) else 1


def _complaint(asked: argparse.Namespace) -> str:
    """Why nothing can be played as it was asked for."""
    given = {
        "--wrong": asked.wrong,
        "--unfenced": asked.unfenced,
        "--pauses": asked.pauses,
        "--times": asked.times,
        "--engine": asked.engine != cluster_run.ENGINE,
    }
    if not asked.cluster:
        return next(
            (f"{name} goes with --cluster" for name, is_given in given.items() if is_given), ""
        )
    if (asked.events or asked.sessions) and not asked.pauses:
        return "--events and --sessions go with --pauses"
    if asked.sessions and not asked.events:
        return "--sessions goes with --events: they subscribe to the channel that has these"
    if reason := engines.kinds()[asked.engine].missing():
        return f"--engine {asked.engine}: {reason}"
    return ""


def _play(asked: argparse.Namespace, seed: int) -> Loop | ClusterLoop:
    """One loop. Its files stay unless everything held."""
    folder = Path(tempfile.mkdtemp(prefix=f"faults-{seed}-", dir=asked.keep))
    loop: Loop | ClusterLoop | None = None
    try:
        if asked.cluster:
            loop = _play_cluster(asked, seed, folder)
        else:
            given = run.Given(seed, asked.minutes, folder, cases=asked.cases)
            given = replace(given, kinds=asked.only or given.kinds, may_mount=not asked.no_mount)
            loop = run.play(given)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    finally:
        if loop is None or not loop.is_well:
            sys.stderr.write(f"seed {seed}: VIOLATED; everything of it is in {folder}\n")
        else:
            sys.stderr.write(f"seed {seed}: well\n")
            if asked.keep is None:
                shutil.rmtree(folder)
    return loop


def _play_cluster(asked: argparse.Namespace, seed: int, folder: Path) -> ClusterLoop:
    given = _given(asked, seed, folder)
    if asked.pauses:
        cast = cluster_run.MEASURED_CAST
        given = replace(
            given,
            minutes=0.0,
            pauses=asked.pauses,
            cast=cast,
            events=asked.events,
            sessions=asked.sessions,
        )
    return cluster_run.play(replace(given, kinds=asked.only or given.kinds, times=asked.times))


def _given(asked: argparse.Namespace, seed: int, folder: Path) -> cluster_run.ClusterGiven:
    return cluster_run.ClusterGiven(
        seed, asked.minutes, folder, lease_s=asked.lease, engine=asked.engine
    )


def _play_unfenced(asked: argparse.Namespace) -> int:
    """Owners are frozen that go on without the fence: it is well that this is found."""
    with tempfile.TemporaryDirectory(prefix="faults-unfenced-", dir=asked.keep) as folder:
        given = _given(asked, asked.seed, Path(folder))
        found = unfenced.harm(replace(given, program=unfenced.PROGRAM))
    told = f"found: {found}" if found else "VIOLATED: nothing was found"
    sys.stdout.write(f"nodes without the fence: {told}\n")
    return 0 if found else 1


def _control(asked: argparse.Namespace) -> int:
    """An engine with a wrong setting: it is well that no node starts on it."""
    with tempfile.TemporaryDirectory(prefix="faults-wrong-", dir=asked.keep) as folder:
        reason = wrong.refusal(asked.wrong, Path(folder), asked.lease)
    told = f"refused at the start: {reason}" if reason else "VIOLATED: a node starts and serves"
    sys.stdout.write(f"{asked.wrong}: {told}\n")
    return 0 if reason else 1


def _end(_signal: int, _frame: FrameType | None) -> None:
    """Whoever is asked to end takes along what it has started."""
    sys.exit(128 + signal.SIGTERM)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first loop")
    parser.add_argument("--minutes", type=float, default=1.0, help="of faults in a loop")
    parser.add_argument("--loops", type=int, default=1)
    parser.add_argument("--cases", type=int, default=10, help="of damaged files in a loop")
    parser.add_argument("--only", nargs="*", metavar="FAULT", help="these faults alone")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    parser.add_argument("--keep", type=Path, help="an existing folder to leave all files in")
    parser.add_argument("--no-mount", action="store_true", help="as on a machine without rights")
    parser.add_argument("--cluster", action="store_true", help="three nodes over an engine")
    parser.add_argument("--lease", type=float, default=cluster_run.LEASE_S, help="of its owner")
    parser.add_argument(
        "--engine", choices=tuple(engines.kinds()), default=cluster_run.ENGINE, help="of a cluster"
    )
    parser.add_argument("--times", type=int, default=0, help="each kind of fault in a cluster")
    parser.add_argument("--pauses", type=int, default=0, help="takeovers of each way to measure")
    parser.add_argument("--events", type=int, default=0, help="that a measured realm has")
    parser.add_argument("--sessions", type=int, default=0, help="that a measured realm has")
    parser.add_argument("--unfenced", action="store_true", help="a control: it has to find harm")
    parser.add_argument("--wrong", choices=tuple(wrong.SETTINGS), help="a control of a cluster")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
