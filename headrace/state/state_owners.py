"""Names under which the states of views are on disk, where these are not the views' own names.

A hand-over does not touch the states: the new owner takes over the name.

* Invariant: the states under a name belong to the one store for which ``home`` returns that name.
"""

from __future__ import annotations

from typing import Final

from headrace.state.disk import Disk

_HOME: Final = b"home/"
_LEFT: Final = "+"
"""Suffix of the home of a store whose former home another store has taken; no id ends in it."""


class StateOwners:
    """The homes of one database; used by one thread at a time."""

    def __init__(self, disk: Disk) -> None:
        self._moved = {
            key[len(_HOME) :].decode(): value.decode() for key, value in disk.scan_meta(_HOME)
        }

    def home(self, name: str) -> str:
        """Return the home of the store ``name``."""
        return self._moved.get(name, name)

    def names(self, homes: list[str]) -> list[str]:
        """Return the stores that have ``homes``."""
        whose = {home: name for name, home in self._moved.items()}
        return [whose.get(home, home) for home in homes]

    def hand_over(self, name: str, taker: str) -> dict[bytes, bytes | None]:
        """Return the metadata that gives ``taker`` the home of ``name``; see ``moved``."""
        home = self.home(name)
        # Two stores that have had one home must not both get ``home + _LEFT``.
        left = home if home.rstrip(_LEFT) == name else name
        return {_key(taker): home.encode(), _key(name): (left + _LEFT).encode()}

    def moved(self, meta: dict[bytes, bytes | None]) -> None:
        """Apply metadata of ``hand_over`` or ``forget``, once it is written."""
        for key, value in meta.items():
            name = key[len(_HOME) :].decode()
            if value is None:
                self._moved.pop(name, None)
            else:
                self._moved[name] = value.decode()

    def forget(self, name: str) -> dict[bytes, bytes | None]:
        """Return the metadata that removes the home of a dropped store; see ``moved``.

        The entry stays if another store has its first home: it must not get that home again.
        """
        kept = name in self._moved.values()
        return {} if kept or name not in self._moved else {_key(name): None}


def _key(name: str) -> bytes:
    return _HOME + name.encode()
