"""The verbs: what a call can ask of Headrace; what each is called, takes and needs.

Of the table come the procedures in the user's database (``sql/calls.py``), how calls on our own
port are bound (``server/procedures.py``), and the request that the builder or worker is sent.  What
a verb *does*: ``DOES`` in ``views/builder.py``; those of the commander in ``server/commands.py``.

A request's positional fields are the arguments of the call, in its order; their types are those
of SQL.  What has to be named is added by the server, and can be said by nobody else.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Final

Json = Any
Lsn = str
Interval = str
_KINDS: Final = {
    "str": "text",
    "bool": "bool",
    "int": "bigint",
    "Json": "jsonb",
    "Lsn": "pg_lsn",
    "Interval": "interval",
}


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked; ``settings`` are those of the caller's session."""

    caller: str | None = field(default=None, kw_only=True)
    settings: dict[str, str] = field(default_factory=dict, kw_only=True)
    unasked: bool = field(default=False, kw_only=True)
    """Whether nobody has called: the server does it by itself."""

    def message(self) -> dict[str, Any]:
        """What the process that does it is sent."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


@dataclass(frozen=True, slots=True)
class ViewRequest(Request):
    """What is asked of a view; so are most."""

    name: str


@dataclass(frozen=True, slots=True)
class CreateView(ViewRequest):
    """A new view of ``query``."""

    query: str
    options: Json = field(default_factory=dict)
    replace: bool = False
    """Whether one of that name that is there becomes that instead."""


@dataclass(frozen=True, slots=True)
class CheckView(Request):
    """Whether there could be a view of ``query`` with ``options``."""

    query: str
    options: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Advise(Request):
    """What a view of ``query`` would cost; None: which queries should be views."""

    query: str | None = None


@dataclass(frozen=True, slots=True)
class DropView(ViewRequest):
    """The end of a view; none is no error, ``if_exists``."""

    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateIndex(Request):
    """An index of the table of ``view``; ``definition`` is what follows it in CREATE INDEX."""

    view: str
    definition: str


@dataclass(frozen=True, slots=True)
class DropIndex(Request):
    """The end of an index."""

    name: str


@dataclass(frozen=True, slots=True)
class ExplainView(Request):
    """A plan, of a view or of a query that is none yet.

    ``dialect``: that of the query, if it is not Postgres'.
    """

    name_or_query: str
    stage: str = "physical"
    format: str = "text"
    dialect: str | None = None


@dataclass(frozen=True, slots=True)
class AlterView(ViewRequest):
    """Another query for a view; ``options`` are those that change."""

    query: str
    options: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RenameView(ViewRequest):
    """Another name for a view."""

    new_name: str


@dataclass(frozen=True, slots=True)
class SetHistory(ViewRequest):
    """For how long a view's changes are kept; None: no longer."""

    keep: str | None = None


@dataclass(frozen=True, slots=True)
class SetLatency(ViewRequest):
    """How late after a commit a view may show it, milliseconds; 0: as early as can be."""

    latency_ms: int = 0


@dataclass(frozen=True, slots=True)
class CreatePoint(Request):
    """A name for the output of ``view``; ``history`` is an interval, ``storage_key`` a column."""

    name: str
    view: str
    at: str | None = None
    history: str | None = None
    storage_key: str | None = None


@dataclass(frozen=True, slots=True)
class DropPoint(Request):
    """The end of a connection point."""

    name: str


@dataclass(frozen=True, slots=True)
class SetPlacement(ViewRequest):
    """Another place for a view: a worker, a strategy, or as JSON the workers of its collections."""

    worker: str


@dataclass(frozen=True, slots=True)
class ExplainPlacement(Request):
    """Where the collections of a view are, or of a query would be.

    ``strategy``: who decides; None: the view's option, or for a query ``auto``.
    """

    name_or_query: str
    strategy: str | None = None


@dataclass(frozen=True, slots=True)
class AddWorker(Request):
    """Another worker, on which views may be placed; ``capacity``: collections, for strategies."""

    name: str
    capacity: int = 100


@dataclass(frozen=True, slots=True)
class CreateWorkerToken(Request):
    """What a worker on another machine joins by, or another such token for it.

    ``digest``: SHA-256, as hex, of the secret that the procedure has made; None: make one.
    """

    name: str
    digest: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class RemoveWorker(Request):
    """The end of a worker on which none is."""

    name: str


@dataclass(frozen=True, slots=True)
class AddLink(Request):
    """What the link to a worker is like, whatever is measured; None: that counts."""

    worker: str
    latency_ms: int | None = None
    bytes_per_s: int | None = None


@dataclass(frozen=True, slots=True)
class DropLink(Request):
    """What is measured of the link to a worker counts again."""

    worker: str


@dataclass(frozen=True, slots=True)
class DrainWorker(Request):
    """All views of a worker elsewhere."""

    name: str


@dataclass(frozen=True, slots=True)
class Rebalance(Request):
    """Which views should move for the workers to have alike to do; ``apply``: they do."""

    apply: bool = False


@dataclass(frozen=True, slots=True)
class AddSource(Request):
    """Another database, whose ``tables`` views may read; ``dsn`` is how it is reached.

    ``tables`` are names, separated by commas; None: those that are here as well.
    """

    name: str
    dsn: str
    tables: str | None = None


@dataclass(frozen=True, slots=True)
class DropSource(Request):
    """The end of a source that no view reads."""

    name: str


@dataclass(frozen=True, slots=True)
class CreateLogicalTable(Request):
    """A view that unites ``of_table`` here and in all sources that have it.

    ``source_column``: what the column is called that tells where a row comes from; None: none.
    """

    name: str
    of_table: str
    source_column: str | None = None


@dataclass(frozen=True, slots=True)
class SetOwner(ViewRequest):
    """Another owner for a view."""

    role: str


@dataclass(frozen=True, slots=True)
class ResyncView(ViewRequest):
    """A view filled anew.

    ``of``: only if its id is still that, hence nobody has filled it meanwhile.  ``because``: why
    that is done without a call.
    """

    of: int | None = field(default=None, kw_only=True)
    because: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class WaitFor(ViewRequest):
    """The moment at which a view covers a position, by default that of the call."""

    lsn: Lsn | None = None
    timeout: Interval | None = None


@dataclass(frozen=True, slots=True)
class EndClient(Request):
    """The client with this ``id``, as ``clients()`` shows it."""

    id: int


@dataclass(frozen=True, slots=True)
class FailBatch(Request):
    """A batch in flight, to be processed again."""

    txid: int


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument of a call; ``kind`` is text, jsonb, bool, pg_lsn, interval or bigint."""

    name: str
    kind: str
    required: bool = True
    default: Any = None


@dataclass(frozen=True, slots=True)
class Inout:
    """The INOUT argument in which a procedure answers: an expression over the command's result."""

    name: str
    kind: str
    value: str = "{}"


@dataclass(frozen=True, slots=True)
class Verb:
    """One thing that can be asked for."""

    name: str
    request: type[Request]
    by: str = "builder"
    """The process that does it: builder, worker or commander."""
    fills: bool = False
    """Whether it populates a view, and waits for its turn."""
    tells: bool = False
    """Whether its caller hears how far it is, or why he waits."""
    selected: bool = False
    """Whether it is selected from: a function, with a file of its own."""
    relayed: bool = False
    """Whether it comes by the command table only: Postgres reads its arguments."""
    secret: bool = False
    """Whether its procedure makes a secret, and passes argument ``digest``, its SHA-256, only."""
    procedure: str | None = None
    """The procedure's name, if that is not the verb's."""
    answer: Inout | None = None
    reads: bool = False
    """Whether it changes nothing, and so may be called in a read-only transaction."""
    parameters: tuple[Parameter, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Parameters are the positional fields of the request."""
        object.__setattr__(self, "parameters", _parameters(self.request))

    @property
    def called(self) -> str | None:
        """The name of its procedure; None: it has none."""
        return self.procedure or (None if self.selected else self.name)


def _parameters(request: type[Request]) -> tuple[Parameter, ...]:
    out = []
    for each in dataclasses.fields(request):
        if each.kw_only:
            continue
        kind = _KINDS[str(each.type).removesuffix(" | None")]
        if each.default_factory is not dataclasses.MISSING:
            out.append(Parameter(each.name, kind, False, each.default_factory()))
        elif each.default is not dataclasses.MISSING:
            out.append(Parameter(each.name, kind, False, each.default))
        else:
            out.append(Parameter(each.name, kind))
    return tuple(out)


_PLAN: Final = Inout(
    "plan", "text", "({} OPERATOR(pg_catalog.->) 0) OPERATOR(pg_catalog.->>) 'plan'"
)
_ALL: Final = (
    Verb("create_view", CreateView, fills=True, tells=True),
    Verb("check_view", CheckView, answer=_PLAN, reads=True),
    Verb(
        "advise",
        Advise,
        selected=True,
        procedure="show_advice",
        answer=Inout("advice", "jsonb"),
        reads=True,
    ),
    Verb("drop_view", DropView),
    Verb("create_index", CreateIndex),
    Verb("drop_index", DropIndex),
    Verb(
        "explain_view",
        ExplainView,
        selected=True,
        procedure="explain",
        answer=Inout(
            "plan",
            "text",
            "(SELECT pg_catalog.string_agg(l.line OPERATOR(pg_catalog.->>) 'plan', E'\\n' ORDER BY l.n)"
            " FROM pg_catalog.jsonb_array_elements({}) WITH ORDINALITY l (line, n))",
        ),
        reads=True,
    ),
    Verb("pause_view", ViewRequest, tells=True),
    Verb("resume_view", ViewRequest, tells=True),
    Verb("alter_view", AlterView, fills=True, tells=True),
    Verb("rename_view", RenameView),
    Verb("set_history", SetHistory),
    Verb("set_latency", SetLatency, relayed=True),
    Verb("create_connection_point", CreatePoint),
    Verb("drop_connection_point", DropPoint),
    Verb("set_owner", SetOwner, fills=True, tells=True),
    Verb("resync_view", ResyncView, fills=True, tells=True),
    Verb(
        "verify_view",
        ViewRequest,
        tells=True,
        selected=True,
        procedure="verify",
        answer=Inout("differences", "jsonb"),
        reads=True,
    ),
    Verb(
        "queues",
        Request,
        selected=True,
        procedure="show_queues",
        answer=Inout("queues", "jsonb"),
        reads=True,
    ),
    Verb(
        "memory",
        Request,
        selected=True,
        procedure="show_memory",
        answer=Inout("memory", "jsonb"),
        reads=True,
    ),
    Verb(
        "batches",
        Request,
        selected=True,
        procedure="show_batches",
        answer=Inout("batches", "jsonb"),
        reads=True,
    ),
    Verb("set_placement", SetPlacement, fills=True, tells=True),
    Verb(
        "view_stats",
        ViewRequest,
        selected=True,
        procedure="show_view_stats",
        answer=Inout("stats", "jsonb"),
        reads=True,
    ),
    Verb(
        "explain_placement",
        ExplainPlacement,
        selected=True,
        procedure="show_placement",
        answer=Inout("placement", "jsonb"),
        reads=True,
    ),
    Verb(
        "workers",
        Request,
        selected=True,
        procedure="show_workers",
        answer=Inout("workers", "jsonb"),
        reads=True,
    ),
    Verb("add_worker", AddWorker, relayed=True),
    Verb(
        "create_worker_token",
        CreateWorkerToken,
        secret=True,
        answer=Inout("token", "text", "pg_catalog.concat(name, '.', secret)"),
    ),
    Verb("remove_worker", RemoveWorker),
    Verb(
        "links",
        Request,
        selected=True,
        procedure="show_links",
        answer=Inout("links", "jsonb"),
        reads=True,
    ),
    Verb("add_link", AddLink, relayed=True),
    Verb("drop_link", DropLink),
    Verb("drain_worker", DrainWorker),
    Verb(
        "rebalance",
        Rebalance,
        selected=True,
        procedure="show_rebalance",
        answer=Inout("moves", "jsonb"),
    ),
    Verb(
        "sources",
        Request,
        selected=True,
        procedure="show_sources",
        answer=Inout("sources", "jsonb"),
        reads=True,
    ),
    Verb("add_source", AddSource),
    Verb("drop_source", DropSource),
    Verb("create_logical_table", CreateLogicalTable),
    Verb("wait_for", WaitFor, by="commander", reads=True),
    Verb(
        "clients",
        Request,
        by="commander",
        selected=True,
        procedure="show_clients",
        answer=Inout("clients", "jsonb"),
        reads=True,
    ),
    Verb(
        "client_stats",
        Request,
        by="commander",
        selected=True,
        procedure="show_client_stats",
        answer=Inout("stats", "jsonb"),
        reads=True,
    ),
    Verb(
        "settings",
        Request,
        by="commander",
        selected=True,
        procedure="show_settings",
        answer=Inout("settings", "jsonb"),
        reads=True,
    ),
    Verb("end_client", EndClient, by="commander", relayed=True),
    Verb("reload", Request, by="commander"),
    Verb("fail_batch", FailBatch, by="worker", relayed=True),
)
VERBS: Final = {verb.name: verb for verb in _ALL}
