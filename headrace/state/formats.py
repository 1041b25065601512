"""Format version of a state database: a file ``FORMAT`` beside RocksDB's files.

===========  ==================================================================================
format       what happens
===========  ==================================================================================
current      it is used
4            it is used, and gets the current number: every view has a column family of its own,
             which is one of the two places where states are looked up
an earlier   the worker sets it aside and refills every view: the log gives the reason, and
             views show their last contents until then
a later      the server does not start (55000), so that states of a later version are not
             refilled by mistake
===========  ==================================================================================

``layout.FORMAT`` is the current number.  Everything in the database can be rebuilt from the source.
So there are no migrations of stored states, in which an error would go unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from headrace.errors import OtherFormat, PrerequisiteError
from headrace.process import durable
from headrace.state import layout

_FILE: Final = "FORMAT"
_BEFORE_NUMBERS: Final = b"1"
_CONTAINED: Final = b"4"
"""An earlier format; each database of that format is also valid in the current one."""
_SHOWN: Final = 20


def check(path: Path) -> None:
    """Check that the state at ``path`` has the current format; record the format of a new one.

    Raises:
        OtherFormat: it has another format.
    """
    found = _written(path)
    if found in (None, _CONTAINED):
        durable.replace(path / _FILE, f"{layout.FORMAT}\n".encode())
        # Without it, the new database would be one of the first format.
        durable.sync(path)
    elif found != str(layout.FORMAT).encode():
        shown = found[:_SHOWN].decode(errors="replace")
        raise OtherFormat(
            f'the state at "{path}" has format "{shown}"',
            detail=f"This version of Headrace reads format {layout.FORMAT}.",
        )


def later(paths: Iterable[Path]) -> PrerequisiteError | None:
    """Return why this version must not open the states at ``paths``, or None if it may."""
    for path in paths:
        found = _written(path)
        if found is not None and found.isdigit() and int(found) > layout.FORMAT:
            return PrerequisiteError(
                f'the state at "{path}" is of a later version: format {int(found)}, and this one'
                f" reads {layout.FORMAT}",
                hint="Start the later version; or remove that directory, and all views are filled"
                " anew by themselves.",
                sqlstate="55000",
            )
    return None


def _written(path: Path) -> bytes | None:
    """Return the content of the format file; None: there is no database yet."""
    file = path / _FILE
    if file.exists():
        return file.read_bytes().strip()
    return _BEFORE_NUMBERS if (path / "CURRENT").exists() else None
