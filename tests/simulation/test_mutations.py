"""Invariants of the engine that are broken on purpose: the simulation must find each."""

from __future__ import annotations

import pytest

from headrace.postgres.timeline import Identity
from headrace.runtime import failover, insight, positions
from headrace.runtime.durability import Durability
from headrace.runtime.intake_log import IntakeLog
from headrace.runtime.jobs import Jobs
from headrace.runtime.leading import LeadingUnits
from headrace.runtime.replication_wait import Replication, ReplicationWait
from headrace.runtime.writing import SinkThread
from headrace.sql.status import CursorState
from headrace.state.rocks import RocksDatabase
from headrace.storage.manager import Storage
from headrace.storage.queue import Queue
from tests.simulation import world as worlds
from tests.simulation.script import Script

SEEDS_MAX = 50
"""Seeds within which each mutation must be found."""


def confirm_before_the_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """Confirm what is committed, without waiting for the checkpoint that holds it."""
    begin = Durability.begin

    def eager(this: Durability) -> None:
        begin(this)
        this._state.confirmed = max(this._state.confirmed, this._state.checkpoints.confirming)

    patch.setattr(Durability, "begin", eager)


def never_sync_the_log(patch: pytest.MonkeyPatch) -> None:
    """Write checkpoints without the log that they rely on."""
    patch.setattr(Storage, "sync", lambda _: None)


def never_admit_again(patch: pytest.MonkeyPatch) -> None:
    """Leave a view that goes on out of the sink's jobs."""
    patch.setattr(SinkThread, "admit", lambda *_: None)


def commit_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    """Hand out the next job though the one before has failed."""

    def failed(this: Jobs, error: Exception) -> None:
        with this._changed:
            this._writing = False
            this._changed.notify_all()

    patch.setattr(Jobs, "failed", failed)


def skip_a_batch_in_the_log(patch: pytest.MonkeyPatch) -> None:
    """Forget batches that a view still needs."""
    keep_after = IntakeLog.keep_after
    patch.setattr(IntakeLog, "keep_after", lambda this, db, txid: keep_after(this, db, this.last))


def publish_too_early(patch: pytest.MonkeyPatch) -> None:
    """Say that a view leads while it still catches up."""
    cursors = insight.cursors
    hidden = CursorState.CATCHING_UP
    patch.setattr(
        insight, "cursors", lambda state: [c for c in cursors(state) if c["state"] != hidden]
    )


def stay_in_step(patch: pytest.MonkeyPatch) -> None:
    """Let what does not lead any more pass by batches with the leading units."""
    wake = LeadingUnits.wake
    patch.setattr(
        LeadingUnits,
        "wake",
        lambda this, units: wake(this, [unit for unit in units if unit.id in this._ids]),
    )


def rest_though_fed(patch: pytest.MonkeyPatch) -> None:
    """Leave out the readers of a subplan that has rows for them."""
    patch.setattr(LeadingUnits, "readers", lambda *_: [])


def use_blocks_again_at_once(patch: pytest.MonkeyPatch) -> None:
    """Release blocks before the new base of their queue is on the disk."""
    pass_by = Queue._pass_by

    def eager(this: Queue) -> int:
        this.synced_base = this.base
        return pass_by(this)

    patch.setattr(Queue, "_pass_by", eager)


def checkpoint_before_the_standbys(patch: pytest.MonkeyPatch) -> None:
    """Write checkpoints whose result rows a promotion may undo."""
    patch.setattr(ReplicationWait, "begin", lambda _: Replication.COMPLETE)


def keep_batches_after_the_switch(patch: pytest.MonkeyPatch) -> None:
    """Go on with batches that the promoted server does not have."""

    def apply(db: RocksDatabase, _: Storage) -> None:
        value = db.get_meta(failover._SWITCH)
        if value is not None:
            found = failover._SWITCHES.decode(value)
            meta: positions.Meta = {failover._SWITCH: None}
            positions.put_source(meta, Identity(found.system_id, found.timeline), found.slot)
            db.put_meta(meta, sync=True)

    patch.setattr(failover, "apply_switch", apply)


MUTATIONS = [
    confirm_before_the_checkpoint,
    never_sync_the_log,
    never_admit_again,
    commit_after_a_failure,
    skip_a_batch_in_the_log,
    publish_too_early,
    stay_in_step,
    rest_though_fed,
    use_blocks_again_at_once,
    checkpoint_before_the_standbys,
    keep_batches_after_the_switch,
]


def find(mutation, seeds) -> tuple[int, str] | None:
    """Return the first seed that finds a mutation, and its error."""
    for seed in seeds:
        with worlds.made(seed) as world:
            mutation(world.patch)
            try:
                world.scheduler.run(Script(world).run)
            except Exception as error:  # noqa: BLE001  any error is a find
                return seed, repr(error)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.__name__)
def test_mutation(mutation):
    found = find(mutation, range(SEEDS_MAX))
    assert found is not None, f"no seed of {SEEDS_MAX} finds it"
