"""The process in which ``headrace check`` tries Spark: a line of JSON with what it has found."""

from __future__ import annotations

import sys

import msgspec

from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.population import spark_session


def main() -> int:
    """Start a session by the settings of the environment, and tell what was found."""
    try:
        told: dict[str, str | None] = {"found": spark_session.try_out(Settings.from_env())}
    except HeadraceError as error:
        told = {"message": error.message, "hint": error.hint}
    sys.stdout.write(f"\n{msgspec.json.encode(told).decode()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
