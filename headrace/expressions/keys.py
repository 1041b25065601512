"""The allowlist of types that may be keys.

A type is listed only if two values are equal in Postgres exactly when the bytes of their canonical
keys (``kernels.keys.encode_keys``) are equal.  The planner refuses all other types.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from headrace.types import (
    BIT,
    BOOL,
    BPCHAR,
    BYTEA,
    CHAR,
    CID,
    CIDR,
    DATE,
    FLOAT4,
    FLOAT8,
    INET,
    INT2,
    INT4,
    INT8,
    INTERVAL,
    JSONB,
    MACADDR,
    MACADDR8,
    MONEY,
    NAME,
    NUMERIC,
    OID,
    PG_LSN,
    TEXT,
    TID,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    TIMETZ,
    TSVECTOR,
    UUID,
    VARBIT,
    VARCHAR,
    XID,
    XID8,
)


class KeyClass(Enum):
    """How the canonical key of a type is made."""

    NATIVE = "native"
    """A machine value."""
    NORMALISED = "normalised"
    """Text normalised to one form, where a value has several (numeric, bpchar, jsonb, …)."""
    TEXT = "text"
    """The output text of Postgres, which is the same for equal values."""


_NATIVE: Final = frozenset(
    {
        BOOL, INT2, INT4, INT8, OID, FLOAT4, FLOAT8, DATE, TIME, TIMESTAMP, TIMESTAMPTZ,
    }
)  # fmt: skip
_NORMALISED: Final = frozenset(
    {
        NUMERIC, BPCHAR, INTERVAL, JSONB,
        1231, 3906, 3907, 4532,  # numeric[], numrange, numrange[], nummultirange
        1021, 1022,  # float4[], float8[]
        1014, 1187, 3807, 6151,  # bpchar[], interval[], jsonb[], nummultirange[]
    }
)  # fmt: skip
_COLLATED: Final = frozenset({TEXT, VARCHAR, NAME, BPCHAR})
_TEXT: Final = frozenset(
    {
        TEXT, VARCHAR, NAME, UUID, BYTEA, BIT, VARBIT, MONEY, INET, CIDR, MACADDR, MACADDR8,
        CHAR, TIMETZ, PG_LSN, XID, XID8, TID, CID, TSVECTOR,
    }
)  # fmt: skip

_ARRAYS: Final = frozenset(
    {
        1000,  # bool[]
        1001,  # bytea[]
        1002,  # "char"[]
        1003,  # name[]
        1005,  # int2[]
        1007,  # int4[]
        1009,  # text[]
        1015,  # varchar[]
        1016,  # int8[]
        1028,  # oid[]
        1115,  # timestamp[]
        1182,  # date[]
        1183,  # time[]
        1185,  # timestamptz[]
        2951,  # uuid[]
    }
)
"""Arrays whose elements have one text per value; the text shows lower bounds other than 1."""
_COLLATED_ARRAYS: Final = frozenset({1003, 1009, 1014, 1015})
_RANGES: Final = frozenset(
    {
        3904, 3926, 3912,  # int4range, int8range, daterange: canonical in Postgres
        3908, 3910,  # tsrange, tstzrange
        4451, 4536, 4535, 4533, 4534,  # their multiranges
    }
)  # fmt: skip


def key_class(
    oid: int, *, kind: str = "b", deterministic: bool = True, element_kind: str = "b"
) -> KeyClass | None:
    """Return how values of type ``oid`` become keys, or None if they may not be keys.

    ``kind`` is ``pg_type.typtype`` ('e' = enum).  ``element_kind`` is that of an array's element
    type ('b' if the type is no array).  ``deterministic`` is ``collisdeterministic`` of the
    collation (true without one).
    """
    if kind == "e" or element_kind == "e":
        return KeyClass.TEXT
    if not deterministic and (oid in _COLLATED or oid in _COLLATED_ARRAYS):
        return None
    if oid in _NATIVE:
        return KeyClass.NATIVE
    if oid in _NORMALISED:
        return KeyClass.NORMALISED
    if oid in _TEXT or oid in _ARRAYS or oid in _RANGES:
        return KeyClass.TEXT
    return None


def is_canonical(oid: int) -> bool:
    """Return whether equal values of a key type always have the same text.

    False for numeric (display scale) and types made of it (arrays, ranges, jsonb), bpchar
    (trailing blanks), interval (a day or 24 hours) and floats (-0 and 0).  A group or DISTINCT
    over those must choose which form it shows.
    """
    return oid not in _NORMALISED and oid not in (FLOAT4, FLOAT8)


def order_native(oid: int, *, bytewise: bool = True) -> bool:
    """Return whether canonical keys sort by bytes in the order in which Postgres sorts values."""
    if oid in (TEXT, VARCHAR, BPCHAR):
        return bytewise
    return oid in _NATIVE or oid in (NUMERIC, INTERVAL, UUID, BYTEA)
