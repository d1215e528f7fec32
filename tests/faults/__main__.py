"""``python -m tests.faults --seed 4711 --minutes 5 --loops 3``: real faults for real processes.

Each loop has the seed after the one before. Prints a table; ``--json FILE`` keeps all of it.
Exit status 1: something did not hold; the seed is with it, and ``--keep`` leaves the files.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.faults.nemesis import KINDS
from tests.faults.report import Loop, as_json, table
from tests.faults.run import Given, play


def main(arguments: list[str]) -> int:
    asked = _parser().parse_args(arguments)
    loops: list[Loop] = []
    for number in range(asked.loops):
        seed = asked.seed + number
        folder = Path(tempfile.mkdtemp(prefix=f"faults-{seed}-", dir=asked.keep))
        try:
            given = Given(seed, asked.minutes, folder, asked.cases, asked.only or tuple(KINDS))
            loops.append(play(given._replace(may_mount=not asked.no_mount)))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            if asked.keep is None:
                shutil.rmtree(folder, ignore_errors=True)
        if asked.json:
            asked.json.write_bytes(as_json(loops))
        sys.stderr.write(f"seed {seed}: {'well' if loops[-1].is_well else 'VIOLATED'}\n")
    sys.stdout.write(table(loops))
    return 0 if all(loop.is_well for loop in loops) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first loop")
    parser.add_argument("--minutes", type=float, default=1.0, help="of faults in a loop")
    parser.add_argument("--loops", type=int, default=1)
    parser.add_argument("--cases", type=int, default=10, help="of damaged files in a loop")
    parser.add_argument("--only", nargs="*", choices=tuple(KINDS), help="these faults alone")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    parser.add_argument("--keep", type=Path, help="an existing folder to leave all files in")
    parser.add_argument("--no-mount", action="store_true", help="as on a machine without rights")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
