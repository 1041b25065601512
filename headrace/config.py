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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace import events
from headrace.errors import PrerequisiteError, UserError

ENV_PREFIX: Final = "HEADRACE_"
ENV_SETTINGS: Final = "HEADRACE_SETTINGS"

MEMORY_BYTES_MIN: Final = 64 << 20
"""With less, the engine would only move states between memory and disk."""
AUTO: Final = "auto"
_TRUE: Final = frozenset(("1", "true", "on", "yes"))
_FALSE: Final = frozenset(("0", "false", "off", "no"))
_SECRETS: Final = ("password", "sslpassword", "oauth_client_secret")
"""Parts of a DSN that are never shown."""
_VALUES: Final = {
    "log_level": tuple(events.LEVELS),
    "log_format": events.FORMATS,
    "wal_retention": ("source", "local"),
}
WITHOUT_EFFECT: Final = {
    "admin_database": "clients(), end_client() and reload() replace the admin database",
}
"""Former settings, each with what has taken its place: accepted for one release, with a warning."""
_TYPO: Final = 0.85
"""Similarity from which a variable's name counts as a misspelt setting."""
_WORKERS: Final = "workers"
_SOURCES: Final = "sources"
_SLOT: Final = re.compile(r"[a-z0-9_]{1,63}")


def turns_dir(settings: Settings) -> Path:
    """Return the directory in which this machine's processes take turns to run users' code."""
    of_engine = settings.worker and settings.data_dir.parent.name == _WORKERS
    return settings.data_dir.parent.parent / "run" if of_engine else settings.run_dir


def _default_data_dir() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "headrace"


def redact(dsn: str) -> str:
    """Return ``dsn`` without secrets: the only form that may be printed or logged."""
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        return "<malformed DSN>"
    return make_conninfo(dsn, **{k: "***" for k in _SECRETS if parts.get(k)})


def has_secret(dsn: str) -> bool:
    """Return whether ``dsn`` contains a secret; True if the DSN is malformed."""
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        return True
    return any(parts.get(name) for name in _SECRETS)


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
class Settings:
    """Everything that can be set; see each field's line for unit and reason."""

    source: str = ""
    """libpq DSN of the source database, as the engine's own role."""
    data_dir: Path = field(default_factory=_default_data_dir)
    """State, staging, sockets and secrets; mode 0700; one engine per directory."""
    listen: str = "127.0.0.1:6432"
    """``HOST:PORT`` for clients; port 0 takes a free one.  Local by default."""
    http: str = ""
    """``HOST:PORT`` of /livez, /readyz, /metrics and the console; empty: off."""
    metrics_views_max: int = 200
    """Views that have their own series in /metrics, the oldest, with some 40 each; the others are
    only summed."""
    metrics_collections_max: int = 1_000
    """The same for the collections of their queries; 0: none."""
    http_tls: bool = False
    """Whether that port speaks TLS, with the certificate of ``tls_cert``."""
    http_hosts: str = ""
    """Names under which browsers and proxies may address that port, separated by commas. Without
    TLS, addresses, names without a dot, and this computer's name are accepted too."""
    console: bool = True
    """Whether that port serves the console, with a log-in by token or as a role."""
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
    """Whether clients must use TLS; else they may, as with Postgres' own ``ssl``."""
    allow_trust: bool = False
    """Whether clients may log in that the source accepts without authentication."""
    connections_max: int = 500
    """Client sessions at once; the next one gets 53300 (each needs a source session too)."""
    login_timeout_ms: int = 10_000
    """Milliseconds a client may take to log in, so that idle sockets cannot pile up."""
    logins_per_address_max: int = 100
    """Clients of one address that are not logged in; one more closes the oldest of them."""
    client_timeout_ms: int = 900_000
    """Milliseconds until a client that acknowledges nothing is disconnected; 0: the system's."""
    statement_bytes_max: int = 65_536
    """Bytes of the longest statement that the commander parses (some ms); longer ones pass
    unread."""

    slot_name: str = "headrace"
    """Permanent replication slot; slots are per server: one name for each database."""
    publication_name: str = "headrace"
    """Publication that feeds the slot."""
    event_trigger: bool = False
    """Whether an event trigger, which only a superuser may create, unpublishes a table in the
    statement that removes its replica identity; else its UPDATE and DELETE fail for a moment."""
    batch_interval_ms: int = 50
    """Longest time, in milliseconds, that a batch gathers transactions while the engine is busy."""
    clock_interval_ms: int = 500
    """Milliseconds between checks whether rows of a view that reads now() are due."""
    batch_rows_max: int = 100_000
    """Rows after which a batch closes early."""
    memory_bytes: int = 1_073_741_824
    """Memory budget of the worker in bytes: a half for states, a quarter for queues, an eighth for
    batches at work, a sixteenth each for waiting changes and for rows to be written.
    Five other settings override these shares."""
    buffer_bytes_max: int = 0
    """Bytes of changes waiting in memory before the stream is held back, and of rows waiting to be
    written before no more batches are taken; 0: a sixteenth of ``memory_bytes`` each."""
    spool_bytes_min: int = 0
    """Bytes of one transaction, or of all that are not committed yet, beyond which their changes go
    to files in the data dir; 0: half of the memory for waiting changes."""
    batch_memory_bytes: int = 0
    """Bytes of memory for rows that views derive from a batch while they process it in parallel;
    0: an eighth of ``memory_bytes``."""
    max_inflight_batches: int = 4
    """Batches that are taken and not committed: the next are processed while one is written."""
    main_capacity: int = 100
    """Collections that placement strategies may leave on the worker that reads and writes."""
    lane_ms: int = 50
    """Milliseconds of a batch beyond which a commit group that takes most of its time is processed
    beside the others, and no longer delays them; 0: never."""
    checkpoint_txids: int = 20
    """Batches after which state is checkpointed; as many may have to be replayed."""
    checkpoint_interval_ms: int = 1_000
    """Milliseconds after which state is checkpointed even if there were fewer batches."""
    state_memory_bytes: int = 0
    """Bytes of memory for the states of all views, including RocksDB's; the rest is on disk;
    0: half of ``memory_bytes``."""
    queue_bytes_max: int = 68_719_476_736
    """Bytes on disk that queues may hold: rows that one part has sent and another has not read."""
    queue_memory_bytes: int = 0
    """Bytes of queues that are kept in memory; beyond it durable blocks are evicted, and read from
    disk again when they are needed; 0: a quarter of ``memory_bytes``."""
    wal_retention: str = "local"
    """Where changes that a paused or blocked view has not read are kept: ``source``, as WAL on the
    server's disk; ``local``, in a queue in the data dir (up to half of ``queue_bytes_max``)."""
    queue_block_bytes: int = 131_072
    """Bytes of the blocks by which queues grow; a multiple of the memory page size."""
    lock_timeout_ms: int = 2_000
    """Milliseconds the engine waits for a lock on user objects before it backs off."""
    sink_retry_ms: int = 2_000
    """Milliseconds between attempts to write a locked result table."""
    feedback_interval_ms: int = 1_000
    """Milliseconds between two confirmations to the source, which let it remove WAL."""
    catalog_poll_ms: int = 1_000
    """Milliseconds between two checks of the catalog for DDL that the stream does not show."""
    wal_budget_bytes: int = 10_737_418_240
    """Bytes that may be kept for a blocked or paused view before it is given up, in the source's
    WAL or here (``wal_retention``); 0: no limit."""
    executors: str = "auto"
    """Processes that may compute views, the main one included: a number, or ``auto``, as many as
    there are cores. Further ones are started under lasting overload, and end when it is gone."""
    worker_lost_s: int = 600
    """Seconds out of reach after which another worker is considered lost for good, and its
    views are populated again elsewhere; 0: never automatically."""
    sharing: bool = True
    """Whether the state of a subplan that several views have in common is kept once."""
    planning_time_ms_max: int = 60_000
    """Milliseconds of processor time that planning a query may take; 0: no limit."""
    max_recursion_iterations: int = 1_000
    """Iterations after which a WITH RECURSIVE counts as endless (each view stores its value)."""
    max_recursion_rows: int = 10_000_000
    """Rows of one iteration that one txid may change, because they are in memory (each view stores
    its value)."""
    eval_dsn: str = ""
    """DSN of the powerless role for functions that are not built in; empty: refuse them."""
    eval_connections_max: int = 4
    """Connections with which a process evaluates expressions, for any number of views."""
    view_time_ms_max: int = 1_000
    """Milliseconds that a view may take for a transaction, plus 0.1 for each row it processes: all
    views are written together, so others wait; 0: no limit.  The options of a view may be ten
    times this (in a commit group of its own), and ten times the next two."""
    view_rows_max: int = 1_000_000
    """Rows that a part of a view's query may produce for a transaction, plus 100 for each of the
    transaction's rows: they are in memory; 0: no limit."""
    view_memory_bytes_max: int = 268_435_456
    """Bytes that these rows may have, plus 16 for each byte of the transaction; one value may have
    a quarter of it; 0: no limit."""

    spark_master: str = "local[2]"
    """Spark master for populations; a cluster needs ``staging_dir_override`` on shared storage."""
    spark_threshold_rows: int = 0
    """Rows of all tables together from which a population runs on Spark; 0: if they do not fit into
    ``population_memory_bytes``, and from 100 000 on if ``spark_master`` is a cluster."""
    spark_warm: bool = False
    """Whether to start the Spark session with the server and keep it (some 20 s of a processor,
    0.7 GB), instead of when the first population needs it."""
    spark_idle_ms: int = 600_000
    """Milliseconds after its last use until the Spark session and its JVM are stopped; 0: never."""
    spark_memory_mb: int = 1_024
    """Megabytes of heap for the Spark driver (and each executor)."""
    spark_partition_rows: int = 250_000
    """Target number of rows of a reading partition."""
    staging_dir_override: str = ""
    """Directory of population state when it must be shared with Spark executors."""
    population_memory_bytes: int = 1_073_741_824
    """Bytes that the states of populations in-process may take, as estimated beforehand: about 2
    million rows; larger populations run on Spark."""
    populations_max: int = 3
    """Populations that load at once; more share the wait for a snapshot, then take turns: each
    needs memory, a processor here and one in the source; a snapshot needs a replication slot."""
    views_per_role_max: int = 500
    """Views that a role may own: each has state in memory and on disk; 0: no limit.  This and the
    next do not apply to superusers and members of the engine's role."""
    populations_per_role_max: int = 8
    """Populations of a role at once; more wait, because all roles share the places; 0: all."""
    commands_per_role_max: int = 100
    """Calls of a role at once, other than of wait_for: each waits for a thread; 0: no limit."""
    population_idle_ms_max: int = 60_000
    """Milliseconds that a population may work without progress, plus 0.1 for each row, because its
    query in the source may never end; 0: no limit."""
    population_lock_wait_ms: int = 0
    """Milliseconds that a population waits for open transactions that have written, because its
    snapshot begins after them; 0: until they have ended, or the call is cancelled."""

    worker_listen: str = "127.0.0.1:6433"
    """``HOST:PORT`` on which ``headrace worker``, a worker on another machine, listens."""
    worker_address: str = ""
    """``HOST:PORT`` at which the engine reaches that worker; empty: as ``worker_listen``."""
    token_file: str = ""
    """File with that worker's token (``CALL headrace.create_worker_token``)."""
    worker: str = ""
    """Name of this worker; empty: the one that reads and writes.  The server sets it."""
    carrier: str = ""
    """Name of the source whose carrier this is; empty: none.  The server sets it."""

    log_level: str = "info"
    """Lowest level that is logged: debug, info, warning or error."""
    otlp_endpoint: str = ""
    """URL of an OpenTelemetry collector that speaks OTLP/HTTP (``http://127.0.0.1:4318``); each
    batch is sent there as a trace; empty: none.  Needs the extra ``otel``."""
    log_format: str = "auto"
    """text (for people), json (a line for each event), or auto: text where the log goes to a
    terminal, else json."""

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
        for name in ("source", "eval_dsn"):
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

    @property
    def run_dir(self) -> Path:
        """Sockets of the child processes."""
        return self.data_dir / "run"

    @property
    def worker_socket(self) -> Path:
        """Control socket of the worker."""
        return self.run_dir / "worker.sock"

    @property
    def builder_socket(self) -> Path:
        """Control socket of the builder."""
        return self.run_dir / "builder.sock"

    @property
    def workers_dir(self) -> Path:
        """Parent of the directories of the other workers."""
        return self.data_dir / _WORKERS

    def of_worker(self, name: str) -> Self:
        """Return another worker's settings: its own data directory, the shared staging one."""
        return self.replace(
            worker=name,
            data_dir=self.workers_dir / name,
            staging_dir_override=str(self.staging_dir),
        )

    @property
    def sources_dir(self) -> Path:
        """Parent of the directories of the other sources."""
        return self.data_dir / _SOURCES

    def of_carrier(self, name: str) -> Self:
        """Return the settings of a source's replicator."""
        return self.replace(carrier=name, data_dir=self.sources_dir / name)

    def flight_socket(self, worker: str) -> Path:
        """Return the Unix socket on which a worker accepts the coordinator or its TLS listener."""
        if self.token_file:  # it is on another machine, and the directory is its own
            return self.run_dir / f"{worker}.flight"
        whole = self.data_dir.parent.parent if self.worker else self.data_dir
        return whole / "run" / f"{worker}.flight"

    @property
    def keys_dir(self) -> Path:
        """Keys that identify this end of a link to another machine."""
        return self.data_dir / "keys"

    @property
    def staging_dir(self) -> Path:
        """State runs of populations under way."""
        if self.staging_dir_override:
            return Path(self.staging_dir_override)
        return self.data_dir / "staging"

    @property
    def state_dir(self) -> Path:
        """The RocksDB database."""
        return self.data_dir / "state"

    @property
    def queue_dir(self) -> Path:
        """The queues."""
        return self.data_dir / "queues"

    @property
    def spool_dir(self) -> Path:
        """Changes of transactions too large for memory."""
        return self.data_dir / "spool"

    @property
    def tmp_dir(self) -> Path:
        """Scratch files; emptied at start."""
        return self.data_dir / "tmp"

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
            value = getattr(self, f.name)
            if f.name in ("source", "eval_dsn") and value:
                value = redact(value)
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
    values: dict[str, tuple[Any, str]] = {}
    if file is not None:
        values |= {name: (value, str(file)) for name, value in _read_file(file).items()}
    names = {f.name for f in dataclasses.fields(Settings)}
    for key, value in env.items():
        if not key.startswith(ENV_PREFIX):
            continue
        name = key.removeprefix(ENV_PREFIX).lower()
        if name in names or name in WITHOUT_EFFECT:
            values[name] = (value, key)
        # Variables such as HEADRACE_TEST_DSN and HEADRACE_FAULT are not settings.
        elif near := difflib.get_close_matches(name, names, 1, _TYPO):
            raise UserError(
                f'unrecognized setting "{name}" (variable {key})',
                hint=f"Perhaps {ENV_PREFIX}{near[0].upper()} is meant.",
                sqlstate="42704",
            )
    values |= {k: (v, "command line") for k, v in (flags or {}).items() if v is not None}
    return values


def without_effect(given: Mapping[str, tuple[Any, str]]) -> list[str]:
    """Return a warning for each of the settings ``given`` that has no effect any more."""
    return [
        f'setting "{name}" ({origin}) no longer has an effect: {WITHOUT_EFFECT[name]}'
        for name, (_, origin) in given.items()
        if name in WITHOUT_EFFECT
    ]


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
