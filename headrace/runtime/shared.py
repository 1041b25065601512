"""A shared subplan: what it computes, what it has sent, and how the state database knows it.

Who reads which, and how that changes, is in ``sharing.py``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from headrace.collections import plan, subplans
from headrace.collections.base import cut
from headrace.collections.plan import kind
from headrace.errors import BugError, StateDamaged
from headrace.runtime import positions
from headrace.runtime.positions import Meta
from headrace.runtime.views import Unit
from headrace.state.contract import MapState
from headrace.state.rocks import RocksDatabase
from headrace.types import arrow_schema

_SUBPLAN: Final = b"subplan/"
_FEEDS: Final = b"feeds/"
LOG: Final = "~sent"
"""State of a shared subplan besides those of its nodes."""
_TRIM_MAX: Final = 256
"""Txids that are forgotten at one."""
_KEY: Final = struct.Struct(">QI")
_COUNT: Final = struct.Struct(">I")
_TXID: Final = struct.Struct(">Q")
_FLOOR: Final = b"floor"


class _Log:
    """What a shared subplan sent, by txid, as a part of its state.

    (txid, 0) -> number of pieces, first piece; (txid, n) -> piece n; ``floor`` -> the last txid
    that was forgotten.  A txid without pieces changed nothing.
    """

    def __init__(self, state: MapState, schema: pa.Schema, first: int) -> None:
        """``first``: the txid that the subplan began with."""
        self._state = state
        self._schema = schema
        self._first = first

    @property
    def floor(self) -> int:
        """What was sent up to this txid is forgotten."""
        [value] = self._state.get_many([_FLOOR])
        return self._first if value is None else int(_TXID.unpack(value)[0])

    def add(self, txid: int, diffs: pa.RecordBatch, least: int) -> None:
        """``diffs`` were sent at ``txid``; nobody needs those up to ``least`` any more."""
        keys: list[bytes] = []
        values: list[bytes | None] = []
        pieces = [piece.serialize().to_pybytes() for piece in cut(diffs)]
        for number, piece in enumerate(pieces):
            keys.append(_KEY.pack(txid, number))
            values.append(_COUNT.pack(len(pieces)) + piece if number == 0 else piece)
        floor = self.floor
        last = min(least, txid - 1, floor + _TRIM_MAX)
        if last > floor:
            gone = list(self._keys(range(floor + 1, last + 1)))
            keys += [*gone, _FLOOR]
            values += [*(None for _ in gone), _TXID.pack(last)]
        if keys:
            self._state.put_many(keys, values)

    def read(self, txid: int) -> list[pa.RecordBatch]:
        """What was sent at ``txid``.

        Raises:
            BugError: it was forgotten.
        """
        if txid <= self.floor:
            raise BugError(f"txid {txid} of a shared subplan was forgotten")
        pieces = self._state.get_many(list(self._keys([txid])))
        out = []
        for number, piece in enumerate(pieces):
            if piece is None:
                raise BugError(f"a piece of txid {txid} is missing")
            data = piece[_COUNT.size :] if number == 0 else piece
            out.append(pa.ipc.read_record_batch(pa.py_buffer(data), self._schema))
        return out

    def _keys(self, txids: Iterable[int]) -> Iterator[bytes]:
        heads = {txid: _KEY.pack(txid, 0) for txid in txids}
        found = self._state.get_many(list(heads.values()))
        for (txid, head), value in zip(heads.items(), found, strict=True):
            if value is None:
                continue
            yield head
            for number in range(1, _COUNT.unpack_from(value)[0]):
                yield _KEY.pack(txid, number)


@dataclass(slots=True)
class Shared(Unit):
    """A shared subplan; its id is negative."""

    signature: str
    """Of the node whose rows it sends."""
    first: int
    """The txid that its state began with."""
    least: int = 0
    """Everybody who reads it is durably beyond this txid."""

    @property
    def shown(self) -> str:
        """What its last node does, in words."""
        return kind(type(self.plan.node(self.plan.sink.input))).lower()

    def log(self) -> _Log:
        """What it sent; REQUIRES: it has its state."""
        assert self.store is not None, "it was restored"
        schema = arrow_schema(self.plan.sink.schema)
        return _Log(self.store.map(LOG), schema, self.first)

    def keeps(self, state: str) -> bool:
        """Whether a state of its store is needed."""
        return state == LOG or subplans.keeps(self.own, state)


class _Record(msgspec.Struct):
    """What the state database has of one."""

    plan: dict[str, Any]
    settings: dict[str, str]
    start_lsn: int
    signature: str
    first: int


_RECORDS: Final = msgspec.json.Decoder(_Record)


def read(db: RocksDatabase) -> tuple[dict[int, dict[str, int]], list[Shared]]:
    """Who reads what, by unit and node, and the shared subplans with their states.

    Raises:
        StateDamaged: it cannot be read.
    """
    marks = positions.views(db)
    found = []
    try:
        feeds: dict[int, dict[str, int]] = {
            int(key[len(_FEEDS) :]): msgspec.json.decode(value, type=dict[str, int])
            for key, value in db.scan_meta(_FEEDS)
        }
        for key, value in db.scan_meta(_SUBPLAN):
            made = _made(int(key[len(_SUBPLAN) :]), value)
            made.feed_on(feeds.get(made.id, {}))
            mark = marks[made.id]
            made.restore(db.view(made.id, mark.txid), mark)
            found.append(made)
    except (ValueError, KeyError, TypeError) as error:
        raise StateDamaged(
            "the record of shared subplans is damaged", detail=f"{error!r}."
        ) from error
    return feeds, found


def put(meta: Meta, shared: Shared) -> None:
    """Write down what a new one computes."""
    record = _Record(
        plan.to_json(shared.plan), shared.settings, shared.start_lsn, shared.signature, shared.first
    )
    meta[_SUBPLAN + str(shared.id).encode()] = msgspec.json.encode(record)


def drop(meta: Meta, shared: Shared) -> None:
    """Forget one, and what it reads."""
    meta[_SUBPLAN + str(shared.id).encode()] = None
    put_feeds(meta, shared.id, {})


def put_feeds(meta: Meta, unit_id: int, feeds: Mapping[str, int]) -> None:
    """Write down what a unit reads."""
    key = _FEEDS + str(unit_id).encode()
    meta[key] = msgspec.json.encode(dict(feeds)) if feeds else None


def _made(unit_id: int, value: bytes) -> Shared:
    found = _RECORDS.decode(value)
    return Shared(
        unit_id,
        plan.from_json(found.plan),
        found.settings,
        found.start_lsn,
        found.signature,
        found.first,
    )
