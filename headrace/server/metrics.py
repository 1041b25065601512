"""The metrics that /metrics exports: their names, their meanings and the text format.

``TABLE`` defines all of them.  A ``Page`` is filled for one response and rendered in Prometheus'
text format; nothing is kept between responses.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest

_PREFIX: Final = "headrace_"


class MetricKind(StrEnum):
    """Kind of a metric."""

    GAUGE = auto()
    COUNTER = auto()
    """It begins at zero with the process that counts."""
    HISTOGRAM = auto()


@dataclass(frozen=True, slots=True)
class Meaning:
    """Definition of a metric."""

    name: str
    """Without ``headrace_``; of a counter with ``_total``."""
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()


def _gauge(name: str, help_: str, *labels: str) -> Meaning:
    return Meaning(name, MetricKind.GAUGE, help_, labels)


def _counter(name: str, help_: str, *labels: str) -> Meaning:
    return Meaning(f"{name}_total", MetricKind.COUNTER, help_, labels)


def _histogram(name: str, help_: str, *labels: str) -> Meaning:
    return Meaning(name, MetricKind.HISTOGRAM, help_, labels)


TABLE: Final[tuple[Meaning, ...]] = (
    # --- the server
    _gauge("build_info", "1; the label says which version runs.", "version"),
    _gauge("wire_connections", "Client sessions on the port."),
    _gauge("process_up", "1 if the process answers, else 0.", "process"),
    _counter("process_restarts", "Number of restarts of a process.", "process"),
    _gauge("process_resident_bytes", "Resident memory of a process.", "process"),
    _counter("process_cpu_seconds", "Processor time of a process.", "process"),
    _gauge("worker_told", "1 if the worker has answered for this page; otherwise all metrics from here on are missing."),
    _gauge("worker_up", "1 if this worker can process its views, else 0.", "worker"),
    _gauge("memory_budget_bytes", "The setting memory_bytes."),
    _gauge("memory_bytes", "Memory and disk that the worker uses, by part.", "part"),
    _gauge("memory_limit_bytes", "Upper limit of headrace_memory_bytes, by part.", "part"),
    # --- the source
    _gauge("source_up", "1 if the database answers, else 0."),
    _gauge("source_slot_active", "1 if the replication slot is read, else 0."),
    _gauge("source_slot_wal_status", "1; the label is the server's status of the slot's WAL.", "status"),
    _gauge("source_slot_safe_wal_bytes", "WAL until the server gives the slot up (max_slot_wal_keep_size)."),
    _gauge("source_slot_lag_bytes", "WAL that is not confirmed yet."),
    _gauge("source_slot_lag_seconds", "Age of the confirmed position, as the server measures it."),
    _gauge("source_retained_wal_bytes", "WAL that the server keeps for the slot."),
    _gauge("source_wal_budget_bytes", "The setting wal_budget_bytes: limit of the WAL kept for one view that stands still."),
    _gauge("source_confirmed_flush_lsn", "Position up to which the slot is confirmed."),
    _gauge("source_restart_lsn", "Position from which on the server keeps WAL."),
    _gauge("source_current_wal_lsn", "Position at which the server writes."),
    _gauge("other_source_up", "1 if changes of another database arrive, else 0.", "source"),
    _counter("other_source_changes", "Rows received from another database.", "source"),
    _counter("stream_reconnects", "How often the worker has reconnected to the stream after a failure."),
    # --- batches
    _counter("batches", "Batches written to the tables."),
    _counter("transactions", "Transactions of the database in these batches."),
    _counter("rows_written", "Rows written to the tables of all views; each change of a row is two."),
    _gauge("batches_in_flight", "Batches that were begun and are not yet in the tables."),
    _histogram("commit_visible_seconds", "From the commit of a batch's oldest transaction to its being in the tables."),
    _histogram("batch_phase_seconds", "Time of a batch in each phase: process, wait (until it may be written), write.", "phase"),
    _histogram("sink_transaction_seconds", "One transaction that writes the tables of a commit group."),
    _histogram("checkpoint_seconds", "Time to write the worker's state to its disk."),
    _counter("checkpoint_failures", "Checkpoints that could not be written."),
    # --- views, all together
    _gauge("views", "Number of views in each state.", "state"),
    _gauge("views_freshness_max_seconds", "Largest known lag of a running view."),
    _counter("errors", "How often a view was stopped by an error, for good or until it could go on."),
    _counter("restarts", "How often a view continued after that."),
    _gauge("views_left_out", "Views that are not exported one by one, because there are more than metrics_views_max."),
    _gauge("collections_left_out", "The same for collections, and metrics_collections_max."),
    # --- assertions
    _gauge("assertions", "Number of assertions in each state; pending: violated within its grace, unknown: its view lags or does not run.", "state"),
    _gauge("assertion_violated", "1 if the assertion is violated and that was reported, 0 if not; missing if it is not known.", "assertion"),
    _gauge("webhook_deliveries", "Events that were not delivered to webhooks yet (pending), or never will be (failed).", "status"),
    # --- each view
    _gauge("view_state", "1 for the state that the view is in, 0 for the others.", "view", "state"),
    _gauge("view_cursor", "1 for the state of its cursor (list_views()), 0 for the others; all 0 if no engine works on it.", "view", "state"),
    _gauge("view_freshness_seconds", "Lag of the view: lag_ms of list_views().", "view"),
    _gauge("view_lag_bytes", "WAL written since the position that the view covers.", "view"),
    _gauge("view_rows", "Rows of its table, as estimated.", "view"),
    _gauge("view_txid", "Number of the last batch that changed its table.", "view"),
    _gauge("view_state_bytes", "Memory that the worker uses for its state.", "view"),
    _counter("view_batches", "Batches that have changed its table.", "view"),
    _counter("view_rows_read", "Rows that it has received from tables and subplans.", "view"),
    _counter("view_rows_written", "Rows written to its table; each change of a row is two.", "view"),
    _counter("view_errors", "How often it was stopped by an error.", "view"),
    _counter("view_restarts", "How often it continued after that.", "view"),
    _histogram("view_commit_visible_seconds", "From a commit to its being in the view's table.", "view"),
    # --- each collection
    _counter("collection_rows_in", "Rows that a collection has received.", "view", "node", "collection", "worker"),
    _counter("collection_rows_out", "Rows that it has sent.", "view", "node", "collection", "worker"),
    _counter("collection_busy_seconds", "Time that it has spent working.", "view", "node", "collection", "worker"),
    _gauge("collection_state_bytes", "Memory that its state uses.", "view", "node", "collection", "worker"),
)  # fmt: skip
_MEANINGS: Final = {meaning.name: meaning for meaning in TABLE}


class Page:
    """Samples of one response."""

    def __init__(self) -> None:
        self._families: dict[str, Any] = {}

    def put(self, name: str, value: float, *labels: str) -> None:
        """Add a sample of a gauge or counter of ``TABLE``, with the values of its labels."""
        self._family(name).add_metric(labels, float(value))

    def count(self, name: str, told: Mapping[str, Any], *labels: str) -> None:
        """Add a histogram, in the form of ``runtime/histogram.py``."""
        bounds = [*map(str, told["bounds"]), "+Inf"]
        buckets = list(zip(bounds, itertools.accumulate(told["counts"]), strict=True))
        self._family(name).add_metric(labels, buckets, float(told["sum_s"]))

    def render(self) -> str:
        """Return the page as text."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry).decode()

    def describe(self) -> Sequence[Metric]:
        """Return nothing, for the registry: metrics without samples are not described."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics in the order of ``TABLE``, for the registry."""
        for meaning in TABLE:
            if meaning.name in self._families:
                yield self._families[meaning.name]

    def _family(self, name: str) -> Any:
        family = self._families.get(name)
        if family is None:
            meaning = _MEANINGS[name]
            made = {
                MetricKind.GAUGE: GaugeMetricFamily,
                MetricKind.COUNTER: CounterMetricFamily,
                MetricKind.HISTOGRAM: HistogramMetricFamily,
            }[meaning.kind]
            family = made(_PREFIX + name, meaning.help, labels=meaning.labels)
            self._families[name] = family
        return family
