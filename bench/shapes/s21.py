"""S21: one publish of one event after the other over HTTP, on a connection that is kept open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import http_peers
from bench.http_load import HttpJob, load
from bench.shape import Case, Figures


class OverHttp:
    """A request publishes one event of 128 B with three properties; its answer confirms it. No
    consumer reads."""

    name = "S21"
    title = f"HTTP: sequential publishes of {http_peers.SIZE} B over one connection"
    figure = "p50_us"
    higher_is_better = False
    contenders: Sequence[str] = http_peers.CONTENDERS

    def cases(self, *, quick: bool) -> Sequence[Case]:
        seconds = 0.2 if quick else 5.0
        return [
            Case("one event per request", durability, {"seconds": seconds})
            for durability in (("D1",) if quick else ("D1", "D2"))
        ]

    def versions(self) -> Mapping[str, str]:
        """The versions of the contenders that are installed here."""
        return http_peers.versions_of(self.contenders)

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        stored = directory / "stored"
        stored.mkdir()
        with http_peers.served(contender, stored, case.durability) as target:
            return load(
                HttpJob(
                    target.port,
                    target.pid,
                    target.request,
                    expected=target.expected,
                    seconds=case["seconds"],
                )
            )


SHAPE = OverHttp()
