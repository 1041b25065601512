"""Which version's files a state database consists of: a file ``FORMAT`` beside RocksDB's.

===========  ==================================================================================
it has       what happens
===========  ==================================================================================
ours         it is used
4            it is used, and has our number from then on: every view has a column family of its own,
             which is one of the two places that we look at
an earlier   the worker sets it aside, and every view is filled anew by itself: the log says
             why, and views show their last contents until then
a later      the server does not start (55000): what a later version has made is not made anew
             by mistake
===========  ==================================================================================

``layout.FORMAT`` is the number.  Everything in the database can be made anew from the source, so
there are no steps that change what is stored: a step that is wrong would be found by nobody.
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
"""An earlier format, of which each database is also one of ours."""
_SHOWN: Final = 20


def check(path: Path) -> None:
    """Make sure that the state at ``path`` has our format; a new one gets it.

    Raises:
        OtherFormat: it has another.
    """
    found = _written(path)
    if found in (None, _CONTAINED):
        durable.replace(path / _FILE, f"{layout.FORMAT}\n".encode())
    elif found != str(layout.FORMAT).encode():
        shown = found[:_SHOWN].decode(errors="replace")
        raise OtherFormat(
            f'the state at "{path}" has format "{shown}"',
            detail=f"This version of Headrace reads format {layout.FORMAT}.",
        )


def later(paths: Iterable[Path]) -> PrerequisiteError | None:
    """Why this version may not begin with the states at ``paths``; None: it may."""
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
    """What is there; None: nothing was made yet."""
    file = path / _FILE
    if file.exists():
        return file.read_bytes().strip()
    return _BEFORE_NUMBERS if (path / "CURRENT").exists() else None
