"""Process of another worker: a fork, or ``python -m headrace.runtime.worker_process``.

It holds the states of the views that are placed on it (``worker_service.py``).  The coordinating
worker connects to a socket in its own directory; on another machine, this process's parent relays
to the socket (``joined.py``).  The process ends when its parent dies, and cleanly on SIGTERM.
 Neither that nor SIGKILL loses anything: changes that are not durable come again.
"""

from __future__ import annotations

import os
import sys

from headrace import events
from headrace.config import Settings
from headrace.network.ends import Near, Relayed
from headrace.process import entry, imports
from headrace.runtime.worker_service import WorkerService


async def _main() -> None:
    settings = Settings.from_env()
    imports.keep_pandas_out()
    name = f"worker {settings.worker}"
    events.start(settings, name)
    # gRPC's log lines do not have the project's format.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")

    def begin() -> entry.Acts:
        host = WorkerService(settings)
        socket = settings.flight_socket(settings.worker)
        host.listen(Relayed(socket) if settings.token_file else Near(socket))
        return host

    await entry.stand(name, settings.worker_socket, begin)


def main() -> int:
    """Run the process; return exit status 0 after a clean end, 1 after an error."""
    return entry.run(_main)


if __name__ == "__main__":
    sys.exit(main())
