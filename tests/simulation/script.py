"""The script of a run: transactions and troubles, chosen by the seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.simulation.world import World

_ACTIONS: Final = 25
_UNDISTURBED_S: Final = 8.0
"""Virtual seconds within which a view goes on while another one is in trouble."""
_AGAIN: Final = 0.5
"""Probability of another power failure while the engine recovers from one."""
_MANY: Final = 60
"""Transactions that are several checkpoints."""
_LAGGING_S: Final = 2.0
"""Virtual seconds within which views show everything while a standby lags: less than checkpoints
wait."""
_QUIET_S: Final = 15.0
"""Virtual seconds after which a lost connection is back."""


class Script:
    """One run from the start to the end of all troubles."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance
        self._paused: set[int] = set()
        self._actions: list[Callable[[], None]] = [
            *[self.work] * 6,
            *[self.kill] * 3,
            self.break_stream,
            self.break_sink,
            self.lose_server,
            *[self.lock] * 2,
            *[self.pause] * 2,
            *[self.resume] * 2,
            self.slow_down,
            self.refuse,
            self.fill_disk,
            self.fail_batch,
            self.restart,
            self.leave_one,
        ]
        if self._chance.random() < 0.5:
            self._actions += [self.promote, self.promote, self.stall_standby]

    def run(self) -> None:
        """Run the script."""
        world = self._world
        if self.promote in self._actions:
            world.server.add_standby(guarded=self._chance.random() < 0.5)
        world.boot()
        for _ in range(_ACTIONS):
            action = self._chance.choice(self._actions)
            world.scheduler.note(action.__name__)
            action()
        self.heal()
        self.work()
        world.settle()
        world.restart()
        self.work()
        world.settle()

    def heal(self) -> None:
        """End all troubles."""
        world = self._world
        world.scheduler.note("heal")
        world.server.locked.clear()
        world.server.refusing.clear()
        world.server.reachable = True
        world.disk.failing = False
        world.slow.clear()
        for view_id in sorted(self._paused):
            self._resume(view_id)

    # --- transactions

    def work(self) -> None:
        """Commit some transactions."""
        for _ in range(self._chance.choice((1, 3, 10, 25))):
            self._commit()
            self._let_pass(self._chance.choice((0.0, 0.001, 0.02)))
        self._let_pass(self._chance.choice((0.0, 0.05, 1.5)))

    def _commit(self) -> None:
        server, scheduler = self._world.server, self._world.scheduler
        if self._chance.random() < 0.2:
            server.history.write_other(self._chance)
        server.history.commit(self._chance, scheduler.now)
        server.ship()
        for receiver in server.streams:
            receiver.tell()

    def _let_pass(self, seconds: float) -> None:
        self._world.scheduler.stand(seconds * self._chance.random())

    # --- troubles

    def kill(self) -> None:
        """Kill the engine at any step while it works."""
        for _ in range(self._chance.choice((0, 2, 6))):
            self._commit()
        power = self._chance.random() < 0.5
        self._world.kill(within=self._chance.choice((30, 300, 2_000)), power=power)
        # The lost batches are replayed now: let the power fail meanwhile.
        while power and self._chance.random() < _AGAIN:
            self._world.kill(within=self._chance.choice((30, 300, 2_000)), power=True)

    def restart(self) -> None:
        """Stop the engine cleanly."""
        self._world.restart()

    def break_stream(self) -> None:
        """Break the replication connection."""
        for receiver in list(self._world.server.streams):
            receiver.sever()
        self._let_pass(1.0)

    def break_sink(self) -> None:
        """Break a connection while batches are written."""
        for _ in range(4):
            self._commit()
        self._let_pass(0.05)
        connections = self._world.server.connections
        writing = [c for c in connections if c.committing] or connections
        if writing:
            self._world.server.lose(self._chance.choice(writing))

    def lose_server(self) -> None:
        """Lose all connections, and make new ones impossible for a while."""
        server = self._world.server
        server.reachable = False
        self.break_stream()
        for connection in list(server.connections):
            server.lose(connection)
        self._let_pass(3.0)
        server.reachable = True

    def promote(self) -> None:
        """Lose the server while it is written to; a standby takes over, sometimes much later."""
        for _ in range(self._chance.choice((0, 2, 6))):
            self._commit()
            self._let_pass(self._chance.choice((0.0, 0.01)))
        if self._chance.random() < 0.3:
            self.kill()
        server = self._world.server
        server.reachable = self._chance.random() < 0.5
        self._world.promote()
        # The last pauses and resumptions may be lost.
        self._paused = {i for i, row in server.views.items() if row.status == "paused"}
        self._let_pass(0.5)
        server.reachable = True
        self._let_pass(2.0)
        self._world.check_alive()

    def stall_standby(self) -> None:
        """Let the standby get nothing for a while, but less than checkpoints wait for."""
        world, server = self._world, self._world.server
        if server.guarded or self._chance.random() < 0.5:
            server.stalled_until = server.scheduler.now + 3.0 * self._chance.random()
            self.work()
            return
        world.check_alive()
        world.scheduler.stand(_QUIET_S)
        world.check_alive()
        server.stalled_until = server.scheduler.now + 4.0
        for _ in range(_MANY):
            self._commit()
            world.scheduler.stand(0.01)
        # Checkpoints wait, but no view does.
        waiting = server.locked | self._paused
        world.expect(
            [i for i in server.views if i not in waiting], _LAGGING_S, "only the standby lags"
        )

    def lock(self) -> None:
        """Let a user lock the table of a view; all other views go on."""
        view_id = self._any_view()
        self._world.server.locked.add(view_id)
        self._others_go_on(view_id)
        self._world.server.locked.discard(view_id)
        if self._chance.random() < 0.5:
            self._let_pass(2.0)

    def pause(self) -> None:
        """Pause a view; all other views go on."""
        view_id = self._any_view()
        self._paused.add(view_id)
        self._world.command(lambda engine: engine.lifecycle.pause(view_id))
        self._others_go_on(view_id)

    def resume(self) -> None:
        """Resume a paused view."""
        if self._paused:
            self._resume(min(self._paused))

    def _resume(self, view_id: int) -> None:
        world = self._world
        while view_id in self._paused:
            if world.command(lambda engine: engine.lifecycle.resume(view_id)):
                self._paused.discard(view_id)
            else:
                world.check_alive()
                world.scheduler.stand(1.0)

    def slow_down(self) -> None:
        """Let a view need much time for its rows."""
        view_id = self._any_view()
        self._world.slow[view_id] = 0.2
        for _ in range(6):
            self._commit()
            self._let_pass(0.4)
        self._world.slow.pop(view_id)

    def refuse(self) -> None:
        """Let the next writes of a view fail."""
        self._world.server.refusing[self._any_view()] = self._chance.choice((1, 2))
        self.work()

    def fill_disk(self) -> None:
        """Let checkpoints fail for a while."""
        self._world.disk.failing = True
        self.work()
        self._world.disk.failing = False

    def fail_batch(self) -> None:
        """Let a batch in flight be processed again."""
        for _ in range(3):
            self._commit()
        self._let_pass(0.02)

        def fail(engine: object) -> None:
            flights = self._world.engine.state.pipeline.flights()
            if flights:
                txid = self._chance.choice(flights).txid
                self._world.engine.fail_batch(txid, None)

        self._world.command(fail, quiet=False)

    def leave_one(self) -> None:
        """Leave a locked table locked until all troubles end."""
        self._world.server.locked.add(self._any_view())

    def _any_view(self) -> int:
        return self._chance.choice(self._world.models).id

    def _others_go_on(self, view_id: int) -> None:
        """Check that views that nothing disturbs show new transactions soon."""
        world = self._world
        for _ in range(self._chance.choice((1, 5))):
            self._commit()
            self._let_pass(0.05)
        self._let_pass(0.5)
        if self._chance.random() < 0.5:
            return
        world.scheduler.stand(_QUIET_S)
        self._commit()
        others = [
            i
            for i, row in world.server.views.items()
            if i != view_id and i not in world.server.locked and i not in self._paused
        ]
        world.expect(others, _UNDISTURBED_S, f"only view {view_id} is in trouble")
