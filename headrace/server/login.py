"""Login of one session: the source asks, the client answers, and the commander watches.

Requests for a password pass through, but two messages do not.  AuthenticationOk without any request
is refused: the source trusts *this computer*, which says nothing about the client.  SCRAM is
answered on both sides (``scram.py``) if the client's TLS ends here, because the client's channel is
not the source's, unless one certificate serves both.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace.errors import PrivilegeError, ProtocolError
from headrace.server import messages as m
from headrace.server import scram

_OK: Final = 0
_SASL: Final = 10
_SASL_CONTINUE: Final = 11
_SASL_FINAL: Final = 12
_QUESTIONS: Final = frozenset((2, 3, 5, 7, 9, 10))
"""Kerberos, clear text, MD5, GSS, SSPI and SASL: requests that the client must answer."""


@dataclass(frozen=True, slots=True)
class Channel:
    """TLS of one side: whether it is on, and its channel binding data (b"": unknown)."""

    on: bool = False
    binding: bytes = b""


@dataclass(frozen=True, slots=True)
class Step:
    """Bytes to send to each side, and whether the verifier is needed."""

    client: bytes = b""
    server: bytes = b""
    asks_verifier: bool = False


class Login:
    """State of one login."""

    def __init__(self, *, allow_trust: bool, nonce: Callable[[], str]) -> None:
        self.client = Channel()
        self.source = Channel()
        self.answers_client = False
        """Whether the client's messages are answered here and not by the source."""
        self._allow_trust = allow_trust
        self._nonce = nonce
        self._asked = False
        self._offered: list[bytes] = []
        self._answering: scram.Answering | None = None
        self._asking: scram.Asking | None = None
        self._server_key = b""

    def from_source(self, body: bytes) -> Step:
        """Process an Authentication message.

        Raises:
            PrivilegeError: 28000, it may not be passed on.
        """
        reader = m.Reader(body)
        code, rest = reader.int32(), body[4:]
        if code in _QUESTIONS:
            self._asked = True
        if code == _SASL and not self.answers_client:
            return self._on_offer(body, rest)
        if self._asking is not None:
            return self._on_answer(code, body, rest)
        if code == _OK and not self._asked and not self._allow_trust:
            raise PrivilegeError(
                "the source database accepted this login without authentication",
                detail="It trusts the computer that Headrace runs on, not its clients.",
                hint="Require a password in pg_hba.conf of the source, or turn on setting"
                ' "allow_trust" to accept every client that can reach this port.',
                sqlstate="28000",
            )
        return Step(client=m.message(b"R", body))

    def _on_offer(self, body: bytes, rest: bytes) -> Step:
        names = [n for n in rest.split(b"\x00") if n]
        bound = scram.PLUS in names
        if not self.client.on:
            # libpq refuses an offer of channel binding on a connection without TLS.
            return Step(client=_offer([n for n in names if n != scram.PLUS]))
        if scram.PLAIN not in names or (
            bound and self.client.binding and self.client == self.source
        ):
            return Step(client=m.message(b"R", body))
        self._offered = names
        self.answers_client = True
        return Step(asks_verifier=True)

    def verifier_found(self, verifier: scram.Verifier | None) -> Step:
        """Continue after ``asks_verifier``; None: the verifier cannot be read.

        Raises:
            PrivilegeError: 28000, the login cannot work.
        """
        if verifier is None:
            if scram.PLUS in self._offered:
                raise PrivilegeError(
                    "SCRAM over TLS needs the stored verifier of the role",
                    hint="GRANT SELECT ON pg_authid to Headrace's role on the source.",
                    sqlstate="28000",
                )
            self.answers_client = False
            return Step(client=_offer(self._offered))
        self._server_key = verifier.server_key
        binding = self.client.binding
        self._answering = scram.Answering(verifier, binding, self._nonce())
        return Step(client=_offer(list(self._answering.mechanisms)))

    def from_client(self, body: bytes) -> Step:
        """Process a password message of the client, while ``answers_client``."""
        answering = self._answering
        if answering is None or self._asking is not None:
            raise ProtocolError("unexpected message during login")
        if not answering.started:
            reader = m.Reader(body)
            mechanism = reader.cstring()
            first = answering.first(mechanism, reader.take(max(reader.int32(), 0)))
            return Step(client=_request(_SASL_CONTINUE, first))
        self._asking = scram.Asking(
            answering.key(body), self._server_key, self._offered,
            self.source.binding, self._nonce(),
        )  # fmt: skip
        first = self._asking.first
        head = self._asking.mechanism + b"\x00" + struct.pack("!i", len(first))
        return Step(server=m.message(b"p", head + first))

    def _on_answer(self, code: int, body: bytes, rest: bytes) -> Step:
        answering, asking = self._answering, self._asking
        assert answering is not None, "the client was answered first"
        assert asking is not None, "the source was asked"
        if code == _SASL_CONTINUE:
            return Step(server=m.message(b"p", asking.final(rest)))
        if code == _SASL_FINAL:
            asking.check(rest)
            return Step()
        if code != _OK or not asking.checked or not answering.proven:
            raise ProtocolError("unexpected message of the source during login")
        self.answers_client = False
        return Step(client=_request(_SASL_FINAL, answering.final) + m.message(b"R", body))


def _request(code: int, data: bytes) -> bytes:
    return m.message(b"R", struct.pack("!i", code) + data)


def _offer(names: list[bytes]) -> bytes:
    return _request(_SASL, b"".join(n + b"\x00" for n in names) + b"\x00")
