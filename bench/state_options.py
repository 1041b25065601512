"""state_options: RocksDB's options, compared for each kind of state."""

from __future__ import annotations

import random
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import rocksdict

from bench.scenario import Figures, Options, Scenario
from headrace.state import columns

Pair = tuple[bytes, bytes]

_ROUNDS: Final = 3
_GETS: Final = 20_000
_GETS_PER_CALL: Final = 1_000
_SCANS: Final = 3_000
_SCANNED: Final = 10
_CACHE_BYTES: Final = 4 << 20
"""Block cache: much less than the pairs, so that most reads decompress a block."""
_SEED: Final = 7
_WORDS: Final = ("alfa", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel")

Table = Any
"""RocksDB's options of sorted files (``columns.table_options``)."""
_NONE: Final = rocksdict.DBCompressionType.none()
_ZSTD: Final = rocksdict.DBCompressionType.zstd()


def _hashed(table: Table) -> None:
    table.set_data_block_index_type(rocksdict.DataBlockIndexType.binary_and_hash())
    table.set_data_block_hash_ratio(0.75)


def _whole(table: Table) -> None:
    table.set_index_type(rocksdict.BlockBasedIndexType.binary_search())
    table.set_partition_filters(False)


def _blocks(kilobytes: int) -> Callable[[Table], None]:
    return lambda table: table.set_block_size(kilobytes << 10)


_CHANGES: Final[dict[str, tuple[Callable[[Table], None] | None, Any]]] = {
    "chosen": (None, None),
    "no compression": (None, _NONE),
    "zstd": (None, _ZSTD),
    "blocks of 2 kB": (_blocks(2), None),
    "blocks of 8 kB": (_blocks(8), None),
    "blocks of 32 kB": (_blocks(32), None),
    "blocks of 16 kB, zstd": (_blocks(16), _ZSTD),
    "hash index in blocks": (_hashed, None),
    "index in one part": (_whole, None),
}
"""Changes of the options that the product chooses (``state/README.md``), and of the compression."""


class StateOptions(Scenario):
    """The best of three of each, on the same pairs."""

    name: ClassVar[str] = "state_options"
    about: ClassVar[str] = (
        "RocksDB's options by kind of state: bytes on disk, and CPU µs to write a pair, to look one"
        " up, to find the ten pairs behind a prefix, and to load a pair in order; each divided by"
        " the options that are chosen"
    )
    rows_default: ClassVar[int] = 200_000

    def run(self, options: Options) -> Iterator[Figures]:
        """Measure ``options.rows`` pairs of each kind."""
        rows = options.rows or self.rows_default
        for kind, pairs_of in _KINDS.items():
            pairs = sorted(pairs_of(random.Random(_SEED), rows))  # noqa: S311
            chosen: dict[str, float] = {}
            for what, changed in _CHANGES.items():
                found = [_measure(pairs, _options(*changed)) for _ in range(_ROUNDS)]
                best = {name: min(one[name] for one in found) for name in found[0]}
                chosen = chosen or best
                ratios = {f"{name}_ratio": round(best[name] / chosen[name], 2) for name in best}
                shown = {name: round(figure, 2) for name, figure in best.items()}
                yield {"kind": kind, "options": what, **shown, **ratios}


def _options(change: Callable[[Table], None] | None, compression: Any) -> Any:
    table = columns.table_options(columns.Memory.of(_CACHE_BYTES))
    if change is not None:
        change(table)
    out = columns.options(None)
    out.set_block_based_table_factory(table)
    if compression is not None:
        out.set_compression_type(compression)
    return out


def _measure(pairs: list[Pair], options: Any) -> dict[str, float]:
    home = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    file = home / "pairs.sst"
    writer = rocksdict.SstFileWriter(options)
    writer.open(str(file))
    begin = time.thread_time()
    for key, value in pairs:
        writer[key] = value
    writer.finish()
    write = time.thread_time() - begin
    size = file.stat().st_size
    database = rocksdict.Rdict(str(home / "state"), options)
    try:
        database.ingest_external_file([str(file)])
        keys = [key for key, _ in random.Random(_SEED).choices(pairs, k=_GETS)]  # noqa: S311
        sought = [sorted(keys[i : i + _GETS_PER_CALL]) for i in range(0, _GETS, _GETS_PER_CALL)]
        begin = time.thread_time()
        for some in sought:
            database.get(some)
        get = time.thread_time() - begin
        begin = time.thread_time()
        for key in keys[:_SCANS]:
            iterator = database.iter()
            iterator.seek(key[:9])
            for _ in range(_SCANNED):
                if iterator.valid():
                    iterator.key()
                    iterator.next()
        scan = time.thread_time() - begin
        begin = time.thread_time()
        loaded = sum(1 for _ in database.items())
        load = time.thread_time() - begin
        assert loaded == len(pairs), "each key is written once"
    finally:
        database.close()
        shutil.rmtree(home)
    return {
        "bytes": size / len(pairs),
        "write_us": write / len(pairs) * 1e6,
        "get_us": get / _GETS * 1e6,
        "scan_us": scan / _SCANS * 1e6,
        "load_us": load / len(pairs) * 1e6,
    }


def _group(key: bytes) -> bytes:
    """Return a key with a byte before it, as key groups are."""
    return bytes((sum(key) & 127,)) + key


def _row(rng: random.Random, number: int) -> bytes:
    words = " ".join(rng.choices(_WORDS, k=6))
    return struct.pack(">qi", number, rng.randrange(1000)) + f"{words} note {number}".encode()


def _source(rng: random.Random, rows: int) -> Iterator[Pair]:
    """Yield rows of a table by its key."""
    for i in range(rows):
        yield _group(struct.pack(">Q", i)), _row(rng, i)


def _join(rng: random.Random, rows: int) -> Iterator[Pair]:
    """Yield rows of one side of a join, ten for a key, and their weights."""
    for i in range(rows):
        yield _group(struct.pack(">Q", i % (rows // 10 + 1))) + _row(rng, i), b"\x01"


def _reduce(rng: random.Random, rows: int) -> Iterator[Pair]:
    """Yield groups, each with two sums."""
    for i in range(rows):
        sums = struct.pack(">qq", rng.randrange(1000), rng.randrange(1_000_000))
        yield _group(b"customer-%06d" % i), sums


def _window(rng: random.Random, rows: int) -> Iterator[Pair]:
    """Yield rows in order, a hundred for a partition, and their weights."""
    for i in range(rows):
        partition = _group(struct.pack(">Q", i % (rows // 100 + 1)))
        yield partition + struct.pack(">q", rng.randrange(1_000_000)) + _row(rng, i)[:36], b"\x01"


_KINDS: Final[dict[str, Callable[[random.Random, int], Iterator[Pair]]]] = {
    "source": _source,
    "join": _join,
    "reduce": _reduce,
    "window": _window,
}
