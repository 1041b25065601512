"""``headrace config``: every setting with its value, its origin and its meaning."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from headrace.config import ENV_PREFIX, RENAMED, Settings, changed
from headrace.redaction import printable

_UNITS: Final = {
    "batch_rows_max": "rows",
    "checkpoint_txids": "batches",
    "commands_per_role_max": "calls",
    "connections_max": "sessions",
    "eval_connections_max": "connections",
    "main_capacity": "collections",
    "logins_per_address_max": "clients",
    "max_inflight_batches": "batches",
    "max_recursion_iterations": "iterations",
    "max_recursion_rows": "rows",
    "metrics_collections_max": "collections",
    "metrics_views_max": "views",
    "populations_max": "populations",
    "populations_per_role_max": "populations",
    "spark_memory_mb": "MB",
    "spark_parallelism": "tasks",
    "spark_partition_rows": "rows",
    "spark_threshold_rows": "rows",
    "view_rows_max": "rows",
    "views_per_role_max": "views",
    "webhook_tries_max": "attempts",
    "worker_lost_s": "seconds",
}
"""Units of numbers whose setting has no ``ms`` or ``bytes`` in its name."""
_NO_TYPO: Final = re.compile(r"settings|test_.*|fault.*|no_compile|service_.*|port(_.*)?|.*_seeds?")
"""Variables with other uses, without the prefix: those of tests, and those that Kubernetes sets for
a service with our name.
"""


def explained(
    flags: Mapping[str, Any] | None = None,
    file: Path | None = None,
    env: Mapping[str, str] = os.environ,
) -> list[str]:
    """Return lines about every setting: its value, its origin and its meaning.

    Raises:
        UserError: as ``Settings.load``.
    """
    given, settings = changed(flags, file, env), Settings.load(flags, file, env)
    out = []
    for name, meaning in meanings().items():
        value = getattr(settings, name)
        value = printable(name, value)
        origin = given[name][1] if name in given else "default"
        shown = f"{value} {unit}" if (unit := unit_of(name)) else value
        lines = (f"    {line.replace('``', '')}" for line in meaning)
        out += [f"{name} = {'(empty)' if shown == '' else shown}  ({origin})", *lines]
    return out + [f"! {key} is not a setting, and has no effect" for key in strangers(env)]


def strangers(env: Mapping[str, str] = os.environ) -> list[str]:
    """Return the variables called ``HEADRACE_…`` that are no settings."""
    names = {f.name for f in dataclasses.fields(Settings)} | RENAMED.keys()
    ours = [key for key in sorted(env) if key.startswith(ENV_PREFIX)]
    words = {key: key.removeprefix(ENV_PREFIX).lower() for key in ours}
    return [
        key for key, word in words.items() if word not in names and not _NO_TYPO.fullmatch(word)
    ]


def unit_of(name: str) -> str:
    """Return the unit of a setting; "": it has none."""
    words = name.split("_")
    for unit in ("ms", "bytes"):
        if unit in words:
            return unit
    return _UNITS.get(name, "")


def meanings() -> dict[str, list[str]]:
    """Return the lines of the docstring of each setting's field."""
    tree = ast.parse(inspect.getsource(Settings)).body[0]
    assert isinstance(tree, ast.ClassDef), "it is a class"
    out: dict[str, list[str]] = {}
    for field_, text in itertools.pairwise(tree.body):
        if isinstance(field_, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field_.target, ast.Name), "fields have names"
            assert isinstance(text.value, ast.Constant), "what it means"
            lines = str(text.value.value).strip().splitlines()
            out[field_.target.id] = [line.strip() for line in lines]
    return out
