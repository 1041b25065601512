"""Headrace keeps the results of SQL queries fresh, as ordinary tables, inside your Postgres."""

import sys

if "rich" not in sys.modules:
    # structlog would import it if it is installed: 5 MB and 50 ms in each process.
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog  # noqa: F401

    del sys.modules["rich"]
