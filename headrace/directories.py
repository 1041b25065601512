"""Files and folders below a data directory, from the settings that decide where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_WORKERS: Final = "workers"
_SOURCES: Final = "sources"


class Directories:
    """Base class of ``Settings``: the paths of one process."""

    __slots__ = ()

    data_dir: Path
    worker: str
    carrier: str
    token_file: str
    staging_dir_override: str

    @property
    def engine_dir(self) -> Path:
        """The engine's data directory, also in its workers and replicators on this machine."""
        child = (self.worker and not self.token_file) or self.carrier
        return self.data_dir.parent.parent if child else self.data_dir

    @property
    def run_dir(self) -> Path:
        """Sockets of the child processes."""
        return self.data_dir / "run"

    @property
    def turns_dir(self) -> Path:
        """Where this machine's processes take turns to run users' code."""
        return self.engine_dir / "run"

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

    @property
    def sources_dir(self) -> Path:
        """Parent of the directories of the other sources."""
        return self.data_dir / _SOURCES

    def flight_socket(self, worker: str) -> Path:
        """Return the Unix socket on which a worker accepts the coordinator or its TLS listener."""
        return self.engine_dir / "run" / f"{worker}.flight"

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
    def forks_dir(self) -> Path:
        """Copies of the RocksDB database, which link its files; emptied at start."""
        return self.data_dir / "forks"

    @property
    def captures_dir(self) -> Path:
        """Copies that captures of this data directory work on."""
        return self.data_dir / "captures"

    @property
    def pins_dir(self) -> Path:
        """Pins of the intake log, from other processes."""
        return self.data_dir / "pins"

    @property
    def queue_dir(self) -> Path:
        """The queues."""
        return self.data_dir / "queues"

    @property
    def events_dir(self) -> Path:
        """Files of events, of all processes on this machine."""
        return self.engine_dir / "events"

    @property
    def spool_dir(self) -> Path:
        """Changes of transactions too large for memory."""
        return self.data_dir / "spool"

    @property
    def tmp_dir(self) -> Path:
        """Scratch files; emptied at start."""
        return self.data_dir / "tmp"
