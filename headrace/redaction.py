"""Settings without their secrets: the only form that may be printed or logged."""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

DSNS: Final = ("source", "decode_from", "eval_dsn")
"""Settings that are connection strings."""
_SECRETS: Final = ("password", "sslpassword", "oauth_client_secret")
"""Parts of a DSN that are never shown."""
_OF_SPARK: Final = re.compile(r"(?i)([\w.]*(?:token|secret|password)[\w.]*\s*=)[^;]*")


def redact(dsn: str) -> str:
    """Return ``dsn`` without secrets."""
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        return "<malformed DSN>"
    return make_conninfo(dsn, **{k: "***" for k in _SECRETS if parts.get(k)})


def printable(name: str, value: Any) -> Any:
    """Return the value of a setting without secrets."""
    if name in DSNS and value:
        return redact(value)
    if name in ("spark_master", "spark_options"):
        return _OF_SPARK.sub(r"\1***", value)
    return value


def has_secret(dsn: str) -> bool:
    """Return whether ``dsn`` contains a secret; True if the DSN is malformed."""
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        return True
    return any(parts.get(name) for name in _SECRETS)
