"""The connection from one end of a link to another machine, as ``headrace worker`` makes it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from headrace.network.ends import Far, Relayed
from headrace.network.tls_listener import TlsListener
from headrace.process import keys


@contextlib.contextmanager
def dialed(here: Relayed, folder: Path) -> Iterator[Far]:
    """Relay to ``here``; yield the address that the engine dials."""
    theirs, ours = keys.load_or_create(folder / "theirs"), keys.load_or_create(folder / "ours")
    listener = TlsListener(Far("127.0.0.1:0", ours.certificate, theirs), here.path)
    try:
        yield Far(f"127.0.0.1:{listener.port}", theirs.certificate, ours)
    finally:
        listener.close()
