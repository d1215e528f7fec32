"""The progress of pipelines, read from the status files next to their checkpoints."""

from __future__ import annotations

import asyncio
import fcntl
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock_core.api.realm import PipelineInfo, PipelineStep
from penstock_core.wire.positions import positions_in

Lag = Callable[[str, int], int | None]
"""Returns how many ids a channel has from a given id on; None if the channel does not exist."""

QUERY = "query"
"""Folder of Spark's checkpoint in the folder of a step."""
RUNNING = frozenset(("starts", "runs", "restarts"))
"""States of a step whose process runs."""
STATUS_BYTES_MAX = 1 << 20
"""Size in bytes above which a file is not read as a status."""
PIPELINES_MAX = 1_000
"""Largest number of pipelines in an answer."""
LOCK_CHARACTERS_MAX = 100
"""Number of characters that are read of a lock file."""


async def pipelines_in(folders: Sequence[str], lag: Lag) -> list[PipelineInfo]:
    """Return the pipelines with checkpoints in ``folders``, sorted by name. Files that are not a
    status are skipped."""
    pipelines = await asyncio.to_thread(_read_pipelines, folders)
    return [
        replace(
            pipeline,
            steps=[replace(step, lag=_lags(step.next, lag)) for step in pipeline.steps],
        )
        for pipeline in pipelines
    ]


def _lags(positions: Mapping[str, int], lag: Lag) -> dict[str, int | None]:
    """Return the lag of a step on each channel that it reads, from the next ids that it reads."""
    return {name: lag(name, next_id) for name, next_id in positions.items()}


def _read_pipelines(folders: Sequence[str]) -> list[PipelineInfo]:
    pipelines: dict[str, PipelineInfo] = {}
    for parent in folders:
        root = Path(parent).expanduser()
        for folder in (root, *sorted(_folders(root))):
            steps = [step for path in sorted(folder.glob("*.json")) if (step := _step(path))]
            if steps and len(pipelines) < PIPELINES_MAX:
                pipelines.setdefault(folder.name, PipelineInfo(name=folder.name, steps=steps))
    return [pipelines[name] for name in sorted(pipelines)]


def _folders(root: Path) -> list[Path]:
    """Return the folders in a folder; none if it cannot be read."""
    try:
        return [path for path in root.iterdir() if path.is_dir()]
    except OSError:
        return []


def _step(path: Path) -> PipelineStep | None:
    """Return the progress of the step with the status file ``path``; None if the file has no
    status."""
    try:
        if path.stat().st_size > STATUS_BYTES_MAX:
            return None
        status: Any = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(status, dict) or "state" not in status or "pid" not in status:
        return None
    folder = path.with_suffix("") / QUERY
    batch = _newest(folder / "commits")
    positions = {} if batch is None else _positions(folder / "offsets" / str(batch))
    return PipelineStep(
        name=path.stem,
        status=status,
        state=_state(status, path.with_name("lock")),
        batch=batch,
        next=positions,
        lag={},
    )


def _state(status: dict[str, Any], lock: Path) -> str:
    state = str(status["state"])
    return state if state not in RUNNING or _runs(status["pid"], lock) else "broken off"


def _runs(pid: object, lock: Path) -> bool:
    """Whether the process that wrote a status still holds the lock of the pipeline. The lock may
    belong to another process that runs other steps."""
    try:
        with lock.open() as file:
            # A running pipeline holds an exclusive lock, so this shared lock then fails.
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = re.match(r"process (\d+)", file.read(LOCK_CHARACTERS_MAX))
                return holder is None or int(holder[1]) == pid
    except (OSError, UnicodeDecodeError):
        return False
    return False


def _newest(folder: Path) -> int | None:
    """Return the largest number that is a file name in a folder of Spark's checkpoint; None without
    one."""
    try:
        return max((int(p.name) for p in folder.iterdir() if p.name.isdecimal()), default=None)
    except OSError:
        return None


def _positions(path: Path) -> dict[str, int]:
    """Return the positions in an entry of Spark's offset log, which has a line of JSON for each
    source."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    return {name: next_id for line in lines for name, next_id in positions_in(line).items()}
