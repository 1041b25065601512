"""Table of verbs: the calls that Headrace accepts, with their names, arguments and needs.

It generates the procedures in the user's database (``sql/calls.py``), the binding of calls on our
own port (``server/procedures.py``), and the request that is sent to the builder or worker.  The
implementations are ``DOES`` in ``views/builder.py``, and ``server/commands.py`` for the commander.

A request's positional fields are the arguments of the call, in its order, with SQL types.
Keyword-only fields are set by the server; a caller cannot pass them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Final, Self

from headrace.sql.assertion_spec import AssertionSpec
from headrace.sql.view_spec import OptionChanges, ViewSpec

Lsn = str
Interval = str
Json = str
"""Text of a JSON value: its numbers have digits that Python's floats lack."""
_KINDS: Final = {
    "str": "text",
    "bool": "bool",
    "int": "bigint",
    "ViewSpec": "jsonb",
    "OptionChanges": "jsonb",
    "AssertionSpec": "jsonb",
    "Lsn": "pg_lsn",
    "Interval": "interval",
    "Json": "jsonb",
}
Options = type[ViewSpec | OptionChanges | AssertionSpec]
_OPTIONS: Final[dict[str, Options]] = {
    "ViewSpec": ViewSpec,
    "OptionChanges": OptionChanges,
    "AssertionSpec": AssertionSpec,
}
"""Types of arguments that are options; they travel as the JSON data that the caller gave."""


@dataclass(frozen=True, slots=True)
class Request:
    """Request of a caller; ``settings`` are those of the caller's session."""

    caller: str | None = field(default=None, kw_only=True)
    settings: dict[str, str] = field(default_factory=dict, kw_only=True)
    unasked: bool = field(default=False, kw_only=True)
    """Whether the server acts by itself, without a call."""

    def message(self) -> dict[str, Any]:
        """Return the message for the process that executes it."""
        out = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return out | {name: out[name].given for name in _option_fields(type(self))}

    @classmethod
    def of_message(cls, message: dict[str, Any]) -> Self:
        """Return the request of a message of the commander, which has validated it."""
        read = {name: kind.of(message[name]) for name, kind in _option_fields(cls).items()}
        return cls(**message | read)


@dataclass(frozen=True, slots=True)
class ViewRequest(Request):
    """Request about one view, as most are."""

    name: str


@dataclass(frozen=True, slots=True)
class ViewStats(Request):
    """Report the work of the collections of view ``name``; None: of all that the caller may see."""

    name: str | None = None


@dataclass(frozen=True, slots=True)
class CreateView(ViewRequest):
    """Create a view of ``query``."""

    query: str
    options: ViewSpec = field(default_factory=ViewSpec)
    replace: bool = False
    """Whether an existing view of that name is altered instead."""


@dataclass(frozen=True, slots=True)
class CreateAssertion(ViewRequest):
    """Create an assertion: a view of ``query``, which must stay empty."""

    query: str
    options: AssertionSpec = field(default_factory=AssertionSpec)


@dataclass(frozen=True, slots=True)
class CheckView(Request):
    """Check whether create_view would accept ``query`` with ``options``."""

    query: str
    options: ViewSpec = field(default_factory=ViewSpec)


@dataclass(frozen=True, slots=True)
class Advise(Request):
    """Estimate the cost of a view of ``query``; None: suggest queries that should be views."""

    query: str | None = None


@dataclass(frozen=True, slots=True)
class DropView(ViewRequest):
    """Drop a view; a missing one is not an error with ``if_exists``."""

    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class Why(ViewRequest):
    """Explain the rows of a view with the values in ``key`` by rows of tables.

    ``most``: how many rows of each table to show.
    """

    key: Json
    most: int = 100


@dataclass(frozen=True, slots=True)
class WhyNot(ViewRequest):
    """Explain why a view has no row with the values in ``key``."""

    key: Json


@dataclass(frozen=True, slots=True)
class WhatIfPlan(Request):
    """Return how ``statement`` can be tried."""

    statement: str


@dataclass(frozen=True, slots=True)
class WhatIfHold(Request):
    """Hold the states of views that read ``table``, for the session that asks ``question``."""

    question: int
    table: int


@dataclass(frozen=True, slots=True)
class WhatIfRows(Request):
    """Take some rows of a statement, for call ``call`` of what_if."""

    call: int
    rows: str


@dataclass(frozen=True, slots=True)
class WhatIf(Request):
    """Return what the rows of call ``call`` would change; ``most``: how many rows of each view."""

    call: int
    facts: str
    most: int = 100


@dataclass(frozen=True, slots=True)
class CreateIndex(Request):
    """Create an index on the table of ``view``; ``definition`` is the rest of CREATE INDEX."""

    view: str
    definition: str


@dataclass(frozen=True, slots=True)
class DropIndex(Request):
    """Drop an index."""

    name: str


@dataclass(frozen=True, slots=True)
class ExplainView(Request):
    """Show the plan of a view, or of a query that is not a view yet.

    ``dialect``: that of the query, if it is not Postgres'.
    """

    name_or_query: str
    stage: str = "physical"
    format: str = "text"
    dialect: str | None = None


@dataclass(frozen=True, slots=True)
class AlterView(ViewRequest):
    """Give a view another query; ``options`` are those that change."""

    query: str
    options: OptionChanges = field(default_factory=OptionChanges)


@dataclass(frozen=True, slots=True)
class RenameView(ViewRequest):
    """Rename a view."""

    new_name: str


@dataclass(frozen=True, slots=True)
class SetHistory(ViewRequest):
    """Set for how long a view's changes are kept; None: drop them and keep none."""

    keep: str | None = None


@dataclass(frozen=True, slots=True)
class SetLatency(ViewRequest):
    """Set how late after a commit a view may show it, in milliseconds; 0: as early as possible."""

    latency_ms: int = 0


@dataclass(frozen=True, slots=True)
class CreatePoint(Request):
    """Name the output of ``view``; ``history`` is an interval, ``storage_key`` a column."""

    name: str
    view: str
    at: str | None = None
    history: str | None = None
    storage_key: str | None = None


@dataclass(frozen=True, slots=True)
class DropPoint(Request):
    """Drop a connection point."""

    name: str


@dataclass(frozen=True, slots=True)
class SetPlacement(ViewRequest):
    """Move a view: to a worker, by a strategy, or as JSON to the workers of its collections."""

    worker: str


@dataclass(frozen=True, slots=True)
class ExplainPlacement(Request):
    """Show where the collections of a view are, or those of a query would be.

    ``strategy``: None means the view's option, or ``auto`` for a query.
    """

    name_or_query: str
    strategy: str | None = None


@dataclass(frozen=True, slots=True)
class AddWorker(Request):
    """Start another worker for views; ``capacity``: its collections, for placement strategies."""

    name: str
    capacity: int = 100


@dataclass(frozen=True, slots=True)
class CreateWorkerToken(Request):
    """Create the token by which a worker on another machine joins, or replace it.

    ``digest``: SHA-256, as hex, of the secret that the procedure has made; None: make one.
    """

    name: str
    digest: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class RemoveWorker(Request):
    """Remove a worker on which no view is placed."""

    name: str


@dataclass(frozen=True, slots=True)
class AddLink(Request):
    """State the properties of the link to a worker; None: the measured value counts."""

    worker: str
    latency_ms: int | None = None
    bytes_per_s: int | None = None


@dataclass(frozen=True, slots=True)
class DropLink(Request):
    """Use the measured properties of the link to a worker again."""

    worker: str


@dataclass(frozen=True, slots=True)
class DrainWorker(Request):
    """Move all views of a worker to others."""

    name: str


@dataclass(frozen=True, slots=True)
class Rebalance(Request):
    """Propose moves of views that balance the workers' load; ``apply``: make them."""

    apply: bool = False


@dataclass(frozen=True, slots=True)
class AddSource(Request):
    """Add another database, whose ``tables`` views may read; ``dsn`` is its connection string.

    ``tables`` are names, separated by commas; None: those that exist here as well.
    """

    name: str
    dsn: str
    tables: str | None = None


@dataclass(frozen=True, slots=True)
class DropSource(Request):
    """Drop a source that no view reads."""

    name: str


@dataclass(frozen=True, slots=True)
class CreateLogicalTable(Request):
    """Create a Postgres view, the union of ``of_table`` here and in all sources that have it.

    ``source_column``: name of a column with the source of each row; None: no such column.
    """

    name: str
    of_table: str
    source_column: str | None = None


@dataclass(frozen=True, slots=True)
class SetOwner(ViewRequest):
    """Change the owner of a view."""

    role: str


@dataclass(frozen=True, slots=True)
class ResyncView(ViewRequest):
    """Populate a view again.

    ``of``: only if its id is still this one, so that it was not populated meanwhile.  ``because``:
    the reason when the server does it without a call.  ``within_s``: only if it takes less than
    these seconds, in which the view would catch up.
    """

    of: int | None = field(default=None, kw_only=True)
    because: str | None = field(default=None, kw_only=True)
    within_s: float | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class VerifyView(ViewRequest):
    """Compare a view with its query.

    ``in_postgres``: Postgres computes the query, also that of a large view.
    """

    in_postgres: bool = False


@dataclass(frozen=True, slots=True)
class WaitFor(ViewRequest):
    """Wait until a view covers a position, by default that of the call."""

    lsn: Lsn | None = None
    timeout: Interval | None = None


@dataclass(frozen=True, slots=True)
class EndClient(Request):
    """The client with this ``id``, as ``clients()`` shows it."""

    id: int


@dataclass(frozen=True, slots=True)
class FailBatch(Request):
    """Process a batch in flight again."""

    txid: int


@dataclass(frozen=True, slots=True)
class Parameter:
    """Argument of a call; ``kind`` is text, jsonb, bool, pg_lsn, interval or bigint."""

    name: str
    kind: str
    required: bool = True
    default: Any = None
    options: Options | None = None
    """The type that validates its value, if it is options."""

    @property
    def exact(self) -> bool:
        """Whether its value travels as the text of JSON (``Json``)."""
        return self.kind == "jsonb" and self.options is None


@dataclass(frozen=True, slots=True)
class Inout:
    """INOUT argument for a procedure's answer; ``value``: expression over the command's result."""

    name: str
    kind: str
    value: str = "{}"


@dataclass(frozen=True, slots=True)
class Verb:
    """One kind of call."""

    name: str
    request: type[Request]
    by: str = "builder"
    """Process that executes it: builder, worker or commander."""
    fills: bool = False
    """Whether it populates a view, and so waits for its turn."""
    tells: bool = False
    """Whether it reports to its caller how far it is, or why it waits."""
    selected: bool = False
    """Whether it is also a function to select from, with a file of its own."""
    slot: bool = False
    """Whether it takes a snapshot with a replication slot."""
    relayed: bool = False
    """Whether it comes by the command table only, because Postgres parses its arguments."""
    secret: bool = False
    """Whether its procedure makes a secret, and passes argument ``digest``, its SHA-256, only."""
    step: bool = False
    """Whether it is a step of a procedure with a file of its own, and no call."""
    procedure: str | None = None
    """Name of the procedure, where it differs from the verb's."""
    answer: Inout | None = None
    reads: bool = False
    """Whether it is read-only, and so may be called in a read-only transaction."""
    waits: bool = False
    """Whether it only waits for a view; in a transaction that needs no command."""
    parameters: tuple[Parameter, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Derive the parameters from the positional fields of the request."""
        object.__setattr__(self, "parameters", _parameters(self.request))

    @property
    def called(self) -> str | None:
        """Name of its procedure; None: it has none."""
        return self.procedure or (None if self.selected or self.step else self.name)

    @property
    def asked(self) -> bool:
        """Whether a query may ask the engine for it (``sql/ask_engine.sql``)."""
        if self.step:
            return any(p.name == "question" for p in self.parameters)
        return self.waits or (self.answer is not None and not self.secret)


def _option_fields(request: type[Request]) -> dict[str, Options]:
    """Return the fields of a request that are options, with their types."""
    fields = dataclasses.fields(request)
    return {f.name: _OPTIONS[str(f.type)] for f in fields if f.type in _OPTIONS}


def _parameters(request: type[Request]) -> tuple[Parameter, ...]:
    out = []
    for each in dataclasses.fields(request):
        if each.kw_only:
            continue
        named = str(each.type).removesuffix(" | None")
        kind = _KINDS[named]
        if named in _OPTIONS:
            out.append(Parameter(each.name, kind, False, {}, _OPTIONS[named]))
        elif each.default is not dataclasses.MISSING:
            out.append(Parameter(each.name, kind, False, each.default))
        else:
            out.append(Parameter(each.name, kind))
    return tuple(out)


def _selected(
    name: str,
    request: type[Request],
    *,
    answer: str = "",
    procedure: str = "",
    reads: bool = True,
    **more: Any,
) -> Verb:
    """Return a verb of SELECT, whose procedure (default: show_…) answers the rows as JSON."""
    inout = Inout(answer or name, "jsonb")
    called = procedure or f"show_{name}"
    return Verb(name, request, selected=True, procedure=called, answer=inout, reads=reads, **more)


_PLAN: Final = Inout(
    "plan", "text", "({} OPERATOR(pg_catalog.->) 0) OPERATOR(pg_catalog.->>) 'plan'"
)
_ALL: Final = (
    Verb("create_view", CreateView, fills=True, tells=True),
    Verb("check_view", CheckView, answer=_PLAN, reads=True),
    _selected("advise", Advise, answer="advice", procedure="show_advice"),
    Verb("drop_view", DropView),
    Verb("create_assertion", CreateAssertion, fills=True, tells=True),
    Verb("drop_assertion", DropView),
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
    _selected(
        "verify_view", VerifyView, answer="differences", procedure="verify", slot=True, tells=True
    ),
    _selected("why", Why, answer="source_rows", slot=True),
    _selected("why_not", WhyNot, answer="dropped_rows", slot=True),
    Verb("what_if_plan", WhatIfPlan, step=True),
    Verb("what_if_hold", WhatIfHold, step=True),
    Verb("what_if_rows", WhatIfRows, step=True),
    Verb("what_if", WhatIf, step=True),
    _selected("queues", Request),
    _selected("memory", Request),
    _selected("batches", Request),
    Verb("set_placement", SetPlacement, fills=True, tells=True),
    _selected("view_stats", ViewStats, answer="stats"),
    _selected(
        "explain_placement", ExplainPlacement, answer="placement", procedure="show_placement"
    ),
    _selected("workers", Request),
    Verb("add_worker", AddWorker, relayed=True),
    Verb(
        "create_worker_token",
        CreateWorkerToken,
        secret=True,
        answer=Inout("token", "text", "pg_catalog.concat(name, '.', secret)"),
    ),
    Verb("remove_worker", RemoveWorker),
    _selected("links", Request),
    Verb("add_link", AddLink, relayed=True),
    Verb("drop_link", DropLink),
    Verb("drain_worker", DrainWorker),
    _selected("rebalance", Rebalance, answer="moves", reads=False),
    _selected("sources", Request),
    Verb("add_source", AddSource),
    Verb("drop_source", DropSource),
    Verb("create_logical_table", CreateLogicalTable),
    Verb("wait_for", WaitFor, by="commander", reads=True, waits=True),
    _selected("clients", Request, by="commander"),
    _selected("client_stats", Request, answer="stats", by="commander"),
    _selected("settings", Request, by="commander"),
    Verb("end_client", EndClient, by="commander", relayed=True),
    Verb("reload", Request, by="commander"),
    Verb("fail_batch", FailBatch, by="worker", relayed=True),
)
VERBS: Final = {verb.name: verb for verb in _ALL}
