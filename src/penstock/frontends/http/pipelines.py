"""How far pipelines are, read from what their runs keep beside their checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from penstock.frontends.http.realm_shapes import PipelineAnswer, PipelineStep

STATUS_BYTES_MAX = 1 << 20
PIPELINES_MAX = 1_000


async def pipelines_in(folders: Sequence[str]) -> list[PipelineAnswer]:
    """The pipelines whose checkpoints are in ``folders``, by name; what is no status is not
    shown."""
    return await asyncio.to_thread(_all, folders)


def _all(folders: Sequence[str]) -> list[PipelineAnswer]:
    found: dict[str, PipelineAnswer] = {}
    for folder in folders:
        root = Path(folder).expanduser()
        for place in (root, *sorted(_folders(root))):
            steps = [step for path in sorted(place.glob("*.json")) if (step := _step(path))]
            if steps and len(found) < PIPELINES_MAX:
                found.setdefault(place.name, PipelineAnswer(name=place.name, steps=steps))
    return [found[name] for name in sorted(found)]


def _folders(root: Path) -> list[Path]:
    try:
        return [path for path in root.iterdir() if path.is_dir()]
    except OSError:
        return []


def _step(path: Path) -> PipelineStep | None:
    try:
        if path.stat().st_size > STATUS_BYTES_MAX:
            return None
        status: Any = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    if not isinstance(status, dict) or "state" not in status or "pid" not in status:
        return None
    return PipelineStep(name=path.stem, status=status)
