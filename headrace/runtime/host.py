"""The process of another worker: a fork of the nursery, or ``python -m headrace.runtime.host``.

It holds the states of the views that are placed on it (``hosting.py``); the worker that writes
reaches it by a socket in that one's directory.  On another machine the parent relays that worker
to a socket of its own (``joined.py``).  It ends by itself when its parent dies, and cleanly on
SIGTERM, which loses no more than SIGKILL: what is not durable comes again.
"""

from __future__ import annotations

import os
import sys

from headrace import events
from headrace.config import Settings
from headrace.network.ends import Near, Relayed
from headrace.process import entry, imports
from headrace.runtime.hosting import Host


async def _main() -> None:
    settings = Settings.from_env()
    imports.keep_pandas_out()
    name = f"worker {settings.worker}"
    events.configure(settings.log_level, settings.log_format, process=name, pid=os.getpid())
    # Its own lines have another form than ours.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")

    def begin() -> entry.Acts:
        host = Host(settings)
        socket = settings.flight_socket(settings.worker)
        host.listen(Relayed(socket) if settings.token_file else Near(socket))
        return host

    await entry.stand(name, settings.worker_socket, begin)


def main() -> int:
    """Entry point; exit status 0 after a clean end, 1 after an error."""
    return entry.run(_main)


if __name__ == "__main__":
    sys.exit(main())
