"""``python -m tests.faults --seed 4711 --minutes 5 --loops 3``: real faults for real processes.

Each loop uses the seed after that of the loop before. Prints a table; ``--json FILE`` writes all
figures. Exit status 1: a check failed; the output names the seed and the folder that keeps its
files. With ``--cluster`` the realm is three nodes over three servers of an engine (``--engine``).
``--times COUNT`` plays each kind of fault this many times instead of its share of the minutes.
``--pauses COUNT`` measures this many takeovers of each kind instead of faults, on a realm with
``--events`` events and ``--sessions`` sessions. A cluster has two controls: ``--wrong SETTING`` has
exit status 0 if no node starts on an engine with that setting, and ``--unfenced`` has exit status 0
if the checks notice the harm of nodes without the fence.
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
    signal.signal(signal.SIGTERM, _exit)
    options = _parser().parse_args(arguments)
    kinds = schedule.KINDS if options.cluster else nemesis.KINDS
    if unknown := [kind for kind in options.only or () if kind not in kinds]:
        sys.stderr.write(f"--only {unknown[0]}: choose from {', '.join(kinds)}\n")
        return 2
    if usage_error := _usage_error(options):
        sys.stderr.write(f"{usage_error}\n")
        return 2
    if options.wrong:
        return _control(options)
    if options.unfenced:
        return _play_unfenced(options)
    loops: list[Loop | ClusterLoop] = []
    for number in range(options.loops):
        loops.append(_play(options, options.seed + number))
        if options.json:
            options.json.write_bytes(report.as_json(loops))
    single = [loop for loop in loops if isinstance(loop, Loop)]
    for loop in loops:
        if isinstance(loop, ClusterLoop):
            sys.stdout.write(f"{cluster_report.table(loop)}\n")
    if single:
        sys.stdout.write(report.table(single))
    return 0 if all(loop.is_well for loop in loops) else 1


def _usage_error(options: argparse.Namespace) -> str:
    """Return an error text if the options do not fit together, otherwise ""."""
    are_set = {
        "--wrong": options.wrong,
        "--unfenced": options.unfenced,
        "--pauses": options.pauses,
        "--times": options.times,
        "--engine": options.engine != cluster_run.ENGINE,
    }
    if not options.cluster:
        return next(
            (f"{name} goes with --cluster" for name, is_set in are_set.items() if is_set), ""
        )
    if (options.events or options.sessions) and not options.pauses:
        return "--events and --sessions go with --pauses"
    if options.sessions and not options.events:
        return "--sessions goes with --events: they subscribe to the channel that has these"
    if reason := engines.kinds()[options.engine].missing():
        return f"--engine {options.engine}: {reason}"
    return ""


def _play(options: argparse.Namespace, seed: int) -> Loop | ClusterLoop:
    """Play one loop. Its files are removed only if every check passed."""
    folder = Path(tempfile.mkdtemp(prefix=f"faults-{seed}-", dir=options.keep))
    loop: Loop | ClusterLoop | None = None
    try:
        if options.cluster:
            loop = _play_cluster(options, seed, folder)
        else:
            settings = run.LoopSettings(seed, options.minutes, folder, cases=options.cases)
            settings = replace(
                settings, kinds=options.only or settings.kinds, may_mount=not options.no_mount
            )
            loop = run.play(settings)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    finally:
        if loop is None or not loop.is_well:
            sys.stderr.write(f"seed {seed}: VIOLATED; everything of it is in {folder}\n")
        else:
            sys.stderr.write(f"seed {seed}: well\n")
            if options.keep is None:
                shutil.rmtree(folder)
    return loop


def _play_cluster(options: argparse.Namespace, seed: int, folder: Path) -> ClusterLoop:
    settings = _cluster_settings(options, seed, folder)
    if options.pauses:
        cast = cluster_run.MEASURED_CAST
        settings = replace(
            settings,
            minutes=0.0,
            pauses=options.pauses,
            cast=cast,
            events=options.events,
            sessions=options.sessions,
        )
    return cluster_run.play(
        replace(settings, kinds=options.only or settings.kinds, times=options.times)
    )


def _cluster_settings(
    options: argparse.Namespace, seed: int, folder: Path
) -> cluster_run.ClusterSettings:
    return cluster_run.ClusterSettings(
        seed, options.minutes, folder, lease_s=options.lease, engine=options.engine
    )


def _play_unfenced(options: argparse.Namespace) -> int:
    """Freeze owners that run without the fence. The control passes if the checks notice the
    harm."""
    with tempfile.TemporaryDirectory(prefix="faults-unfenced-", dir=options.keep) as folder:
        settings = _cluster_settings(options, options.seed, Path(folder))
        harm = unfenced.harm(replace(settings, program=unfenced.PROGRAM))
    result = f"found: {harm}" if harm else "VIOLATED: nothing was found"
    sys.stdout.write(f"nodes without the fence: {result}\n")
    return 0 if harm else 1


def _control(options: argparse.Namespace) -> int:
    """Start a node on an engine with a wrong setting. The control passes if the node refuses to
    start."""
    with tempfile.TemporaryDirectory(prefix="faults-wrong-", dir=options.keep) as folder:
        reason = wrong.refusal(options.wrong, Path(folder), options.lease)
    result = f"refused at the start: {reason}" if reason else "VIOLATED: a node starts and serves"
    sys.stdout.write(f"{options.wrong}: {result}\n")
    return 0 if reason else 1


def _exit(_signal: int, _frame: FrameType | None) -> None:
    """Exit on SIGTERM, so that the processes of this run are ended, too."""
    sys.exit(128 + signal.SIGTERM)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of the first loop")
    parser.add_argument("--minutes", type=float, default=1.0, help="minutes of faults in a loop")
    parser.add_argument("--loops", type=int, default=1)
    parser.add_argument("--cases", type=int, default=10, help="damaged files in a loop")
    parser.add_argument("--only", nargs="*", metavar="FAULT", help="these faults alone")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    parser.add_argument("--keep", type=Path, help="an existing folder that keeps all files")
    parser.add_argument("--no-mount", action="store_true", help="as on a machine without rights")
    parser.add_argument("--cluster", action="store_true", help="three nodes over an engine")
    parser.add_argument("--lease", type=float, default=cluster_run.LEASE_S, help="of its owner")
    parser.add_argument(
        "--engine", choices=tuple(engines.kinds()), default=cluster_run.ENGINE, help="of a cluster"
    )
    parser.add_argument("--times", type=int, default=0, help="each kind of fault in a cluster")
    parser.add_argument("--pauses", type=int, default=0, help="takeovers of each way to measure")
    parser.add_argument("--events", type=int, default=0, help="events of a measured realm")
    parser.add_argument("--sessions", type=int, default=0, help="sessions of a measured realm")
    parser.add_argument(
        "--unfenced", action="store_true", help="a control: nodes without the fence"
    )
    parser.add_argument("--wrong", choices=tuple(wrong.SETTINGS), help="a control of a cluster")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
