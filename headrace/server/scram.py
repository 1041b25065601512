"""SCRAM-SHA-256 on both sides of a session whose two TLS connections end here.

A client's proof covers the TLS channel that it sees, which is not the source's.  So the commander
answers the client itself, using the verifier that the source has stored.  A correct proof yields
the client's key, and with that the commander logs in to the source as the client.  Passwords are
never seen; keys live as long as the login.  A wrong proof yields a wrong key, which the source then
refuses in its own words.

Source: RFC 5802, RFC 5929 (tls-server-end-point), RFC 7677.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Final, Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from headrace.errors import ProtocolError

PLAIN: Final = b"SCRAM-SHA-256"
PLUS: Final = b"SCRAM-SHA-256-PLUS"
_END_POINT: Final = b"p=tls-server-end-point,,"
_ITERATIONS: Final = 4096
_STORED: Final = re.compile(
    r"SCRAM-SHA-256\$(\d{1,9}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)"
)
_REPLACED: Final = ("md5", "sha1")
"""Hashes of signatures in whose place SHA-256 counts."""


def end_point(certificate: bytes) -> bytes:
    """Return the channel binding data of a certificate (DER); b"" if its hash is unknown."""
    try:
        found = x509.load_der_x509_certificate(certificate).signature_hash_algorithm
    except (ValueError, UnsupportedAlgorithm):
        return b""
    if found is None:  # as for Ed25519, which hashes in its own way
        return b""
    name = "sha256" if found.name in _REPLACED else found.name
    return hashlib.new(name, certificate).digest()


@dataclass(frozen=True, slots=True)
class Verifier:
    """The data that a server stores instead of a password."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def read(cls, stored: str) -> Self | None:
        """Parse ``pg_authid.rolpassword``; return None if it is not for SCRAM-SHA-256."""
        found = _STORED.fullmatch(stored)
        if not found:
            return None
        salt, stored_key, server_key = (_b64(found[i].encode()) for i in (2, 3, 4))
        return cls(int(found[1]), salt, stored_key, server_key)

    @classmethod
    def mock(cls, secret: bytes, user: str) -> Self:
        """Return a verifier that fits no password, always the same: it hides which roles exist."""
        salt, stored, server = (
            hmac.digest(secret, part + user.encode("utf-8", "replace"), "sha256")
            for part in (b"salt ", b"stored ", b"server ")
        )
        return cls(_ITERATIONS, salt[:16], stored, server)


class Answering:
    """The server's side, toward the client."""

    def __init__(self, verifier: Verifier, binding: bytes, nonce: str) -> None:
        """Take ``binding``, that of our certificate (b"": none is offered)."""
        self._verifier = verifier
        self._binding = binding
        self._nonce = nonce.encode()
        self._header = self._bare = self._first = self._expected = b""
        self.final = b""
        """server-final-message, once the client's proof was read."""
        self.proven = False

    @property
    def started(self) -> bool:
        """Whether the client has sent its first message."""
        return bool(self._first)

    @property
    def mechanisms(self) -> tuple[bytes, ...]:
        """Mechanisms to offer."""
        return (PLUS, PLAIN) if self._binding else (PLAIN,)

    def first(self, mechanism: bytes, message: bytes) -> bytes:
        """Return the server-first-message for the client's first message."""
        flag, _, rest = message.partition(b",")
        authorization, _, self._bare = rest.partition(b",")
        self._header = flag + b"," + authorization + b","
        if mechanism not in self.mechanisms or authorization:
            raise ProtocolError("malformed SCRAM message")
        bound = mechanism == PLUS
        if bound != (self._header == _END_POINT) or (
            not bound and flag != b"n" and (flag != b"y" or self._binding)
        ):
            # "y": the client believes that we offered none, so an attacker removed the offer.
            raise ProtocolError("SCRAM channel binding negotiation error")
        names = dict(p.split(b"=", 1) for p in self._bare.split(b",") if b"=" in p)
        if not names.get(b"r") or b"m" in names:
            raise ProtocolError("malformed SCRAM message")
        self._expected = names[b"r"] + self._nonce
        v = self._verifier
        salt = base64.b64encode(v.salt)
        self._first = b"r=%s,s=%s,i=%d" % (self._expected, salt, v.iterations)
        return self._first

    def key(self, message: bytes) -> bytes:
        """Return the client's key from its final message (a wrong one if the proof is wrong)."""
        without, mark, proof = message.rpartition(b",p=")
        binding, _, rest = without.partition(b",")
        bound = self._binding if self._header == _END_POINT else b""
        channel = b"c=" + base64.b64encode(self._header + bound)
        if not mark or rest.split(b",")[0] != b"r=" + self._expected:
            raise ProtocolError("malformed SCRAM message")
        if not hmac.compare_digest(binding, channel):
            raise ProtocolError("SCRAM channel binding check failed")
        text = b",".join((self._bare, self._first, without))
        signature = hmac.digest(self._verifier.stored_key, text, "sha256")
        key = _xor(_b64(proof), signature)
        found = hashlib.sha256(key).digest()
        self.proven = hmac.compare_digest(found, self._verifier.stored_key)
        final = hmac.digest(self._verifier.server_key, text, "sha256")
        self.final = b"v=" + base64.b64encode(final)
        return key


class Asking:
    """The client's side, toward the source, with the client's key."""

    def __init__(
        self, key: bytes, server_key: bytes, offered: list[bytes], binding: bytes,
        nonce: str,
    ) -> None:  # fmt: skip
        """Take ``binding``, that of the source's certificate."""
        bound = bool(binding) and PLUS in offered
        self.mechanism = PLUS if bound else PLAIN
        self._key, self._server_key = key, server_key
        self._header = _END_POINT if bound else b"n,,"
        self._binding = binding if bound else b""
        self._nonce = nonce.encode()
        self._signature = b""
        self.checked = False
        """Whether the source has proven that it knows the verifier."""

    @property
    def first(self) -> bytes:
        """client-first-message."""
        return self._header + b"n=,r=" + self._nonce

    def final(self, first: bytes) -> bytes:
        """Return the client-final-message for the source's first message."""
        nonce = first.split(b",")[0]
        if not nonce.startswith(b"r=" + self._nonce):
            raise ProtocolError("malformed SCRAM message of the source")
        channel = base64.b64encode(self._header + self._binding)
        without = b"c=" + channel + b"," + nonce
        text = b",".join((b"n=,r=" + self._nonce, first, without))
        stored = hashlib.sha256(self._key).digest()
        proof = _xor(self._key, hmac.digest(stored, text, "sha256"))
        self._signature = hmac.digest(self._server_key, text, "sha256")
        return without + b",p=" + base64.b64encode(proof)

    def check(self, final: bytes) -> None:
        """Raise ProtocolError unless the source proves that it knows the verifier."""
        shown = b"v=" + base64.b64encode(self._signature)
        if not hmac.compare_digest(final, shown):
            raise ProtocolError("the source does not prove that it knows the verifier")
        self.checked = True


def _xor(a: bytes, b: bytes) -> bytes:
    if len(a) != len(b):
        raise ProtocolError("malformed SCRAM message")
    return bytes(x ^ y for x, y in zip(a, b, strict=True))


def _b64(data: bytes) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise ProtocolError("malformed SCRAM message") from error
