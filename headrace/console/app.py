"""The application on the HTTP port: a table of paths, and headers that all responses have.

Files are read once, at the start.  GET changes nothing; a POST must be JSON from a page of ours,
which no other site can send.  Names, queries and messages are sent as JSON, and the page inserts
them as text.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
from functools import partial
from importlib import resources
from typing import Any, Final

import h11
import msgspec
import psycopg
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from headrace import clock
from headrace.config import address
from headrace.console.access import ENGINE, Access, Refused
from headrace.console.console_users import ConsoleUsers
from headrace.console.event_page import EventPage, filters_of
from headrace.console.graph_collector import Full
from headrace.console.host_interface import METRICS, HostInterface
from headrace.console.hostnames import Hostnames
from headrace.console.manual_terms import terms
from headrace.console.sessions import Attempts
from headrace.console.single_flight import SingleFlight
from headrace.console.sql_page import SQL_BYTES_MAX, Busy, SqlPage, body_of
from headrace.console.streaming import Live, left
from headrace.process.admission import network

BODY_BYTES_MAX: Final = 8_192
BODY_S: Final = 10.0
ANSWER_S: Final = 30.0
NAME_MAX: Final = 300
"""Limit of the characters of a view's name, qualified and quoted."""
_PER_NETWORK: Final = 10
_PER_ROLE: Final = 30
"""Limits of logins a minute, by network and by role."""
_TRACEBACKS: Final = 3
"""Limit of tracebacks a minute in the log, for each type of error."""
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "json": "application/json",
}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
]
_log = structlog.get_logger(__name__)


class LoginBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a login: a token, or a role and its password."""

    token: str = ""
    role: str = ""
    password: str = ""


_LOGIN: Final = msgspec.json.Decoder(LoginBody)


class App:
    """The ASGI application of one commander."""

    def __init__(self, outside: HostInterface, access: Access | None) -> None:
        """Take ``access``; None: there is no console."""
        self._outside = outside
        self._by_network = Attempts(_PER_NETWORK)
        self._by_role = Attempts(_PER_ROLE)
        self._errors = Attempts(_TRACEBACKS)
        self._ready = SingleFlight(outside.health.ready)
        self._metrics_page = SingleFlight(outside.health.metrics)
        settings = outside.settings
        listen, _ = address(settings.http) if settings.http else ("", 0)
        self._hostnames = Hostnames(listen, settings.http_hosts, tls=outside.tls is not None)
        routes = [
            Route("/livez", self._livez),
            Route("/readyz", self._readyz),
            Route("/metrics", self._metrics),
        ]
        self.people: ConsoleUsers | None = None
        if access is not None:
            self.people = ConsoleUsers(outside, access)
            self._sql_page = SqlPage(outside)
            self._event_page = EventPage()
            manual = _files("manual", "manual/")
            self._files = _files("static") | manual | _terms(manual)
            routes += [
                Route("/", self._file),
                Route("/static/{path:path}", self._file),
                Route("/manual/", self._manual),
                Route("/manual/{path:path}", self._manual),
                Route("/api/me", self._me),
                Route("/api/events", self._events),
                Route("/api/login", self._login, methods=["POST"]),
                Route("/api/logout", self._logout, methods=["POST"]),
                Route("/api/sql", self._sql, methods=["POST"]),
                Route("/api/log", self._log),
            ]
        handlers: dict[Any, Any] = {HTTPException: _refused}
        self._app = Starlette(routes=routes, exception_handlers=handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with our headers, within a time limit, and without internal errors."""
        begun = False

        async def with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message = {**message, "headers": [*message["headers"], *_HEADERS]}
            await send(message)

        try:
            if (status := self._hostnames.refusal(scope["headers"])) is not None:
                await PlainTextResponse(_HOSTS[status], status)(scope, receive, with_headers)
            elif scope["path"] == "/api/events":
                await self._app(scope, receive, with_headers)  # it has limits of its own
            else:
                async with asyncio.timeout(ANSWER_S):
                    await self._app(scope, receive, with_headers)
        except (TimeoutError, OSError, ClientDisconnect, h11.LocalProtocolError):
            pass  # a client that is slow, or gone, or has sent no HTTP
        except Exception as error:  # noqa: BLE001  the request's boundary, as a session's
            self._log_error(scope, error)
            if not begun:
                await PlainTextResponse("internal error\n", 500)(scope, receive, with_headers)

    def _log_error(self, scope: Scope, error: Exception) -> None:
        """Log an internal error; a client that causes it repeatedly must not fill the log."""
        kind, now = type(error).__name__, clock.monotonic()
        if not self._errors.wait_s(kind, now):
            self._errors.begin(kind, now)
            _log.exception("request failed", path=scope["path"][:NAME_MAX])

    async def _livez(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, _: Request) -> Response:
        ready, why = await self._ready()
        return PlainTextResponse(why + "\n", 200 if ready else 503)

    async def _metrics(self, _: Request) -> Response:
        text = await self._metrics_page()
        return Response(text, media_type=METRICS)

    async def _file(self, request: Request) -> Response:
        return self._found(request, request.path_params.get("path", "index.html"))

    async def _manual(self, request: Request) -> Response:
        path = request.path_params.get("path")
        if not path:
            return RedirectResponse("/manual/manual/start.html", 302)
        return self._found(request, f"manual/{path}")

    def _found(self, request: Request, name: str) -> Response:
        found = self._files.get(name)
        if found is None:
            raise HTTPException(404)
        kind, tag, data = found
        headers = {"etag": tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type=kind, headers=headers)

    async def _me(self, request: Request) -> Response:
        assert self.people is not None, "there is a console"
        found = self.people.find(_cookie(request))
        safe = self._is_safe(request)
        if found is None:
            return _json({"role": None, "safe": safe})
        session, lookout = found
        identity = lookout.identity
        told = {
            "role": identity.role,
            "engine": session.identity == ENGINE,
            "database": identity.database,
            "safe": safe,
            "csrf": csrf_token(_cookie(request)),
            "reads_only": session.identity == ENGINE or identity.own.read_only,
        }
        return _json(told)

    async def _login(self, request: Request) -> Response:
        assert self.people is not None, "there is a console"
        _check_own(request)
        if not self._is_safe(request):
            return _json({"error": "log in over TLS or from the server's own machine"}, 403)
        try:
            body = _LOGIN.decode(await _body(request))
        except msgspec.MsgspecError as error:
            raise HTTPException(400) from error
        now = clock.monotonic()
        keys = [(self._by_network, network(_client(request)))]
        if not body.token:
            keys.append((self._by_role, body.role[:NAME_MAX]))
        elif self.people.is_token(body.token):
            keys = []  # wrong logins of other clients at this address do not lock it out
        if wait_s := max((tries.wait_s(key, now) for tries, key in keys), default=0):
            told = {"error": f"too many logins: try again in {wait_s} s"}
            return _json(told, 429, {"retry-after": str(wait_s)})
        for tries, key in keys:
            tries.begin(key, now)
        try:
            cookie, lookout = await self.people.log_in(body.token, body.role, body.password)
        except (Refused, Full) as error:
            return _json({"error": str(error)}, 403)
        for tries, key in keys:
            tries.succeeded(key)
        answer = _json({"role": lookout.identity.role, "database": lookout.identity.database})
        self._set_cookie(answer, request, cookie)
        return answer

    async def _logout(self, request: Request) -> Response:
        assert self.people is not None, "there is a console"
        _check_own(request)
        await self.people.log_out(_cookie(request))
        answer = _json({})
        self._set_cookie(answer, request, "")
        return answer

    async def _sql(self, request: Request) -> Response:
        assert self.people is not None, "there is a console"
        _check_own(request)
        found = self.people.find(_cookie(request))
        if found is None:
            raise HTTPException(401)
        _check_csrf(request)
        try:
            body = body_of(await _body(request, SQL_BYTES_MAX))
        except msgspec.MsgspecError as error:
            raise HTTPException(400) from error
        if len(body.name) > NAME_MAX or "\0" in body.query + body.name:
            raise HTTPException(400)
        session, lookout = found
        session.seen = clock.monotonic()
        try:
            leaving = partial(left, request.receive)
            told = await self._sql_page.answer(lookout.identity, body, leaving)
        except Busy as error:
            return _json({"error": {"sqlstate": "53400", "message": str(error)}}, 429)
        return _json(told)

    async def _log(self, request: Request) -> Response:
        assert self.people is not None, "there is a console"
        found = self.people.find(_cookie(request))
        if found is None:
            raise HTTPException(401)
        filters = filters_of(request.query_params)
        if filters is None:
            raise HTTPException(400)
        try:
            return _json(await self._event_page.answer(found[1].identity, filters))
        except Full as error:
            return _json({"error": str(error)}, 429)
        except (psycopg.Error, TimeoutError):
            return _json({"error": "the database does not answer in time"}, 503)

    async def _events(self, request: Request) -> Any:
        assert self.people is not None, "there is a console"
        found = self.people.find(_cookie(request))
        if found is None:
            raise HTTPException(401)
        session, lookout = found
        view = request.query_params.get("view") or None
        if view is not None and (len(view) > NAME_MAX or "\0" in view):
            raise HTTPException(400)
        try:
            stream = lookout.follow(view, log=request.query_params.get("log") == "1")
        except Full as error:
            return _json({"error": str(error)}, 503)
        return Live(
            lookout=lookout,
            stream=stream,
            view=view,
            session=session,
            sessions=self.people.sessions,
        )

    def _is_safe(self, request: Request) -> bool:
        """Return whether a secret may come over this connection."""
        if request.url.scheme == "https" or self._outside.settings.console_plain:
            return True
        try:
            address = ipaddress.ip_address(_client(request).partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return (mapped or address).is_loopback

    @staticmethod
    def _set_cookie(answer: Response, request: Request, value: str) -> None:
        secure = request.url.scheme == "https"
        answer.set_cookie(
            _cookie_name(request),
            value,
            max_age=None if value else 0,
            path="/",
            secure=secure,
            httponly=True,
            samesite="strict",
        )


def _cookie_name(request: Request) -> str:
    # Cookies ignore ports: two engines on one computer must not log each other out.
    port = request.url.port or 0
    return f"__Host-headrace-{port}" if request.url.scheme == "https" else f"headrace-{port}"


def _cookie(request: Request) -> str:
    return request.cookies.get(_cookie_name(request), "")


def _client(request: Request) -> str:
    return request.client.host if request.client else ""


def _check_own(request: Request) -> None:
    """Refuse a request that a page of another site may send.

    A form cannot send JSON as its content type, and a script of another site would need a
    preflight.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415)
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise HTTPException(403)


def csrf_token(cookie: str) -> str:
    """Return the token that a page of the session of ``cookie`` sends with what it changes."""
    return hashlib.sha256(b"headrace csrf " + cookie.encode()).hexdigest()


def _check_csrf(request: Request) -> None:
    given = request.headers.get("x-headrace-csrf", "").encode(errors="replace")
    if not hmac.compare_digest(given, csrf_token(_cookie(request)).encode()):
        raise HTTPException(403)


async def _body(request: Request, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    data = b""
    async with asyncio.timeout(BODY_S):
        async for part in request.stream():
            data += part
            if len(data) > bytes_max:
                raise HTTPException(413)
    return data


def _json(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    told = {"cache-control": "no-store"} | (headers or {})
    return Response(msgspec.json.encode(data), status, told, "application/json")


_HOSTS: Final = {
    400: "invalid Host header\n",
    421: "unknown host name: add it to the setting http_hosts\n",
}
_WORDS: Final = {404: "not found\n", 405: "only GET\n", 401: "log in first\n"}


async def _refused(request: Request, error: HTTPException) -> Response:
    allowed = (error.headers or {}).get("Allow", "")
    words = _WORDS.get(error.status_code, "")
    if error.status_code == 405 and "GET" not in allowed:
        words = f"only {allowed}\n"
    return PlainTextResponse(words, error.status_code, error.headers)


def _terms(manual: dict[str, tuple[str, str, bytes]]) -> dict[str, tuple[str, str, bytes]]:
    """Return the file of the terms that the page links; empty: the manual is not built."""
    pages = {
        name.removeprefix("manual/"): data.decode(errors="replace")
        for name, (_, _, data) in manual.items()
        if name.endswith(".html")
    }
    return (
        {"manual/terms.json": _file_of("json", msgspec.json.encode(terms(pages)))} if pages else {}
    )


def _file_of(kind: str, data: bytes) -> tuple[str, str, bytes]:
    return _TYPES[kind], f'"{hashlib.sha256(data).hexdigest()[:32]}"', data


def _files(folder: str, prefix: str = "") -> dict[str, tuple[str, str, bytes]]:
    """Return name -> (type, ETag, bytes) of the files in a folder; empty: it does not exist."""
    top = resources.files("headrace.console") / folder
    out = {}
    left = [(prefix, top)] if top.is_dir() else []
    while left:
        prefix, below = left.pop()
        for item in below.iterdir():
            if item.is_dir():
                left.append((f"{prefix}{item.name}/", item))
            elif (kind := item.name.rpartition(".")[2]) in _TYPES:
                out[prefix + item.name] = _file_of(kind, item.read_bytes())
    return out
