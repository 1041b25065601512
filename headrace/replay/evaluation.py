"""The server that evaluates expressions of a bundle: an embedded Postgres with a role of no rights.

A bundle may come from a stranger, so its SQL runs as a role that owns nothing and is a member of
nothing, on a server that has no data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.collections.plan import (
    AggregateSpec,
    FlatMapSpec,
    PhysicalPlan,
    SortKey,
    WindowSpec,
)
from headrace.embedded.binaries import WHEEL
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.errors import PrerequisiteError
from headrace.expressions.ir import Remote
from headrace.postgres import connect
from headrace.types import FIRST_USER_OID, Field

_VERSIONS: Final = (18, 17, 16, 15, 14)
_ROLE: Final = "headrace_replay"
_MAJOR: Final = 10_000
NO_SERVER: Final = "host=/nonexistent port=1 dbname=none user=none"
"""DSN that leads nowhere; an empty one would lead to the server of the environment."""


def asks_server(whole: PhysicalPlan) -> bool:
    """Return whether Postgres evaluates anything of a plan."""
    return any(_asks(part) for part in _parts(whole))


def objection(whole: PhysicalPlan) -> str | None:
    """Return why no other server can evaluate the expressions of a plan; None: one can."""
    if not asks_server(whole):
        return None
    if any(getattr(part, "trusted", True) is False for part in _parts(whole)):
        return "it calls functions that are not built in, which this machine does not have"
    oids = {part.oid for part in _parts(whole) if isinstance(part, Field | Remote)}
    if any(oid >= FIRST_USER_OID for oid in oids):
        return "Postgres evaluates expressions of it with types that this machine does not have"
    return None


def _asks(part: Any) -> bool:
    if isinstance(part, AggregateSpec):
        return part.function == "remote"
    if isinstance(part, WindowSpec):
        return not part.native
    if isinstance(part, SortKey):
        return not part.native
    return isinstance(part, Remote | FlatMapSpec)


def _parts(value: Any) -> Iterator[Any]:
    """Yield a part of a plan and all parts in it."""
    if isinstance(value, tuple | list):
        for one in value:
            yield from _parts(one)
    elif isinstance(value, msgspec.Struct):
        yield value
        for name in value.__struct_fields__:
            yield from _parts(getattr(value, name))


@contextlib.contextmanager
def server(folder: Path, version: int) -> Iterator[str]:
    """Run a server in ``folder``; yield a DSN of it.  ``version``: the one to prefer.

    Raises:
        PrerequisiteError: no Postgres is installed.
    """
    wanted = version // _MAJOR
    reason: PrerequisiteError | None = None
    for major in (wanted, *(v for v in _VERSIONS if v != wanted)):
        try:
            embedded = EmbeddedPostgres(folder / "postgres", major, durable=False)
        except PrerequisiteError as error:
            reason = reason or error
            continue
        with embedded:
            with connect.session(embedded.dsn(), name="headrace replay") as conn:
                conn.execute("CREATE ROLE headrace_replay LOGIN")
                conn.execute("REVOKE ALL ON DATABASE postgres FROM PUBLIC")
                conn.execute("GRANT CONNECT ON DATABASE postgres TO headrace_replay")
            yield embedded.dsn(user=_ROLE)
        return
    raise PrerequisiteError(
        "no Postgres is installed to evaluate expressions",
        hint=f"Install one of Debian's packages, or the wheel {WHEEL}.",
    ) from reason
