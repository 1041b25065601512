"""Which column family has the states of whom, where it is not the one of his own name.

States are handed over without being touched: who takes them takes the family.

* Invariant: a family is nobody's but his whom ``home`` says it for.
"""

from __future__ import annotations

from typing import Final

from headrace.state.disk import Disk

_HOME: Final = b"home/"
_LEFT: Final = "+"
"""Ends the name of what somebody has whose family another has taken: no id ends so."""


class Homes:
    """The families of one database; one thread at a time uses it."""

    def __init__(self, disk: Disk) -> None:
        self._moved = {
            key[len(_HOME) :].decode(): value.decode() for key, value in disk.scan_meta(_HOME)
        }

    def home(self, name: str) -> str:
        """The family of the store ``name``."""
        return self._moved.get(name, name)

    def names(self, families: list[str]) -> list[str]:
        """The stores that have ``families``."""
        whose = {family: name for name, family in self._moved.items()}
        return [whose.get(family, family) for family in families]

    def hand_over(self, name: str, taker: str) -> dict[bytes, bytes | None]:
        """The metadata by which ``taker`` has the family of ``name``; see ``moved``."""
        family = self.home(name)
        return {_key(taker): family.encode(), _key(name): (family + _LEFT).encode()}

    def moved(self, meta: dict[bytes, bytes | None]) -> None:
        """What ``hand_over`` or ``forget`` has answered is written."""
        for key, value in meta.items():
            name = key[len(_HOME) :].decode()
            if value is None:
                self._moved.pop(name, None)
            else:
                self._moved[name] = value.decode()

    def forget(self, name: str) -> dict[bytes, bytes | None]:
        """The metadata by which a store that is gone has no family; see ``moved``.

        One whose own family another has keeps what says so: it must not come to have it again.
        """
        kept = name in self._moved.values()
        return {} if kept or name not in self._moved else {_key(name): None}


def _key(name: str) -> bytes:
    return _HOME + name.encode()
