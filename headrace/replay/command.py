"""The commands ``headrace capture`` and ``headrace replay``."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec

from headrace.collections import plan
from headrace.config import Settings
from headrace.counting import counted, noun
from headrace.errors import HeadraceError, Interrupted, PrerequisiteError
from headrace.replay import bundle, capture, evaluation
from headrace.replay.bundle import Bundle, BundleManifest, Digest, UnitEntry, UnitResult
from headrace.replay.capture import CaptureRequest
from headrace.replay.run import Replay, UnitReplay, collection
from headrace.sql.status import Status
from headrace.state import layout

Say = Callable[[str], None]

SAME: Final = 0
DIFFERS: Final = 1
NOT_REPLAYED: Final = 2


@dataclass(slots=True)
class UnitReport:
    """The outcome for a view or a subplan."""

    name: str
    batches: int = 0
    """Batches in which it had diffs."""
    rows: int = 0
    differs: list[str] = field(default_factory=list)
    """Where it differs from the capture."""
    left_out: str | None = None
    """Why it was not replayed."""
    note: str = ""


@dataclass(slots=True)
class Report:
    """The outcome of a replay."""

    status: int
    batches: int
    units: list[UnitReport]

    def lines(self) -> Iterator[str]:
        """Yield the report for people."""
        yield f"{counted(self.batches, 'batch', 'batches')} replayed"
        for unit in self.units:
            about = f"{counted(unit.rows, 'row')} in {counted(unit.batches, 'batch', 'batches')}"
            if unit.left_out is not None:
                yield f"? {unit.name}: not replayed: {unit.left_out}"
            elif unit.differs:
                yield f"✗ {unit.name}: {about}"
                yield from (f"    {line}" for line in unit.differs)
            else:
                yield f"✓ {unit.name}: {about}{unit.note and '; '}{unit.note}"
        yield {
            SAME: "same: no difference was found",
            DIFFERS: "DIFFERENT: see ✗ above",
            NOT_REPLAYED: "some views could not be replayed: see ? above",
        }[self.status]


def run_capture(settings: Settings, request: CaptureRequest, say: Say, *, check: bool) -> int:
    """Write a bundle, and replay it if ``check``; return the exit status.

    Raises:
        HeadraceError: as ``capture.run``.
    """
    manifest = capture.run(settings, request, say)
    say(f"{request.out}: {request.out.stat().st_size} bytes, {manifest.retained}")
    for left in manifest.left_out:
        say(f"left out: view {left.view}: {left.reason}")
    if not manifest.running:
        say("the server does not run: there are no later states to compare with")
    if not request.rows:
        say("the bundle has no values of rows, so it cannot be replayed; --rows adds them")
        return 0
    if not check or not manifest.units:
        return 0
    try:
        report, results = replayed(request.out, settings.source)
    except HeadraceError as error:
        say(f"the bundle could not be replayed here: {error.message}")
        return 0
    with request.out.open("r+b") as file:
        bundle.add_results(file, results)
    for line in report.lines():
        say(line)
    return 0


def run_replay(path: Path, say: Say, *, as_json: bool) -> int:
    """Replay a bundle and report; return the exit status.

    Raises:
        BundleError: it is no bundle.
    """
    with contextlib.closing(Bundle(path)) as opened:
        manifest = opened.manifest
        if not as_json:
            for line in described(opened):
                say(line)
        if not manifest.rows:
            if as_json:
                say(msgspec.json.encode({"status": NOT_REPLAYED, "rows": False}).decode())
            else:
                say("not replayed: the bundle has no values of rows (capture --rows adds them)")
            return NOT_REPLAYED
    report, _ = replayed(path)
    if as_json:
        say(msgspec.json.encode(report).decode())
    else:
        for line in report.lines():
            say(line)
    return report.status


def described(opened: Bundle) -> Iterator[str]:
    """Yield what a bundle has."""
    found, batches = opened.manifest, opened.batches
    yield f"captured at {found.made_at} by Headrace {found.headrace}, Postgres {_version(found)}"
    yield f"{counted(len(batches), 'batch', 'batches')}, {found.retained}"
    own = metadata.version("headrace")
    if own != found.headrace:
        yield f"note: this is Headrace {own}, which may compute the diffs otherwise"
    if found.masked:
        yield f"masked: {', '.join(found.masked)}"
    for unit in found.units:
        pairs = sum(state.pairs for state in unit.states)
        size = sum(state.key_bytes + state.value_bytes for state in unit.states)
        state = f"{counted(len(unit.states), 'state', 'states')}, {counted(pairs, 'pair')}, {counted(size, 'byte')}"
        stopped = f", {unit.status} {unit.sqlstate or ''}".rstrip() if unit.status else ""
        yield f"{unit.name}: txid {unit.begin} to {unit.end or '?'}{stopped}; {state}"
    for left in found.left_out:
        yield f"left out: {left.view}: {left.reason}"


def replayed(path: Path, dsn: str = "") -> tuple[Report, list[UnitResult]]:
    """Replay a bundle; ``dsn``: the server that evaluates expressions, '': an embedded one."""
    with (
        contextlib.closing(Bundle(path)) as opened,
        tempfile.TemporaryDirectory(prefix="headrace-replay-") as name,
        contextlib.ExitStack() as inside,
    ):
        manifest, folder = opened.manifest, Path(name)
        if manifest.state_format != layout.FORMAT:
            raise PrerequisiteError(
                f"the bundle has states of format {manifest.state_format}, and this version of"
                f" Headrace reads {layout.FORMAT}",
                hint=f"Replay it with Headrace {manifest.headrace}.",
            )
        units, reports = _replayable(manifest)
        if (
            any(evaluation.asks_server(plan.from_json(unit.record.plan)) for unit in units)
            and not dsn
        ):
            try:
                dsn = inside.enter_context(evaluation.server(folder, manifest.postgres))
            except PrerequisiteError as error:
                units, reports = _without_server(units, reports, error)
        batches = 0

        def progress(_: int) -> None:
            nonlocal batches
            batches += 1

        with contextlib.closing(Replay(opened, folder, units, dsn)) as replay:
            replay.load()
            replay.run(progress)
            results = [done.result for done in replay.units.values()]
            expected = opened.results
            for done in replay.units.values():
                reports[done.entry.id] = _reported(done, expected)
    found = [reports[unit.id] for unit in manifest.units]
    return Report(_status(found), batches, found), results


def _status(found: Sequence[UnitReport]) -> int:
    if any(unit.differs for unit in found):
        return DIFFERS
    return NOT_REPLAYED if not found or any(unit.left_out for unit in found) else SAME


def _replayable(manifest: BundleManifest) -> tuple[list[UnitEntry], dict[int, UnitReport]]:
    """Return the units that can be replayed, and reports of the others."""
    units: list[UnitEntry] = []
    reports: dict[int, UnitReport] = {}
    for unit in manifest.units:
        try:
            reason = evaluation.objection(plan.from_json(unit.record.plan))
        except (ValueError, TypeError, KeyError) as error:
            reason = f"this version cannot read its plan: {type(error).__name__}"
        _sort(unit, reason, units, reports)
    return units, reports


def _without_server(
    units: Sequence[UnitEntry], reports: dict[int, UnitReport], error: HeadraceError
) -> tuple[list[UnitEntry], dict[int, UnitReport]]:
    left: list[UnitEntry] = []
    for unit in units:
        asks = evaluation.asks_server(plan.from_json(unit.record.plan))
        _sort(unit, error.message if asks else None, left, reports)
    return left, reports


def _sort(
    unit: UnitEntry, reason: str | None, units: list[UnitEntry], reports: dict[int, UnitReport]
) -> None:
    """Add a unit to ``units``, or a report of why it is left out."""
    below = [reports[f].left_out for f in unit.record.feeds.values() if f in reports]
    reason = reason or next((f"a subplan that it shares: {r}" for r in below if r), None)
    if reason is None:
        units.append(unit)
    else:
        reports[unit.id] = UnitReport(unit.name, left_out=reason)


def _reported(done: UnitReplay, expected: dict[int, UnitResult] | None) -> UnitReport:
    entry = done.entry
    report = UnitReport(entry.name, len(done.diffs), sum(digest.rows for digest in done.diffs))
    if done.stopped is not None and isinstance(done.stopped[1], Interrupted):
        report.left_out = f"txid {done.stopped[0]}: {done.stopped[1].message}"
        return report
    if expected is not None and entry.id in expected:
        report.differs += _compared(done, expected[entry.id])
    for difference in (done.different or ())[:5]:
        kind = collection(entry, difference.state)
        report.differs.append(
            f"state {difference.state} ({kind}) after txid {entry.end}: "
            f"{counted(difference.keys, 'key')} {noun(difference.keys, 'differs', 'differ')}: {difference.missing} missing, {difference.unexpected} unexpected,"
            f" {difference.changed} with another value"
        )
    stopped = done.stopped
    if stopped is not None:
        report.note = f"stops at txid {stopped[0]}: {stopped[1].code} {stopped[1].message}"
        if entry.end is not None:
            report.differs.append(f"{report.note}, and did not in the engine")
    elif entry.status == Status.ERROR and entry.end is None and entry.sqlstate:
        report.differs.append(f"it stopped with {entry.sqlstate}, and the replay does not stop")
    elif done.different is None and entry.end is not None:
        report.differs.append(f"the batches end before txid {entry.end}, where its states are")
    elif done.different is None:
        report.note = "nothing to compare its states with"
    return report


def _compared(done: UnitReplay, expected: UnitResult) -> list[str]:
    """Return the first difference between the diffs and those on the machine of the capture."""
    own = {digest.txid: digest for digest in done.diffs}
    told = {digest.txid: digest for digest in expected.diffs}
    for txid in sorted(own.keys() | told.keys()):
        one, other = own.get(txid), told.get(txid)
        if one != other:
            return [
                f"first differs in txid {txid}: {_rows(one)} here, {_rows(other)} at the capture"
            ]
    stopped = None if done.stopped is None else (done.stopped[0], done.stopped[1].code)
    if stopped != expected.stopped:
        return [f"stops at {stopped or 'no txid'} here, at {expected.stopped or 'no txid'} there"]
    return []


def _rows(digest: Digest | None) -> str:
    return "no rows" if digest is None else f"{counted(digest.rows, 'row')} ({digest.value[:8]})"


def _version(found: BundleManifest) -> str:
    return f"{found.postgres // 10_000}.{found.postgres % 10_000}"
