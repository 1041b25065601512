"""Types that all parts share: ids, positions, schemas, and the Arrow type of each Postgres type.

A *diff batch* is a ``pyarrow.RecordBatch`` of a collection's columns plus a last
column ``__weight: int64``.  The Postgres type OID alone determines a column's Arrow
type (``arrow_type``), so two parts cannot disagree on it:

=====================  ==========================================================
Postgres               Arrow
=====================  ==========================================================
bool                   bool
int2 / int4 / int8     int16 / int32 / int64
oid                    int64 (unsigned 32-bit value)
float4 / float8        float32 / float64
date                   int32, days since 2000-01-01; min/max int32 are -/+infinity
time                   int64, microseconds since midnight
timestamp, timestamptz int64, microseconds since 2000-01-01 (UTC); min/max are -/+infinity
all other types        string: exactly Postgres' own output text under ``PINNED_SETTINGS``
=====================  ==========================================================

``numeric`` is text as well: it has no upper precision and its display scale is part of
the value a user sees.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final, NewType

import msgspec
import pyarrow as pa

Lsn = NewType("Lsn", int)
"""A WAL position as a 64-bit integer.  Format with ``format_lsn``."""
Txid = NewType("Txid", int)
"""Number of a batch, from 1; 0 is the population."""
Oid = NewType("Oid", int)

FIRST_USER_OID: Final = 16384
"""initdb created the objects with lower OIDs (``FirstNormalObjectId``)."""

_SHORT_HEADER: Final = 24
_LONG_HEADER: Final = 40
"""Header sizes in bytes: of a WAL page, and of the first page of a segment."""
WEIGHT: Final = "__weight"

# Postgres type OIDs the code names.
BOOL, BYTEA, CHAR, NAME, INT8, INT2, INT4, TEXT, OID = 16, 17, 18, 19, 20, 21, 23, 25, 26  # fmt: skip
JSON, XML, FLOAT4, FLOAT8, MONEY, UNKNOWN = 114, 142, 700, 701, 790, 705  # fmt: skip
BPCHAR, VARCHAR, DATE, TIME, TIMESTAMP, TIMESTAMPTZ = 1042, 1043, 1082, 1083, 1114, 1184  # fmt: skip
INTERVAL, TIMETZ, BIT, VARBIT, NUMERIC, UUID, JSONB = 1186, 1266, 1560, 1562, 1700, 2950, 3802  # fmt: skip
CIDR, MACADDR, INET, MACADDR8, PG_LSN, XID, XID8 = 650, 829, 869, 774, 3220, 28, 5069  # fmt: skip
TID, CID, TSVECTOR, RECORD, RECORD_ARRAY = 27, 29, 3614, 2249, 2287  # fmt: skip

FIXED: Final = frozenset((BOOL, INT2, INT4, INT8, OID, DATE, TIME, TIMESTAMP, TIMESTAMPTZ, UUID))
"""Types with values of at most 16 bytes, whose values are equal only if they are identical."""

_ARROW: Final[dict[int, pa.DataType]] = {
    BOOL: pa.bool_(),
    INT2: pa.int16(),
    INT4: pa.int32(),
    INT8: pa.int64(),
    OID: pa.int64(),
    FLOAT4: pa.float32(),
    FLOAT8: pa.float64(),
    DATE: pa.int32(),
    TIME: pa.int64(),
    TIMESTAMP: pa.int64(),
    TIMESTAMPTZ: pa.int64(),
}


def arrow_type(oid: int) -> pa.DataType:
    """Return the Arrow type for values of Postgres type ``oid``."""
    return _ARROW.get(oid, pa.string())


class PlanPart(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag=lambda name: name.removesuffix("Spec"),
):
    """Part of a physical plan; its JSON has a ``kind``, the class name without ``Spec``."""


class Field(PlanPart, frozen=True):
    """One column: its name and its Postgres type (domains already resolved to the base type)."""

    name: str
    oid: int
    typmod: int = -1
    collation: int = 0
    """OID of the collation, 0 if the type has none."""

    @property
    def arrow(self) -> pa.Field:
        """The Arrow field, with OID and typmod in its metadata."""
        meta = {b"pg.oid": str(self.oid).encode(), b"pg.typmod": str(self.typmod).encode()}
        return pa.field(self.name, arrow_type(self.oid), metadata=meta)


Schema = tuple[Field, ...]
WEIGHT_FIELD: Final = pa.field(WEIGHT, pa.int64(), nullable=False)


@functools.lru_cache(maxsize=4096)
def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of a diff batch with these columns (``__weight`` last)."""
    return pa.schema([*(f.arrow for f in schema), WEIGHT_FIELD])


def diff_batch(schema: Schema, columns: list[pa.Array], weights: pa.Array) -> pa.RecordBatch:
    """Build a diff batch; ``columns`` in schema order, ``weights`` int64 of the same length."""
    return pa.RecordBatch.from_arrays([*columns, weights], schema=arrow_schema(schema))


def format_lsn(lsn: int) -> str:
    """Format a WAL position as ``X/Y``, like Postgres."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> Lsn:
    """Parse the output of ``format_lsn``."""
    high, low = text.split("/")
    return Lsn((int(high, 16) << 32) | int(low, 16))


def record_end(lsn: int, block: int, segment: int) -> int:
    """Return the end of the last record before the insert position ``lsn``.

    After a record that fills its page, Postgres reports a position behind the next page's
    header.  No record ends there, so a wait for that position would never finish.
    ``block`` and ``segment`` are the WAL page and segment sizes in bytes.
    """
    page = lsn - lsn % block
    header = _SHORT_HEADER if page % segment else _LONG_HEADER
    return page if lsn - page <= header else lsn


@dataclass(frozen=True, slots=True)
class Diffs:
    """A record batch of diffs on an edge."""

    txid: int
    attempt: int
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class TimeEnd:
    """Promise that no diff with this txid or a lower one follows on the edge."""

    txid: int
    attempt: int
    rows: int = 0
    """Rows sent on the edge since the previous TimeEnd; the receiver compares its own count."""
