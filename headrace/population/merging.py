"""Merges states for which several Spark tasks have values of the same key.

Each task writes its part to a file; the builder merges the parts before it stages the state.

    STAGING_DIR/<view id>/parts/<state>.<part>.arrow     key, value
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa

from headrace.collections.plan import CalendarSpec, Node, PhysicalPlan, TemporalSpec
from headrace.errors import BugError
from headrace.population.staging import Staging
from headrace.state import layout, loaded
from headrace.state.layout import Pair
from headrace.state.loaded import Pieces

FOLDER: Final = "parts"
_SCHEMA: Final = pa.schema([("key", pa.large_binary()), ("value", pa.large_binary())])


def shared(node: Node) -> dict[str, bool]:
    """Return the states of ``node`` that all tasks write, and whether their values are weights.

    Weights of one key are added up; other values are the same in all tasks.
    """
    if isinstance(node, TemporalSpec):
        return {f"{node.id}.pages": True, f"{node.id}.clock": False}
    if isinstance(node, CalendarSpec):
        return {f"{node.id}.clock": False}
    return {}


def leave(staging: Staging, part: str, states: Mapping[str, Pieces]) -> None:
    """Write the part of ``states`` that task ``part`` has; a repeated task overwrites it."""
    if not staging.states:
        return
    folder = staging.path / FOLDER
    for name, pieces in states.items():
        folder.mkdir(mode=0o700, exist_ok=True)
        pairs = list(loaded.pairs(pieces))
        keys, values = zip(*pairs, strict=True) if pairs else ((), ())
        table = pa.table(
            [pa.array(keys, _SCHEMA.types[0]), pa.array(values, _SCHEMA.types[1])], schema=_SCHEMA
        )
        draft = folder / f".{uuid.uuid4().hex}"
        with pa.ipc.new_file(str(draft), _SCHEMA) as file:
            file.write_table(table)
        draft.replace(folder / f"{name}.{part}.arrow")


def finish(staging: Staging, plan: PhysicalPlan, counted: int) -> None:
    """Merge the states of tasks that wrote ``counted`` rows, and check that all rows are there."""
    merge(staging, plan)
    if counted != staging.row_count():
        raise BugError(f"{counted} rows counted, {staging.row_count()} in files")


def merge(staging: Staging, plan: PhysicalPlan) -> None:
    """Merge the parts of all tasks, and stage the merged states."""
    made: dict[str, Pieces] = {}
    for node in plan.nodes:
        for name, weights in shared(node).items():
            files = sorted((staging.path / FOLDER).glob(f"{name}.*.arrow"))
            found = _summed(files) if weights else _same(files)
            made[name] = loaded.pieces([*found], [*found.values()])
    staging.write_state("whole", made)
    shutil.rmtree(staging.path / FOLDER, ignore_errors=True)


def _summed(files: list[Path]) -> dict[bytes, bytes]:
    totals: dict[bytes, int] = {}
    for file in files:
        for key, value in _pairs(file):
            totals[key] = totals.get(key, 0) + layout.decode_weight(value)
    return {key: layout.encode_weight(total) for key, total in totals.items() if total}


def _same(files: list[Path]) -> dict[bytes, bytes]:
    out: dict[bytes, bytes] = {}
    for file in files:
        for key, value in _pairs(file):
            if out.setdefault(key, value) != value:
                raise BugError(f"tasks differ in what {file.stem} holds")
    return out


def _pairs(file: Path) -> Iterable[Pair]:
    with pa.ipc.open_file(str(file)) as stream:
        table = stream.read_all()
    return zip(*(column.to_pylist() for column in table.columns), strict=True)
