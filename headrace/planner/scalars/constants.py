"""Constants of a parse tree: conversion from the server's internal octets to text.

A ``Const`` node holds a datum as in the server's memory.  For the types listed here the text is
decoded and sent back to Postgres: the constant that Postgres makes of the text must have the same
octets, else the query is refused.  So a mistake here (or a server of another endianness) can only
refuse a query, never change it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from typing import Final
from uuid import UUID

import psycopg

from headrace import types as t
from headrace.planner import limits
from headrace.planner.analyse.analysis import Analysis
from headrace.planner.analyse.catalog import Catalog
from headrace.planner.analyse.nodetree import Node
from headrace.planner.analyse.session import made_view, output_texts
from headrace.planner.logical.scalar import quote
from headrace.planner.scalars.functions import REG_TYPES
from headrace.postgres.tokens import scan, value

Key = tuple[int, bytes]
_CHUNK: Final = 1000
"""Constants per check; a select list holds at most 1664 entries."""


def _integer(data: bytes, length: int) -> str:
    return str(int.from_bytes(data[:length], "little", signed=True))


def _float(data: bytes, form: str) -> str:
    value = struct.unpack_from(form, data)[0]
    return repr(value).replace("inf", "Infinity").replace("nan", "NaN")


def _clock(micros: int) -> str:
    seconds, fraction = divmod(micros, 1_000_000)
    hours, rest = divmod(seconds, 3600)
    return f"{hours:02}:{rest // 60:02}:{rest % 60:02}.{fraction:06}"


def _date(data: bytes) -> str:
    days = int.from_bytes(data[:4], "little", signed=True)
    if abs(days) >= 2**31 - 1:
        return "infinity" if days > 0 else "-infinity"
    return f"J{days + 2451545}"


def _timestamp(data: bytes, zone: str = "") -> str:
    micros = int.from_bytes(data[:8], "little", signed=True)
    if abs(micros) >= 2**63 - 1:
        return "infinity" if micros > 0 else "-infinity"
    days, rest = divmod(micros, 86_400_000_000)
    return f"J{days + 2451545} {_clock(rest)}{zone}"


def _timetz(data: bytes) -> str:
    micros, west = struct.unpack_from("<qi", data)
    sign = "-" if west > 0 else "+"
    minutes, seconds = divmod(abs(west), 60)
    zone = f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
    return f"{_clock(micros)}{sign}{zone}"


def _interval(data: bytes) -> str:
    micros, days, months = struct.unpack_from("<qii", data)
    if (micros, days, months) == (2**63 - 1, 2**31 - 1, 2**31 - 1):
        return "infinity"
    sign = "-" if micros < 0 else ""
    return f"{months} mons {days} days {sign}{_clock(abs(micros))}"


def _numeric(data: bytes) -> str:
    (head,) = struct.unpack_from("<H", data)
    if head & 0xC000 == 0xC000:
        return {0xD000: "Infinity", 0xF000: "-Infinity"}.get(head & 0xF000, "NaN")
    if head & 0x8000:
        negative, scale = bool(head & 0x2000), (head & 0x1F80) >> 7
        weight = (head & 0x3F) - (0x40 if head & 0x40 else 0)
        digits = data[2:]
    else:
        negative, scale = bool(head & 0x4000), head & 0x3FFF
        (weight,) = struct.unpack_from("<h", data, 2)
        digits = data[4:]
    groups = struct.unpack(f"<{len(digits) // 2}H", digits)
    mantissa = 0
    for group in groups:
        mantissa = mantissa * 10000 + group
    exponent = 4 * (weight - len(groups) + 1)
    # The last group may reach beyond the display scale, with zeros.
    shift = exponent + scale
    mantissa = mantissa * 10**shift if shift >= 0 else mantissa // 10**-shift
    text = str(mantissa).rjust(scale + 1, "0")
    text = f"{text[:-scale]}.{text[-scale:]}" if scale else text
    return f"-{text}" if negative else text


def _bits(data: bytes) -> str:
    (length,) = struct.unpack_from("<i", data)
    return "".join(f"{octet:08b}" for octet in data[4:])[:length]


def _network(data: bytes) -> str:
    family, bits = data[0], data[1]
    address = IPv4Address(data[2:6]) if family == 2 else IPv6Address(data[2:18])
    return f"{address}/{bits}"


def _money(data: bytes) -> str:
    cents = int.from_bytes(data[:8], "little", signed=True)
    return format(Decimal(cents) / 100, ".2f")


_FIXED: Final[dict[int, Callable[[bytes], str]]] = {
    t.BOOL: lambda d: "t" if d[0] else "f",
    t.INT2: lambda d: _integer(d, 2),
    t.INT4: lambda d: _integer(d, 4),
    t.INT8: lambda d: _integer(d, 8),
    t.OID: lambda d: str(int.from_bytes(d[:4], "little")),
    t.FLOAT4: lambda d: _float(d, "<f"),
    t.FLOAT8: lambda d: _float(d, "<d"),
    t.DATE: _date,
    t.TIME: lambda d: _clock(int.from_bytes(d[:8], "little", signed=True)),
    t.TIMESTAMP: _timestamp,
    t.TIMESTAMPTZ: lambda d: _timestamp(d, "+00"),
    t.TIMETZ: _timetz,
    t.INTERVAL: _interval,
    t.MONEY: _money,
    t.UUID: lambda d: str(UUID(bytes=d[:16])),
    t.MACADDR: lambda d: d[:6].hex(),  # macaddr
    t.MACADDR8: lambda d: ":".join(f"{o:02x}" for o in d[:8]),  # macaddr8
}
_VARLENA: Final[dict[int, Callable[[bytes], str]]] = {
    t.NUMERIC: _numeric,
    t.BYTEA: lambda d: "\\x" + d.hex(),
    t.BIT: _bits,
    t.VARBIT: _bits,
    t.INET: _network,  # inet
    t.CIDR: _network,  # cidr
}
_TEXTS: Final = frozenset({t.TEXT, t.VARCHAR, t.BPCHAR, t.JSON, t.XML})
_CODECS: Final = {"UTF8": "utf-8", "LATIN1": "latin-1"}


class Constants:
    """Proven texts of the constants of one query."""

    def __init__(self, analysis: Analysis, catalog: Catalog) -> None:
        self._analysis = analysis
        self._catalog = catalog
        encoding = analysis.conn.info.parameter_status("server_encoding") or ""
        self._codec = _CODECS.get(encoding, "ascii")
        self._texts: dict[Key, str] = {}

    def load(self, trees: list[Node], text: str) -> None:
        """Decode and verify every readable constant of ``trees``.

        ``text`` is SQL that contains them.  Constants that no function here reads (boxes, ranges,
        jsonb), or reads wrongly, are searched among the literals of ``text``.
        """
        unread: set[Key] = set()
        found: dict[Key, str] = {}
        for node in (n for tree in trees for n in tree.walk()):
            data = node.fields.get("constvalue")
            if node.kind != "CONST" or not isinstance(data, bytes):
                continue
            key = (node.number("consttype"), data)
            if key not in self._texts and key not in found:
                decoded = self._decode(*key)
                if decoded is None:
                    unread.add(key)
                else:
                    found[key] = decoded
        wanted = list(found.items())
        for start in range(0, len(wanted), _CHUNK):
            self._prove(wanted[start : start + _CHUNK])
        unread.update(found.keys() - self._texts.keys())
        for oid in sorted({oid for oid, _ in unread}):
            if not self._catalog.provenance.writable(oid):
                continue  # reading a literal could run code of the type's owner
            self._search(oid, {k for k in unread if k[0] == oid}, text)

    def _search(self, oid: int, unread: set[Key], text: str) -> None:
        """Find constants of one type among the literals of ``text``."""
        name = self._catalog.types[oid].name
        found = [x for x in scan(text) if x.kind in ("plain", "escape")]
        cast = [x for x in found if text.startswith(f"::{name}", x.end)]
        # A path inside JSON_VALUE and similar is written without its type.
        for literal in dict.fromkeys(value(text, x) for x in [*cast, *found]):
            if not unread - self._texts.keys():
                return
            try:
                for key in unread - self._texts.keys():
                    self._prove([(key, literal)])
            except psycopg.Error as error:
                if error.sqlstate is None:
                    raise  # the connection is lost

    def text(self, oid: int, data: bytes) -> str | None:
        """Return the output text of that constant; ``None`` if it cannot be read."""
        return self._texts.get((oid, data))

    def _prove(self, wanted: list[tuple[Key, str]]) -> None:
        limits.check()
        items = [
            quote(text, self._catalog.types[_proven_as(oid)].name) for (oid, _), text in wanted
        ]
        query = "SELECT " + ", ".join(f"{x} AS c{i}" for i, x in enumerate(items))
        try:
            with self._analysis.analysing() as conn:
                tree = made_view(conn, query, "headrace_constants").tree
                texts = output_texts(conn, items)
        except psycopg.errors.DataError:
            if len(wanted) > 1:
                for one in wanted:
                    self._prove([one])
            return
        targets = tree.nodes("targetList")
        for (key, literal), target, text in zip(wanted, targets, texts, strict=True):
            made = target.child("expr")
            data = made.fields.get("constvalue")
            if key[0] == t.UNKNOWN and isinstance(data, bytes):
                data = data[4:] + b"\0"
            if (made.number("consttype"), data) == (_proven_as(key[0]), key[1]):
                assert text is not None, "a constant with octets is not null"
                # The name of a table or configuration may change, its OID does not.  Postgres does
                # not print a value of type xml completely.
                as_given = key[0] in REG_TYPES or key[0] == t.XML
                self._texts[key] = literal if as_given else text

    def _decode(self, oid: int, data: bytes) -> str | None:
        try:
            return self._read(oid, data)
        except (struct.error, UnicodeDecodeError, ValueError, IndexError):
            return None  # the query is refused later, at the position of the constant

    def _read(self, oid: int, data: bytes) -> str | None:
        if oid == t.UNKNOWN:
            return data[:-1].decode(self._codec)
        if oid in REG_TYPES:
            return _FIXED[t.OID](data)
        if oid == t.NAME:
            return data.split(b"\0", 1)[0].decode(self._codec)
        if oid == t.CHAR:
            return data[:1].rstrip(b"\0").decode("ascii")
        if oid in _FIXED:
            return _FIXED[oid](data)
        kind = self._catalog.types[oid]
        if kind.kind == "e":
            return self._catalog.types.enum_label(int.from_bytes(data[:4], "little"))
        if kind.length != -1 or data[0] & 3:
            return None
        if oid in _VARLENA:
            return _VARLENA[oid](data[4:])
        if oid in _TEXTS:
            return data[4:].decode(self._codec)
        return self._array(kind.element, data) if kind.element else None

    def _array(self, element: int, data: bytes) -> str | None:
        dimensions, offset, _ = struct.unpack_from("<iiI", data, 4)
        if dimensions == 0:
            return "{}"
        if dimensions > 1:
            return None
        length, lower = struct.unpack_from("<ii", data, 16)
        kind = self._catalog.types[element]
        nulls = data[24:] if offset else None
        at = offset or 24
        parts = []
        for i in range(length):
            if nulls is not None and not nulls[i // 8] >> (i % 8) & 1:
                parts.append("NULL")
                continue
            size = {"c": 1, "s": 2, "i": 4, "d": 8}[kind.alignment]
            at = -(-at // size) * size
            width = kind.length
            if width == -1:
                width = int.from_bytes(data[at : at + 4], "little") >> 2
            text = self._read(element, data[at : at + width])
            if text is None or width <= 0:
                return None
            at += width
            escaped = text.replace("\\", "\\\\").replace('"', '\\"')
            parts.append(f'"{escaped}"')
        bounds = "" if lower == 1 else f"[{lower}:{lower + length - 1}]="
        return f"{bounds}{{{','.join(parts)}}}"


def _proven_as(oid: int) -> int:
    """Return the type of the constant that verifies a constant of type ``oid``.

    An untyped literal (an argument of concat) is a C string with the octets of a text.
    """
    return t.TEXT if oid == t.UNKNOWN else oid
