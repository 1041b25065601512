"""state: the state tier compared with a plain RocksDB loop: gets, upserts, checkpoints, restart."""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Any, ClassVar

import rocksdict

from bench.scenario import Figures, Options, Scenario
from headrace.kernels import packed
from headrace.kernels.packed import Packed
from headrace.state.regulator import Spill
from headrace.state.rocks import RocksDatabase, RocksStore

_BATCH = 10_000
_VALUE_BYTES = 32
_BUDGET_BYTES = 2 * 1024**3
_STATE_BYTES = 1024**3


class State(Scenario):
    """One map state of a view, driven as the engine drives it."""

    name: ClassVar[str] = "state"
    about: ClassVar[str] = "keys/s (of CPU time) in sorted batches of 10 000, beside RocksDB alone"
    rows_default: ClassVar[int] = 1_000_000

    def run(self, options: Options) -> list[Figures]:
        """Run each measurement on separate data."""
        rows = options.rows or self.rows_default
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as home:
            path = Path(home)
            plain = _Plain(path / "plain")
            plain_rates = plain.rates(rows)
            plain.close()
            own = _Own(path / "own", rows)
            lines = own.rates(plain_rates)
            lines += own.checkpoint()
            lines += own.spilled(plain_rates)
            own.close()
            shutil.rmtree(path / "own")
            lines += _restart(path / "restart", rows)
        return lines


def _line(what: str, figure: float, plain: float = 0.0) -> Figures:
    return {
        "what": what,
        "figure": round(figure, 3) if figure < 100 else round(figure),
        "plain_rocksdb": round(plain) if plain else "-",
        "ratio": round(figure / plain, 2) if plain else "-",
    }


def _keys(count: int) -> list[bytes]:
    """Return distinct keys of 16 bytes, in a random order."""
    keys = [b"%016d" % (i * 2_654_435_761 % 10**16) for i in range(count)]
    random.Random(7).shuffle(keys)  # noqa: S311  not for secrets
    return keys


def _batches(keys: list[bytes]) -> Iterator[list[bytes]]:
    for start in range(0, len(keys), _BATCH):
        yield sorted(keys[start : start + _BATCH])


def _packed(batches: Iterable[list[bytes]]) -> list[Packed]:
    """Pack batches, as they come from the encoders."""
    return [packed.pack(batch) for batch in batches]


def _rate(batches: Sequence[Sized], work: Callable[[Any], Any]) -> float:
    """Return keys per second of this thread's CPU time: other programs do not count."""
    begin = time.thread_time()
    for batch in batches:
        work(batch)
    return sum(map(len, batches)) / (time.thread_time() - begin)


class _Plain:
    """Plain RocksDB as a baseline: a multi-get and a write batch per batch."""

    def __init__(self, path: Path) -> None:
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(64 * 1024**2)
        self._db = rocksdict.Rdict(str(path), options)

    def rates(self, rows: int) -> dict[str, float]:
        """Return the operations per second."""
        keys = _keys(rows)
        for batch in _batches(keys):
            self._put(batch, b"v" * _VALUE_BYTES)
        random.Random(8).shuffle(keys)  # noqa: S311
        some = list(_batches(keys[: rows // 2]))
        return {"get": _rate(some, self._db.get), "upsert": _rate(some, self._upsert)}

    def _put(self, keys: list[bytes], value: bytes) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key in keys:
            batch.put(key, value)
        self._db.write(batch)

    def _upsert(self, keys: list[bytes]) -> None:
        assert None not in self._db.get(keys)
        self._put(keys, b"w" * _VALUE_BYTES)

    def close(self) -> None:
        self._db.close()


class _Own:
    """A view with one map of ``rows`` resident keys."""

    def __init__(self, path: Path, rows: int) -> None:
        self._database = RocksDatabase(path, memory_bytes=_BUDGET_BYTES)
        self._store = self._database.view(1)
        self._state = self._store.map("m")
        self._keys = _keys(rows)
        for batch in _packed(_batches(self._keys)):
            self._txid(batch, b"v")
        _checkpoint(self._database, self._store)
        self._settle()

    def _txid(self, keys: Packed, value: bytes) -> None:
        """Read and write every key, as a collection does."""
        txid = self._store.txid + 1
        self._store.begin(txid)
        self._state.get_many(keys)
        self._state.put_many(keys, packed.all_valid(packed.repeat(value * _VALUE_BYTES, len(keys))))
        self._store.prepare()
        self._store.commit(txid)

    def _settle(self) -> None:
        for tier in self._store.tiers.values():
            while tier.cleaning:
                tier.clean(100_000)

    def rates(self, plain: dict[str, float]) -> list[Figures]:
        """Measure gets and upserts of resident keys."""
        random.Random(8).shuffle(self._keys)  # noqa: S311
        some = _packed(_batches(self._keys[: len(self._keys) // 2]))
        tier = self._store.tiers["m"]
        assert tier.spilled == 0
        gets = _rate(some, self._state.get_many)

        def upsert(keys: Packed) -> None:
            txid = self._store.txid + 1
            self._store.begin(txid)
            values = packed.repeat(b"w" * _VALUE_BYTES, len(keys))
            self._state.put_many(keys, packed.all_valid(values))
            self._store.commit(txid)

        upserts = _rate(some, upsert)
        both = _rate(some, lambda keys: self._txid(keys, b"x"))
        return [
            _line("gets/s, resident", gets, plain["get"]),
            _line("upserts/s, resident", upserts, plain["upsert"]),
            _line("reads and writes/s in txids", both, plain["upsert"]),
        ]

    def checkpoint(self) -> list[Figures]:
        """Measure the time of a txid with and without a concurrent checkpoint of every key."""
        batches = _packed(sorted(self._keys[i : i + 1000]) for i in range(0, 200_000, 1000))

        def times(until: Callable[[], bool]) -> list[float]:
            out = []
            while not until():
                for batch in batches:
                    begin = time.perf_counter()
                    self._txid(batch, b"y")
                    out.append((time.perf_counter() - begin) * 1e3)
                    self._database.regulate()
                    if until():
                        break
                    time.sleep(0.002)  # the engine waits for its source, too
            return sorted(out)

        _checkpoint(self._database, self._store)
        self._settle()
        end = time.monotonic() + 4.0
        quiet = times(lambda: time.monotonic() > end)
        for batch in _packed(_batches(self._keys)):
            self._txid(batch, b"z")
        begun = time.perf_counter()
        made = self._database.begin_checkpoint([(self._store, self._store.txid)], {})
        begin_ms = (time.perf_counter() - begun) * 1e3
        thread = threading.Thread(target=made.write, kwargs={"sync": True})
        begun = time.perf_counter()
        thread.start()
        busy = times(lambda: not thread.is_alive())
        seconds = time.perf_counter() - begun
        thread.join()
        assert made.written
        begun = time.perf_counter()
        self._database.end_checkpoint(made)
        end_ms = (time.perf_counter() - begun) * 1e3
        after = time.monotonic() + 4.0
        cleaning = times(lambda: time.monotonic() > after)
        self._settle()
        return [
            _line("checkpoint of all keys, s", seconds),
            _line("begin_checkpoint, ms", begin_ms),
            _line("end_checkpoint, ms", end_ms),
            _line("txid of 1000 keys, p50 ms", _quantile(quiet, 0.5)),
            _line("txid of 1000 keys, p99 ms", _quantile(quiet, 0.99)),
            _against("… p50 during a checkpoint", busy, quiet, 0.5),
            _against("… p99 during a checkpoint", busy, quiet, 0.99),
            _against("… p99 while it is cleaned up", cleaning, quiet, 0.99),
        ]

    def spilled(self, plain: dict[str, float]) -> list[Figures]:
        """Measure gets of keys that are in RocksDB only."""
        _checkpoint(self._database, self._store)
        self._settle()
        tier = self._store.tiers["m"]
        for group in range(256):
            job = Spill(tier, group)
            while not job.step():
                pass
        self._settle()
        assert tier.map.total == 0
        random.Random(9).shuffle(self._keys)  # noqa: S311
        some = _packed(_batches(self._keys[: len(self._keys) // 2]))
        gets = _rate(some, self._state.get_many)
        return [_line("gets/s, spilled", gets, plain["get"])]

    def close(self) -> None:
        self._database.close()


def _quantile(times: list[float], part: float) -> float:
    return times[min(len(times) - 1, int(part * len(times)))]


def _against(what: str, busy: list[float], quiet: list[float], part: float) -> Figures:
    figure, plain = _quantile(busy, part), _quantile(quiet, part)
    return {
        "what": what,
        "figure": round(figure, 3),
        "plain_rocksdb": "-",
        "ratio": f"{figure / plain:.2f} x quiet",
    }


def _checkpoint(database: RocksDatabase, store: RocksStore) -> None:
    made = database.begin_checkpoint([(store, store.txid)], {})
    made.write(sync=False)
    database.end_checkpoint(made)


def _restart(path: Path, rows: int) -> list[Figures]:
    """Measure the seconds until a state of 1 GiB answers after a stop."""
    value_bytes = max(100, _STATE_BYTES // rows // 2)
    # Longer than any block: it cannot be compressed away.
    noise = random.Random(10).randbytes(16 * 1024**2)  # noqa: S311
    count = _STATE_BYTES // value_bytes
    database = RocksDatabase(path)
    store = database.view(1)
    state = store.map("m")
    for start in range(0, count, _BATCH):
        keys = [b"%016d" % i for i in range(start, min(start + _BATCH, count))]
        store.begin(store.txid + 1)
        values = [
            noise[at : at + value_bytes]
            for at in range(start % 4099, start % 4099 + len(keys) * 1000, 1000)
        ]
        state.put_many(packed.pack(keys), packed.nullable(values))
        store.commit(store.txid + 1)
        if start % (5 * _BATCH) == 0:
            _checkpoint(database, store)
        database.regulate()
    _checkpoint(database, store)
    del state
    database.close()
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    begin = time.perf_counter()
    database = RocksDatabase(path)
    state = database.view(1, count).map("m")
    found = state.get_many(packed.pack([b"%016d" % i for i in range(0, count, count // 1000)]))
    seconds = time.perf_counter() - begin
    assert found.valid.all()
    del state
    database.close()
    return [_line(f"restart with {size / 1024**3:.1f} GiB of state, s", seconds)]
