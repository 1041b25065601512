"""RocksDB runs of states for the state database, made of pairs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.state import rocks, warm_start


def write_run(
    path: Path, states: Mapping[str, Sequence[tuple[bytes, bytes]]], *, pack: bool = False
) -> int:
    """Write a run of the pairs of ``states``, each in ascending order; return the number of pairs.

    With ``pack``, also write the pack that loads the pairs into memory at once.
    """
    pieces = {
        name: iter([([k for k, _ in p], [v for _, v in p])]) for name, p in states.items() if p
    }
    if not pack:
        return rocks.write_run(path, pieces)
    with warm_start.PackWriter(warm_start.of_run(path)) as writer:
        return rocks.write_run(path, pieces, writer)
