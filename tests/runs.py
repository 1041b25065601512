"""Runs of states for the state database, out of pairs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.state import rocks


def write_run(path: Path, states: Mapping[str, Sequence[tuple[bytes, bytes]]]) -> int:
    """Write a run of the pairs of ``states``, each in ascending order; returns how many."""
    return rocks.write_run(
        path,
        {name: iter([([k for k, _ in p], [v for _, v in p])]) for name, p in states.items() if p},
    )
