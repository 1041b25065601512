"""Comparison of states, pair by pair, in order of key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.replay.bundle import Change

_PIECE_PAIRS: Final = 4096
_PIECE_BYTES: Final = 1 << 20

Pairs = Iterator[tuple[bytes, bytes]]
Pieces = Iterable[tuple[list[bytes], Any]]
States = Iterator[tuple[str, Pieces]]
"""States in order of name, with their pairs in pieces."""


@dataclass(slots=True)
class StateDifference:
    """How one state differs from the expected one, in numbers of keys."""

    state: str
    missing: int = 0
    unexpected: int = 0
    changed: int = 0

    @property
    def keys(self) -> int:
        """Number of keys that differ."""
        return self.missing + self.unexpected + self.changed


def differences(
    begin: States, changes: States, actual: Mapping[str, Pieces]
) -> list[StateDifference]:
    """Return the states of ``actual`` that are not those of ``begin`` with ``changes``."""
    out = []
    for name, expected, found in _aligned(begin, changes, actual):
        difference = StateDifference(name)
        for _, wanted, value in merged(expected, found):
            if wanted is None:
                difference.unexpected += 1
            elif value is None:
                difference.missing += 1
            elif wanted != value:
                difference.changed += 1
        if difference.keys:
            out.append(difference)
    return out


def _aligned(
    begin: States, changes: States, actual: Mapping[str, Pieces]
) -> Iterator[tuple[str, Pairs, Pairs]]:
    """Yield each state with its expected and actual pairs; they are read before the next."""
    first, second = next(begin, None), next(changes, None)
    left = sorted(actual)
    while first is not None or second is not None or left:
        names = [one[0] for one in (first, second) if one is not None]
        name = min([*names, *left[:1]])
        before: Pairs = iter(())
        after: Iterator[Change] = iter(())
        if first is not None and first[0] == name:
            before = flat(first[1])
        if second is not None and second[0] == name:
            after = flat(second[1])
        found = flat(actual[name]) if name in actual else iter(())
        yield name, applied(before, after), found
        if first is not None and first[0] == name:
            first = next(begin, None)
        if second is not None and second[0] == name:
            second = next(changes, None)
        left = left[1:] if left[:1] == [name] else left


def flat(pieces: Pieces) -> Iterator[tuple[bytes, Any]]:
    """Yield pairs one by one."""
    for keys, values in pieces:
        yield from zip(keys, values, strict=True)


def merged(
    left: Iterator[tuple[bytes, Any]], right: Iterator[tuple[bytes, Any]]
) -> Iterator[tuple[bytes, Any, Any]]:
    """Yield each key of two sorted sequences, with its value in both; None where it is absent."""
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one[0] < other[0]):
            assert one is not None, "one of them is left"
            yield one[0], one[1], None
            one = next(left, None)
        elif one is None or other[0] < one[0]:
            yield other[0], None, other[1]
            other = next(right, None)
        else:
            yield one[0], one[1], other[1]
            one, other = next(left, None), next(right, None)


def applied(before: Pairs, changes: Iterator[Change]) -> Pairs:
    """Yield the pairs of ``before`` with ``changes``."""
    one, change = next(before, None), next(changes, None)
    while one is not None or change is not None:
        if change is None or (one is not None and one[0] < change[0]):
            assert one is not None, "one of them is left"
            yield one
            one = next(before, None)
            continue
        if one is not None and one[0] == change[0]:
            one = next(before, None)
        if change[1] is not None:
            yield change[0], change[1]
        change = next(changes, None)


def changes_between(before: Pieces, after: Pieces) -> Iterator[Change]:
    """Yield the pairs of ``after`` that are new or different, and the keys that are gone."""
    for key, old, new in merged(flat(before), flat(after)):
        if old != new:
            yield key, new


def chunks(found: Iterator[Change]) -> Iterator[tuple[list[bytes], list[bytes | None]]]:
    """Divide changes into pieces of bounded size."""
    keys: list[bytes] = []
    values: list[bytes | None] = []
    size = 0
    for key, value in found:
        keys.append(key)
        values.append(value)
        size += len(key) + len(value or b"")
        if len(keys) >= _PIECE_PAIRS or size >= _PIECE_BYTES:
            yield keys, values
            keys, values, size = [], [], 0
    if keys:
        yield keys, values
