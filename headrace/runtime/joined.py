"""A worker on another machine, which registers in the catalog periodically.

    headrace worker ─► join_worker(name, proof, address, certificate) ─► certificate of the engine
    engine ─► catalog: address, certificate ─► link (TLS, both ends known)

Engine and worker find each other only through the catalog: the engine opens no port for it, and
a worker without a token cannot register.  All this runs in the parent of the process that holds
the states, because that process computes, and its interpreter lock would delay the links.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

import psycopg
import structlog

from headrace.config import Settings
from headrace.errors import HeadraceError, PrerequisiteError
from headrace.network.ends import Far
from headrace.network.tls_listener import TlsListener
from headrace.postgres import connect, failures
from headrace.process import keys, password_files, secret_files
from headrace.sql import nodes

_NOT_WE: Final = ("28000", "55006")
"""The token is revoked; another process registered as this worker (``sql/join_worker.sql``)."""

_log = structlog.get_logger(__name__)


def token(settings: Settings) -> str:
    """Return the token that this worker was given.

    Raises:
        PrerequisiteError: there is none, it is malformed, or other users may read its file.
    """
    hint = "CALL headrace.create_worker_token(name) answers one, for a file that only you may read."
    if not settings.token_file:
        raise PrerequisiteError("no token given", hint=f"Say --token-file FILE. {hint}")
    try:
        text = secret_files.read(Path(settings.token_file), "token").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PrerequisiteError(f"the token cannot be read: {error}", hint=hint) from error
    name, dot, secret = text.partition(".")
    if not (name and dot and secret):
        raise PrerequisiteError(f'file "{settings.token_file}" has no token in it', hint=hint)
    return text


def join(settings: Settings) -> bytes:
    """Register where this worker listens; return the certificate of its engine.

    Raises:
        TransientError: the database cannot be reached now.
        PrerequisiteError: it does not know the token, or has no engine; or other users may read
            the token or the password.
    """
    password_files.check(settings.source)
    own = keys.load_or_create(settings.keys_dir)
    where = settings.worker_address or settings.worker_listen
    name = f"headrace worker {settings.worker}"
    try:
        with connect.connect(settings.source, name=name) as conn:
            return nodes.join(conn, token(settings), where, own.certificate)
    except psycopg.Error as error:
        raise failures.classify(error) from error


class Joined:
    """Registration of the worker in the catalog, and the relay for the engine's connection."""

    def __init__(self, settings: Settings) -> None:
        """Register, and listen.

        Raises:
            TransientError: the database cannot be reached now.
            PrerequisiteError: as ``join``, or the worker cannot listen at its address.
        """
        self._settings: Final = settings
        self._ended = threading.Event()
        self._turn: Final = threading.Lock()
        """Held while the listener changes."""
        self._listener: TlsListener | None = None
        self._engine = b""
        self._problem: str | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-join", daemon=True)
        self._look()
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and close every connection."""
        self._ended.set()
        self._leave()

    def _run(self) -> None:
        while not self._ended.wait(nodes.JOIN_S):
            try:
                self._look()
            except (HeadraceError, OSError) as error:
                if isinstance(error, HeadraceError) and error.code in _NOT_WE:
                    self._leave()
                self._say(str(error))
            else:
                self._say(None)

    def _look(self) -> None:
        """Register, and listen for the current engine."""
        engine = join(self._settings)
        if engine == self._engine:
            return
        self._leave()
        own = keys.load_or_create(self._settings.keys_dir)
        end = Far(self._settings.worker_listen, engine, own)
        with self._turn:
            if self._ended.is_set():
                return
            self._listener = self._listen(end)
            self._engine = engine
        _log.info("joined", worker=self._settings.worker, listen=self._settings.worker_listen)

    def _listen(self, end: Far) -> TlsListener:
        try:
            return TlsListener(end, self._settings.flight_socket(self._settings.worker))
        except OSError as error:
            raise PrerequisiteError(
                f"cannot listen on {end.address}: {error}",
                hint="--listen names an address of this machine, and a port that is free.",
            ) from error

    def _leave(self) -> None:
        """Close every connection, because the engine or this worker has been replaced."""
        with self._turn:
            if self._listener is not None:
                self._listener.close()
                self._listener, self._engine = None, b""

    def _say(self, problem: str | None) -> None:
        if problem != self._problem:
            self._problem = problem
            if problem is not None:
                _log.warning("cannot join", worker=self._settings.worker, reason=problem)
