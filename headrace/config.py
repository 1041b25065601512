"""The settings of one engine: one frozen value, each field with type, unit, default and reason.

The sources are, in ascending priority, the defaults here, a TOML file, the environment
(``HEADRACE_*``) and the command line.  The commander passes the result to its children as JSON
in the environment variable ``HEADRACE_SETTINGS``: ``Settings.from_env()``.  In a TOML file
table names are joined by an underscore (``[spark] master = "…"`` is ``spark_master``), and an
outer ``[headrace]`` table is allowed.
"""

from __future__ import annotations

import dataclasses
import difflib
import mmap
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict

from headrace import events, spark_options
from headrace.directories import Directories
from headrace.errors import PrerequisiteError, UserError
from headrace.redaction import DSNS, printable

ENV_PREFIX: Final = "HEADRACE_"
ENV_SETTINGS: Final = "HEADRACE_SETTINGS"

MEMORY_BYTES_MIN: Final = 64 << 20
"""With less, the engine would only move states between memory and disk."""
AUTO: Final = "auto"
_TRUE: Final = frozenset(("1", "true", "on", "yes"))
_FALSE: Final = frozenset(("0", "false", "off", "no"))
_VALUES: Final = {
    "log_level": tuple(events.LEVELS),
    "log_format": events.FORMATS,
    "wal_retention": ("source", "local"),
}
WITHOUT_EFFECT: Final = {
    "admin_database": "clients(), end_client() and reload() replace the admin database",
}
"""Former settings, each with what has taken its place: accepted for one release, with a warning."""
RENAMED: Final = {"lane_ms": "slow_batch_ms"}
"""Former names of settings, each with the present one: accepted likewise."""
_TYPO: Final = 0.85
"""Similarity from which a variable's name counts as a misspelt setting."""
_SLOT: Final = re.compile(r"[a-z0-9_]{1,63}")


def _default_data_dir() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "headrace"


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Shares of ``memory_bytes``, in bytes."""

    states: int
    queues: int
    batches: int
    changes: int
    """Changes waiting in memory; rows waiting to be written get as much again."""
    transaction: int
    """Changes of one transaction, or of all uncommitted ones; more goes to files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Directories):
    """Everything that can be set; see each field's line for unit and reason."""

    source: str = ""
    """Connection string (libpq) of the source database, for the engine's own role."""
    decode_from: str = ""
    """Connection string of the same database on a standby, which then decodes the changes instead
    of the primary (Postgres 16 or later); empty: the source decodes them."""
    data_dir: Path = field(default_factory=_default_data_dir)
    """Directory of state, staged files, sockets and secrets, with mode 0700, for one engine."""
    listen: str = "127.0.0.1:6432"
    """``HOST:PORT`` for clients; port 0 takes a free one."""
    http: str = ""
    """``HOST:PORT`` of /livez, /readyz, /metrics and the console; empty: off."""
    metrics_views_max: int = 200
    """Views that have their own series in /metrics (some 40 each), the oldest first; the others
    are only summed up."""
    metrics_collections_max: int = 1_000
    """Parts of queries (collections) that have their own series in /metrics; 0: none."""
    http_tls: bool = False
    """Whether the HTTP port uses TLS, with the certificate of ``tls_cert``."""
    http_hosts: str = ""
    """Names under which browsers and proxies may address the HTTP port, separated by commas.
    Without TLS, addresses, names without a dot, and this computer's name are accepted as well."""
    console: bool = True
    """Whether the HTTP port serves the console; users log in with the token or as a role."""
    console_token_file: str = ""
    """File with the token that shows the console everything that the engine's role may see; empty:
    ``console.token`` in ``data_dir``, created at the first start."""
    console_plain: bool = False
    """Whether the console accepts tokens and passwords without TLS from other computers: for use
    behind a proxy with TLS, or in a safe network."""
    tls_cert: str = ""
    """PEM certificate chain for clients; with ``tls_key`` it switches TLS on."""
    tls_key: str = ""
    """PEM private key of ``tls_cert``."""
    tls_required: bool = False
    """Whether clients must use TLS; otherwise they may, as with Postgres' own ``ssl``."""
    allow_trust: bool = False
    """Whether to accept clients that the source would accept without authentication."""
    connections_max: int = 500
    """Maximum number of client sessions; the next client gets 53300. Each needs a session in the
    source as well."""
    login_timeout_ms: int = 10_000
    """Milliseconds that a client may take to log in."""
    logins_per_address_max: int = 100
    """Clients of one address that may be connected without a login; one more closes the oldest."""
    client_timeout_ms: int = 900_000
    """Milliseconds until a client that acknowledges no data is disconnected; 0: the system's
    default."""
    statement_bytes_max: int = 65_536
    """Bytes of the longest statement that is examined for calls of Headrace; longer ones pass to
    Postgres unread."""

    slot_name: str = "headrace"
    """Permanent replication slot. Slots are per server, so each database needs another name."""
    slot_failover: bool = True
    """Whether standbys get a copy of the slot, so that views go on after a promotion (Postgres 17
    or later)."""
    publication_name: str = "headrace"
    """Publication of the tables that views read."""
    event_trigger: bool = False
    """Whether an event trigger, which only a superuser may create, unpublishes a table in the
    statement that removes its replica identity; otherwise its UPDATE and DELETE fail for a
    moment."""
    batch_interval_ms: int = 50
    """Maximum time, in milliseconds, that a batch gathers transactions while the engine is
    busy."""
    clock_interval_ms: int = 500
    """Milliseconds between checks for rows that are due in views that read now()."""
    batch_rows_max: int = 100_000
    """Rows after which a batch gathers no more transactions."""
    memory_bytes: int = 1_073_741_824
    """Memory budget of the worker in bytes: a half for states, a quarter for queues, an eighth for
    batches at work, a sixteenth each for waiting changes and for rows to be written.
    Five other settings override these shares."""
    buffer_bytes_max: int = 0
    """Bytes of changes that wait in memory, beyond which the stream is not read, and of rows to be
    written, beyond which no batch begins; 0: a sixteenth of ``memory_bytes`` each."""
    spool_bytes_min: int = 0
    """Bytes of one transaction, or of all that are not committed yet, beyond which their changes
    are stored in files in ``data_dir``; 0: half of the memory for waiting changes."""
    batch_memory_bytes: int = 0
    """Bytes of memory for rows that views derive from a batch while they process it in parallel;
    0: an eighth of ``memory_bytes``."""
    max_inflight_batches: int = 4
    """Batches in work at once: the next ones are processed while one is written."""
    main_capacity: int = 100
    """Collections that placement strategies may leave on the worker that reads and writes."""
    slow_batch_ms: int = 50
    """Milliseconds of a batch: a commit group that takes longer, and most of the time of batches,
    is processed separately, so that the others do not wait for it; 0: never."""
    checkpoint_txids: int = 20
    """Batches after which state is written to disk; as many may be processed again after a
    crash."""
    checkpoint_interval_ms: int = 1_000
    """Milliseconds after which state is written to disk even if there were fewer batches."""
    state_memory_bytes: int = 0
    """Bytes of memory for the states of all views, including RocksDB's; the rest is on disk;
    0: half of ``memory_bytes``."""
    queue_bytes_max: int = 68_719_476_736
    """Bytes of queues on disk: changes of the stream, and results of shared parts, that some view
    has not read yet."""
    queue_memory_bytes: int = 0
    """Bytes of queues in memory; beyond that, the least urgent blocks are only on disk until they
    are needed; 0: a quarter of ``memory_bytes``."""
    wal_retention: str = "local"
    """Where changes that some view still needs are kept: ``local``, in ``data_dir`` (up to half of
    ``queue_bytes_max``), so that the source can remove its WAL; ``source``, as WAL there."""
    queue_block_bytes: int = 131_072
    """Bytes of the blocks by which queues grow; a multiple of the memory page size."""
    lock_timeout_ms: int = 2_000
    """Milliseconds that the engine waits for a lock on a table before it tries again later. Changes
    of a result table wait 100 ms at most while other views would wait, too."""
    sink_retry_ms: int = 2_000
    """Longest time between two attempts to write a locked result table, in milliseconds."""
    feedback_interval_ms: int = 1_000
    """Milliseconds between two confirmations to the source, which may then remove WAL."""
    catalog_poll_ms: int = 1_000
    """Milliseconds between two checks of the catalog for changes (DDL) that are not in the
    stream."""
    wal_budget_bytes: int = 10_737_418_240
    """Bytes of changes that may be kept for a blocked or paused view (``wal_retention``); beyond
    that, the view stops and needs a resync; 0: no limit."""
    executors: str = AUTO
    """Processes that may compute views, the main one included: a number, or ``auto``, as many as
    there are cores, and no more than one for each 256 MB of ``memory_bytes``. Further ones are
    started under lasting overload, and end when it is gone."""
    worker_lost_s: int = 600
    """Seconds without contact after which another worker is considered lost, and its views are
    rebuilt elsewhere; 0: never automatically."""
    sharing: bool = True
    """Whether parts of queries that several views have in common are computed and stored once."""
    planning_time_ms_max: int = 60_000
    """Milliseconds of processor time that planning a query may take; 0: no limit."""
    max_recursion_iterations: int = 1_000
    """Iterations after which a WITH RECURSIVE fails as endless; a view keeps the value of its
    creation."""
    max_recursion_rows: int = 10_000_000
    """Rows that one batch may change in one iteration of a WITH RECURSIVE, because they are in
    memory; a view keeps the value of its creation."""
    eval_dsn: str = ""
    """Connection string of the role without rights that evaluates functions that are not built in;
    empty: Headrace creates the role ``headrace_eval``, if it may."""
    eval_connections_max: int = 4
    """Connections over which a process has Postgres evaluate expressions, for all views
    together."""
    view_time_ms_max: int = 1_000
    """Milliseconds of the processor that a view may take for a transaction, plus 0.1 for each row
    that it processes and 1 for each key that it seeks on disk, because other views wait for it; 0:
    no limit. A view's option may be up to ten times this (in a separate commit group), and up to
    ten times the next two settings."""
    view_rows_max: int = 1_000_000
    """Rows that a part of a view's query may produce for a transaction, plus 100 for each row of
    the transaction, because they are in memory; 0: no limit."""
    view_memory_bytes_max: int = 268_435_456
    """Bytes of these rows, plus 16 for each byte of the transaction; a single value may have a
    quarter of that; 0: no limit."""

    spark_master: str = "local[2]"
    """URL of the Spark master for populations: local[n], spark://, yarn, k8s://, or sc:// for Spark
    Connect."""
    spark_options: str = ""
    """Options of Spark, as in spark-defaults.conf: name=value, separated by semicolons."""
    spark_parallelism: int = 0
    """Number of Spark tasks that can run at the same time; 0: as many as Spark says."""
    spark_threshold_rows: int = 0
    """Number of rows, over all tables of a query, from which a population runs on Spark; 0: if
    they do not fit into ``population_memory_bytes``, or from 100 000 on if ``spark_master`` is a
    cluster."""
    spark_warm: bool = False
    """Whether Spark starts with the server and keeps running (some 20 s of a processor, 0.7 GB),
    instead of starting when a population needs it."""
    spark_idle_ms: int = 600_000
    """Milliseconds after its last use until Spark is stopped; 0: never."""
    spark_memory_mb: int = 1_024
    """Heap, in megabytes, of the Spark driver and of each executor."""
    spark_partition_rows: int = 250_000
    """Number of rows that a Spark task reads, approximately."""
    staging_dir_override: str = ""
    """Directory for the files of populations, if Spark executors on other machines share it;
    without one, their files come back through Spark, which is slower."""
    population_memory_bytes: int = 1_073_741_824
    """Bytes that the states of populations may take in memory, as estimated beforehand (the
    default is about 2 million rows); larger populations run on Spark or, without it, over files."""
    populations_max: int = 3
    """Populations that load at once; the others share their snapshot and wait for their turn. Each
    needs memory, a processor here and one in the source; a snapshot needs a replication slot."""
    recompute_backlogs: bool = True
    """Compute a view anew if it would take longer to process its missing changes, for example after
    an outage. Views with a history, and those that feed others, always process them."""
    views_per_role_max: int = 500
    """Views that a role may own; 0: no limit. This setting and the next do not apply to superusers
    and members of the engine's role."""
    populations_per_role_max: int = 8
    """Populations that one role may have at once, so that roles share ``populations_max``;
    further ones wait; 0: no limit."""
    commands_per_role_max: int = 100
    """Calls that a role may have running at once, apart from wait_for; 0: no limit."""
    population_idle_ms_max: int = 60_000
    """Milliseconds that a population may run without progress, plus 0.1 for each row, before it
    fails; 0: no limit."""
    population_lock_wait_ms: int = 0
    """Milliseconds that a population waits for the end of open transactions that have written,
    since its snapshot begins after them; 0: until they end, or the call is cancelled."""

    worker_listen: str = "127.0.0.1:6433"
    """``HOST:PORT`` on which ``headrace worker``, a worker on another machine, listens."""
    worker_address: str = ""
    """``HOST:PORT`` at which the engine reaches that worker; empty: as ``worker_listen``."""
    token_file: str = ""
    """File with that worker's token (``CALL headrace.create_worker_token``)."""
    worker: str = ""
    """Name of this worker; empty: ``main``, which reads and writes. The server sets it."""
    carrier: str = ""
    """Name of the source whose changes this process replicates; empty: none. The server sets
    it."""

    webhook_hosts: str = ""
    """Hosts to which assertions may send webhooks, separated by commas: ``hooks.example.com``,
    ``*.example.com``, with another port than that of http or https ``host:port``, with any port
    ``host:*``; empty: none."""
    webhook_timeout_ms: int = 10_000
    """Milliseconds that a webhook may take to answer."""
    webhook_tries_max: int = 15
    """Attempts to deliver a webhook, 1, 2, 4 … seconds after each other and at most an hour; with
    the default they take 3 hours."""

    log_level: str = "info"
    """Lowest level that is logged: debug, info, warning or error."""
    otlp_endpoint: str = ""
    """URL of an OpenTelemetry collector (OTLP/HTTP, such as ``http://127.0.0.1:4318``), to which
    each batch is sent as a trace; empty: none. Needs the extra ``otel``."""
    log_format: str = "auto"
    """text, json (one object per line), or auto: text on a terminal, otherwise json."""

    def __post_init__(self) -> None:
        """Check the values, without opening a file or a connection."""
        for name in ("slot_name", "publication_name"):
            if not _SLOT.fullmatch(getattr(self, name)):
                raise UserError(f'setting "{name}" must be 1 to 63 characters of a-z, 0-9 and _')
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.type == "int" and value < 0:
                raise UserError(f'setting "{f.name}" must not be negative')
        if self.memory_bytes < MEMORY_BYTES_MIN:
            raise UserError(f'setting "memory_bytes" must be {MEMORY_BYTES_MIN} or more')
        if not self.queue_block_bytes or self.queue_block_bytes % mmap.PAGESIZE:
            raise UserError(
                f'setting "queue_block_bytes" must be a multiple of {mmap.PAGESIZE}, a page of memory'
            )
        for name in DSNS:
            try:
                conninfo_to_dict(getattr(self, name))
            except psycopg.ProgrammingError:
                # libpq's message would quote a part of it, perhaps the password.
                raise UserError(
                    f'setting "{name}" is not a connection string',
                    hint="Write it as key=value pairs, values with blanks or quotes in single"
                    " quotes; or as a URI, with special characters as %XX.",
                ) from None
        _check_tls(self)
        spark_options.parse(self.spark_options)
        self._check_words()
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise UserError('setting "otlp_endpoint" must begin with http:// or https://')

    def _check_words(self) -> None:
        if self.executors != AUTO and not re.fullmatch("[1-9][0-9]{0,2}", self.executors):
            raise UserError(
                f'setting "executors" cannot be "{self.executors}"',
                hint="It may be auto, or a number from 1 to 999.",
            )
        for where in (self.listen, self.worker_listen):
            address(where)
        for where in filter(None, (self.http, self.worker_address)):
            address(where)
        for name, values in _VALUES.items():
            if getattr(self, name) not in values:
                raise UserError(
                    f'setting "{name}" cannot be "{getattr(self, name)}"',
                    hint=f"It may be {', '.join(values)}.",
                )

    @property
    def memory(self) -> MemoryParts:
        """Memory budget of each part of the worker."""
        total = self.memory_bytes
        changes = self.buffer_bytes_max or total // 16
        return MemoryParts(
            states=self.state_memory_bytes or total // 2,
            queues=self.queue_memory_bytes or total // 4,
            batches=self.batch_memory_bytes or total // 8,
            changes=changes,
            transaction=self.spool_bytes_min or changes // 2,
        )

    @property
    def spark_cluster(self) -> bool:
        """Whether Spark runs on other machines."""
        return not self.spark_master.startswith("local")

    def of_worker(self, name: str) -> Self:
        """Return another worker's settings: its own data directory, the shared staging one."""
        return self.replace(
            worker=name,
            data_dir=self.workers_dir / name,
            staging_dir_override=str(self.staging_dir),
        )

    def of_carrier(self, name: str) -> Self:
        """Return the settings of a source's replicator."""
        return self.replace(carrier=name, data_dir=self.sources_dir / name)

    def to_json(self) -> str:
        """Return all fields as JSON, with secrets: for a child's environment only."""
        return msgspec.json.encode(self, enc_hook=os.fspath).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the output of ``to_json``; unknown keys are refused."""
        return cls.of(msgspec.json.decode(text))

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Self:
        """Return the settings that the commander passed to this child process."""
        text = env.get(ENV_SETTINGS)
        if text is None:
            raise PrerequisiteError(
                f"environment variable {ENV_SETTINGS} is not set",
                hint="This process is started by `headrace start`.",
            )
        return cls.from_json(text)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return settings with ``values`` (texts are converted) and defaults for the rest."""
        known = {f.name: f for f in dataclasses.fields(cls)}
        given: dict[str, Any] = {}
        for name, value in values.items():
            if name in WITHOUT_EFFECT:
                continue
            if name not in known:
                raise UserError(f'unrecognized setting "{name}"', sqlstate="42704")
            given[name] = _convert(name, str(known[name].type), value)
        return cls(**given)

    @classmethod
    def load(
        cls,
        flags: Mapping[str, Any] | None = None,
        file: Path | None = None,
        env: Mapping[str, str] = os.environ,
    ) -> Self:
        """Load settings: defaults < ``file`` < ``HEADRACE_*`` of ``env`` < ``flags``.

        A flag that is None was not given.
        """
        return cls.of({name: value for name, (value, _) in changed(flags, file, env).items()})

    def replace(self, **changes: Any) -> Self:
        """Return a copy with ``changes``."""
        return dataclasses.replace(self, **changes)

    def __repr__(self) -> str:
        """Return all fields, without secrets."""
        shown = []
        for f in dataclasses.fields(self):
            value = printable(f.name, getattr(self, f.name))
            shown.append(f"{f.name}={value!r}")
        return f"Settings({', '.join(shown)})"


def changed(
    flags: Mapping[str, Any] | None = None,
    file: Path | None = None,
    env: Mapping[str, str] = os.environ,
) -> dict[str, tuple[Any, str]]:
    """Return the settings that are given explicitly, each with its value and origin.

    Raises:
        UserError: a variable is a misspelt setting (42704); the file is invalid.
    """
    return {RENAMED.get(n, n): (value, origin) for n, value, origin in given(flags, file, env)}


def given(
    flags: Mapping[str, Any] | None = None,
    file: Path | None = None,
    env: Mapping[str, str] = os.environ,
) -> list[tuple[str, Any, str]]:
    """Return names, values and origins in ascending priority, perhaps by former names.

    In one source, the present name has priority.  For the errors see ``changed``.
    """
    found = [] if file is None else [(n, value, str(file)) for n, value in _read_file(file).items()]
    names = {f.name for f in dataclasses.fields(Settings)}
    variables = []
    for key, value in env.items():
        if not key.startswith(ENV_PREFIX):
            continue
        name = key.removeprefix(ENV_PREFIX).lower()
        if name in names or name in WITHOUT_EFFECT or name in RENAMED:
            variables.append((name, value, key))
        # Variables such as HEADRACE_TEST_DSN and HEADRACE_FAULT are not settings.
        elif near := difflib.get_close_matches(name, names, 1, _TYPO):
            raise UserError(
                f'unrecognized setting "{name}" (variable {key})',
                hint=f"Perhaps {ENV_PREFIX}{near[0].upper()} is meant.",
                sqlstate="42704",
            )
    line = [(k, v, "command line") for k, v in (flags or {}).items() if v is not None]
    return [
        one
        for source in (found, variables, line)
        for one in sorted(source, key=lambda each: each[0] not in RENAMED)
    ]


def outdated(found: Iterable[tuple[str, Any, str]]) -> list[str]:
    """Return a warning for each setting in ``given`` that has another name or no effect now."""
    out = []
    for name, _, origin in found:
        if name in WITHOUT_EFFECT:
            told = f"no longer has an effect: {WITHOUT_EFFECT[name]}"
        elif name in RENAMED:
            told = f'is called "{RENAMED[name]}" now'
        else:
            continue
        out.append(f'setting "{name}" ({origin}) {told}')
    return out


def address(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT`` (``[::1]:6432`` for IPv6)."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise UserError(f'invalid address "{text}"', hint="Write it as HOST:PORT.")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        tree = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f'could not read configuration file "{path}": {error}') from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f'invalid configuration file "{path}": {error}') from error
    values = _flatten(tree, "")
    return {k.removeprefix("headrace_"): v for k, v in values.items()}


def _flatten(tree: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            out |= _flatten(value, f"{name}_")
        else:
            out[name] = value
    return out


def _convert(name: str, kind: str, value: Any) -> Any:
    """Convert ``value`` to the setting's type; flags and the environment give texts."""
    try:
        match kind:
            case "Path":
                return Path(value).expanduser().absolute()
            case "bool":
                return _boolean(value)
            case "int":
                return int(str(value))
            case _:
                return str(value)
    except ValueError as error:
        raise UserError(f'invalid value for setting "{name}": "{value}"') from error


def _boolean(value: Any) -> bool:
    text = str(value).lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError("a boolean is needed")


def _check_tls(settings: Settings) -> None:
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise UserError('settings "tls_cert" and "tls_key" go together')
    for name in ("tls_required", "http_tls"):
        if getattr(settings, name) and not settings.tls_cert:
            raise UserError(f'setting "{name}" needs "tls_cert" and "tls_key"')
