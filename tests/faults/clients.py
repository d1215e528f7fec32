"""A process with some publishers and consumers: ``python -m tests.faults.clients URL MQTT FOLDER
ROLE…``

MQTT has the host and port of each MQTT server, separated by commas. A role is a publisher
(``single``), or a consumer and its number (``shared.2``). The process works until SIGTERM, or until
one role fails; then it prints the reason and exits with status 1.
"""

from __future__ import annotations

import sys
import threading
import traceback
from pathlib import Path

from tests.faults.consuming import Consumer
from tests.faults.names import TARGETS
from tests.faults.processes import listen_to
from tests.faults.publishing import Publisher


def main(arguments: list[str]) -> int:
    url, mqtt_at, folder, *roles = arguments
    stop = threading.Event()
    failures: list[str] = []

    def play(role: str) -> None:
        kind, _, number = role.partition(".")
        player: Publisher | Consumer
        try:
            if kind in TARGETS:
                player = Publisher(kind, url, mqtt_at, folder=Path(folder), stop=stop)
            else:
                player = Consumer(
                    kind, int(number), url, mqtt_at=mqtt_at, folder=Path(folder), stop=stop
                )
            player.run()
        except Exception:  # # noqa: BLE001  the root of a thread: the run reports the error
            if not stop.is_set():
                failures.append(f"{role}: {traceback.format_exc()}")
            stop.set()

    listen_to(stop.set)
    threads = [threading.Thread(target=play, args=(role,), name=role) for role in roles]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)  # short waits, so that signals are handled
    sys.stderr.writelines(failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
