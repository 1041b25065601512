"""Wire messages of the Postgres protocol, version 3: bytes to values and back, no sockets.

Only messages that the commander reads or sends are here; all others are relayed unread.  Lengths
are checked against a limit before the commander waits for a body or stores it.

Source: "Message Formats" of the Postgres documentation.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.errors import ProtocolError
from headrace.kernels import wire
from headrace.types import TEXT

HEADER_BYTES: Final = wire.HEADER_BYTES
STARTUP_BYTES_MIN: Final = 8
STARTUP_BYTES_MAX: Final = 10_000
SMALL_BYTES_MAX: Final = 10_000
LOGIN_BYTES_MAX: Final = 65_540
MESSAGE_BYTES_MAX: Final = wire.MESSAGE_BYTES_MAX
"""A message of that size is streamed, never stored."""

CANCEL_CODE: Final = 80_877_102
SSL_CODE: Final = 80_877_103
GSS_CODE: Final = 80_877_104

SSL_REQUEST: Final = struct.pack("!ii", 8, SSL_CODE)
SYNC: Final = b"S\x00\x00\x00\x04"
FLUSH: Final = b"H\x00\x00\x00\x04"

# Values of a DataRow; message types of a client with a low length limit.
_NULL: Final = struct.pack("!i", -1)
_EMPTY: Final = frozenset(b"SHXc")
_SMALL: Final = frozenset(b"ECD")

_PYTHON_ENCODINGS: Final = {
    "UTF8": "utf-8",
    "SQL_ASCII": "utf-8",
    "LATIN1": "latin-1",
    "LATIN2": "iso8859-2",
    "LATIN5": "iso8859-9",
    "LATIN9": "iso8859-15",
    "WIN1250": "cp1250",
    "WIN1251": "cp1251",
    "WIN1252": "cp1252",
    "WIN1253": "cp1253",
    "WIN1254": "cp1254",
    "WIN1257": "cp1257",
    "KOI8R": "koi8-r",
    "KOI8U": "koi8-u",
    "EUC_JP": "euc_jp",
    "EUC_CN": "gb2312",
    "EUC_KR": "euc_kr",
    "SJIS": "shift_jis",
    "BIG5": "big5",
    "GBK": "gbk",
    "GB18030": "gb18030",
}


def python_encoding(name: str) -> str | None:
    """Return Python's codec for Postgres' encoding ``name``; None if no codec is trusted."""
    return _PYTHON_ENCODINGS.get(name.upper())


# --- the client's first packet


@dataclass(frozen=True, slots=True)
class StartupPacket:
    """A packet without type byte: ``code`` is a protocol version or a request code."""

    code: int
    packet: bytes

    @property
    def parameters(self) -> dict[str, str]:
        """Names and values of a StartupMessage, as far as they can be decoded."""
        parts = self.packet[8:].split(b"\x00")
        text = [p.decode("utf-8", "replace") for p in parts]
        pairs = zip(text[::2], text[1::2], strict=False)
        return {name: value for name, value in pairs if name}


def read_startup(buffer: bytes | bytearray) -> StartupPacket | None:
    """Return the packet at the start of ``buffer``; None if incomplete.

    Raises:
        ProtocolError: its length is invalid.
    """
    if len(buffer) < 4:
        return None
    (length,) = struct.unpack_from("!i", buffer)
    if not STARTUP_BYTES_MIN <= length <= STARTUP_BYTES_MAX:
        raise ProtocolError("invalid length of startup packet")
    if len(buffer) < length:
        return None
    (code,) = struct.unpack_from("!i", buffer, 4)
    return StartupPacket(code, bytes(buffer[:length]))


def check_length(kind: int, length: int) -> None:
    """Raise ProtocolError for a length that Postgres would refuse, before the body has come."""
    if not 4 <= length <= length_max(kind):
        raise ProtocolError("invalid message length")


def length_max(kind: int) -> int:
    """Return the maximum length of a client's message."""
    if kind in _EMPTY:
        return 4
    return SMALL_BYTES_MAX if kind in _SMALL else MESSAGE_BYTES_MAX


# --- messages of the client


@dataclass(frozen=True, slots=True)
class Parse:
    """Parse: statement name, query (still encoded) and declared parameter types."""

    name: bytes
    query: bytes
    oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bind:
    """Bind: each parameter with its format (0 text, 1 binary); None is NULL."""

    portal: bytes
    statement: bytes
    parameters: tuple[tuple[int, bytes | None], ...]


class Reader:
    """Reader of the body of one message; data that does not fit raises ProtocolError."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def cstring(self) -> bytes:
        """Return the bytes up to the next NUL."""
        end = self._body.find(b"\x00", self._at)
        if end < 0:
            raise ProtocolError("invalid string in message")
        out = self._body[self._at : end]
        self._at = end + 1
        return out

    def int16(self) -> int:
        """Return unsigned 16 bits: counts are never negative (65 535 parameters are legal)."""
        return int.from_bytes(self.take(2), "big")

    def int32(self) -> int:
        """Return signed 32 bits."""
        return int.from_bytes(self.take(4), "big", signed=True)

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        if size < 0 or self._at + size > len(self._body):
            raise ProtocolError("insufficient data left in message")
        out = self._body[self._at : self._at + size]
        self._at += size
        return out


def read_parse(body: bytes) -> Parse:
    """Decode the body of a Parse message."""
    reader = Reader(body)
    name, query = reader.cstring(), reader.cstring()
    count = reader.int16()
    return Parse(name, query, tuple(reader.int32() for _ in range(count)))


def read_bind(body: bytes) -> Bind:
    """Decode the body of a Bind message."""
    reader = Reader(body)
    portal, statement = reader.cstring(), reader.cstring()
    formats = [reader.int16() for _ in range(reader.int16())]
    count = reader.int16()
    if len(formats) not in (0, 1, count):
        raise ProtocolError("bind message has wrong number of parameter formats")
    if len(formats) < count:
        formats = (formats or [0]) * count
    values: list[tuple[int, bytes | None]] = []
    for number in range(count):
        size = reader.int32()
        # -1 is NULL, not a length.
        values.append((formats[number], None if size == -1 else reader.take(size)))
    return Bind(portal, statement, tuple(values))


# --- messages of the commander


def message(kind: bytes, body: bytes = b"") -> bytes:
    """Return a message with type byte and length."""
    return kind + struct.pack("!i", len(body) + 4) + body


def _report(kind: bytes, severity: str, fields: Mapping[str, str], encoding: str) -> bytes:
    ordered = {"S": severity, "V": severity, **fields}
    parts = [
        key.encode() + value.replace("\x00", "").encode(encoding, "replace") + b"\x00"
        for key, value in ordered.items()
    ]
    return message(kind, b"".join(parts) + b"\x00")


def error_response(
    fields: Mapping[str, str], *, severity: str = "ERROR", encoding: str = "utf-8"
) -> bytes:
    """Return an ErrorResponse; ``fields`` has C and M, perhaps D, H, P, p, q."""
    return _report(b"E", severity, fields, encoding)


def notice_response(text: str, *, severity: str = "NOTICE", encoding: str = "utf-8") -> bytes:
    """Return a NoticeResponse with SQLSTATE 00000."""
    return _report(b"N", severity, {"C": "00000", "M": text}, encoding)


def command_complete(tag: str) -> bytes:
    """Return a CommandComplete."""
    return message(b"C", tag.encode() + b"\x00")


def ready_for_query(status: bytes) -> bytes:
    """Return a ReadyForQuery; ``status`` is I, T or E."""
    return message(b"Z", status)


@dataclass(frozen=True, slots=True)
class ResultSet:
    """Rows that a call returns; on the wire each value is a text."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[str | int | float | bool | None]]
    """None is NULL."""


def row_description(columns: Sequence[str]) -> bytes:
    """Return a RowDescription of columns of type text."""
    out = [struct.pack("!h", len(columns))]
    out += [
        name.encode() + b"\x00" + struct.pack("!ihihih", 0, 0, TEXT, -1, -1, 0) for name in columns
    ]
    return message(b"T", b"".join(out))


def data_rows(found: ResultSet, encoding: str) -> bytes:
    """Return a DataRow for each row; the text and binary formats of a text are equal."""
    out = []
    for row in found.rows:
        parts = [struct.pack("!h", len(row))]
        for _, value in zip(found.columns, row, strict=True):
            data = str(value).encode(encoding, "replace")
            parts.append(_NULL if value is None else struct.pack("!i", len(data)) + data)
        out.append(message(b"D", b"".join(parts)))
    return b"".join(out)


def read_data_row(body: bytes) -> list[bytes | None]:
    """Return the values of a DataRow."""
    reader = Reader(body)
    values: list[bytes | None] = []
    for _ in range(reader.int16()):
        size = reader.int32()
        values.append(None if size == -1 else reader.take(size))
    return values


def cancel_request(key: bytes) -> bytes:
    """Return a CancelRequest; ``key`` as in BackendKeyData."""
    return struct.pack("!ii", len(key) + 8, CANCEL_CODE) + key


def query(text: str) -> bytes:
    """Return a Query message (simple protocol)."""
    return message(b"Q", text.encode() + b"\x00")


def extended_query(name: bytes, text: bytes, value: bytes) -> bytes:
    """Return Parse, Bind (one text parameter), Execute, Close of both, and Sync, under ``name``.

    The unnamed statement and portal belong to the client: a simple Query would drop them.
    """
    none = b"\x00\x00"
    given = struct.pack("!hi", 1, len(value)) + value
    return b"".join(
        (
            message(b"P", name + b"\x00" + text + b"\x00" + none),
            message(b"B", name + b"\x00" + name + b"\x00" + none + given + none),
            message(b"E", name + b"\x00\x00\x00\x00\x00"),
            message(b"C", b"P" + name + b"\x00"),
            message(b"C", b"S" + name + b"\x00"),
            SYNC,
        )
    )
