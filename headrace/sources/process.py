"""Replicator process: forked by the fork server, or ``python -m headrace.sources.process``.

The process ends when its parent dies.  Killing it at any moment loses nothing (``replicator.py``).
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import structlog

from headrace import events
from headrace.config import Settings
from headrace.process import entry, imports
from headrace.sources.replicator import SourceCarrier

_log = structlog.get_logger(__name__)


class _Running:
    """A replicator on its thread."""

    def __init__(self, settings: Settings) -> None:
        self._carrier = SourceCarrier(settings, settings.carrier)
        self._thread = threading.Thread(target=self._run, name="carrier", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._carrier.run()
        except Exception:  # noqa: BLE001  any bug ends the process
            _log.exception("carrier ended by a bug")
            os._exit(1)  # the commander starts another

    def status(self) -> dict[str, Any]:
        """Return whether the thread is alive."""
        return {"alive": self._thread.is_alive()}

    def close(self) -> None:
        """Stop the replicator and wait for its thread."""
        self._carrier.stop()
        self._thread.join()


async def _main() -> None:
    settings = Settings.from_env()
    imports.keep_pandas_out()
    name = f"source {settings.carrier}"
    events.start(settings, name)
    await entry.stand(name, settings.worker_socket, lambda: _Running(settings))


def main() -> int:
    """Run the process; return exit status 0 after a clean end, 1 after an error."""
    return entry.run(_main)


if __name__ == "__main__":
    sys.exit(main())
