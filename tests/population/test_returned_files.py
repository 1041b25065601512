"""Files of tasks that come back as blocks: cut, mixed with rows, passed on, and put together."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from headrace.errors import BugError, SparkUnavailable
from headrace.population import edges, returned_files
from headrace.population.returned_files import PORT, TaskFiles
from headrace.population.segments import PLAIN, Exit, Spec
from headrace.population.staging import Staging


def spec_at(path: Path) -> Spec:
    """Return a spec of which only the staging directory counts."""
    made = object.__new__(Spec)
    object.__setattr__(made, "staging", Staging(path))
    return made


def task(path: Path, parts: int) -> TaskFiles:
    return TaskFiles(spec_at(path), Exit(PLAIN, parts=parts))


def blocks(batches: list[pa.RecordBatch]) -> list[bytes]:
    return [
        block
        for batch in batches
        for port, block in zip(
            batch.column("port").to_pylist(), batch.column("block").to_pylist(), strict=True
        )
        if port == PORT
    ]


@pytest.fixture
def files(tmp_path, monkeypatch) -> dict[str, bytes]:
    """Write the files of a task, of up to seven blocks; return their contents."""
    monkeypatch.setattr(edges, "BLOCK_BYTES", 100)
    made = Staging(tmp_path / "task")
    made.make()
    (made.path / "parts").mkdir()
    rng = random.Random(7)
    found = {
        f"{folder}/{number}.k1.sst": rng.randbytes(size)
        for folder in ("state", "rows", "parts")
        for number, size in enumerate((0, 1, 99, 100, 101, 700))
    }
    for name, data in found.items():
        (made.path / name).write_bytes(data)
    (made.path / "progress" / "7").write_text("1")
    (made.path / "state" / ".draft").write_text("a draft")
    return found


def test_files_arrive_as_they_were(tmp_path, files):
    sent = list(task(tmp_path / "task", 5).own())
    assert {part for batch in sent for part in batch.column("part").to_pylist()} <= set(range(5))
    assert not list((tmp_path / "task").glob("*/[0-9]*.sst")), "they are sent once"
    # A task of the next stage passes them on, between its rows.
    row = pa.RecordBatch.from_arrays([[3], [0], [1], [b"rows"]], schema=edges.ARROW_SCHEMA)
    mixed = pa.Table.from_batches([row, *sent, row]).combine_chunks().to_batches()
    (tmp_path / "above").mkdir()
    above = task(tmp_path / "above", 3)
    rows = [row for batch in above.apart(mixed) for row in batch.column("block").to_pylist()]
    assert rows == [b"rows", b"rows"]
    passed = list(above.passed())
    assert {part for batch in passed for part in batch.column("part").to_pylist()} <= set(range(3))
    arrived = blocks(passed)
    random.Random(1).shuffle(arrived)
    builder = Staging(tmp_path / "builder")
    builder.make()
    returned_files.receive([*arrived, *arrived[:9]], builder)  # a repeated task
    for name, data in files.items():
        assert (builder.path / name).read_bytes() == data
    assert len(list(builder.path.glob("*/*"))) == len(files)


def test_one_whole_version_of_a_repeated_task_is_taken(tmp_path, files):
    """The bytes of a repeated file may differ, where its contents do not."""
    name = "state/5.k1.sst"
    versions = []
    for fill in (b"a", b"b"):
        path = tmp_path / "task" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(fill * 700)
        versions.append(
            [b for b in blocks(list(task(tmp_path / "task", 1).own())) if name.encode() in b]
        )
    first, second = versions
    for mixed in (first[:3] + second, second + first[:3], [*first[:3], *second, *first[3:]]):
        builder = Staging(tmp_path / "builder")
        builder.make()
        returned_files.receive(mixed, builder)
        assert (builder.path / name).read_bytes() in (b"a" * 700, b"b" * 700)
        assert len(list((builder.path / "state").iterdir())) == 1


def test_a_missing_part_and_a_wrong_name_are_noticed(tmp_path, files):
    arrived = blocks(list(task(tmp_path / "task", 1).own()))
    builder = Staging(tmp_path / "builder")
    builder.make()
    for number, block in enumerate(arrived):
        some = arrived[:number] + arrived[number + 1 :]
        name = block.partition(b'","at"')[0]
        if any(other.startswith(name) for other in some):
            with pytest.raises(SparkUnavailable, match="is missing"):
                returned_files.receive(some, builder)
    digest = "0" * 64
    for name in ("../x", "state/../../x", "/etc/x", "job.json", "state/.x"):
        wrong = msgspec.json.encode({"name": name, "digest": digest, "at": 0, "total": 1})
        with pytest.raises(BugError, match="has returned a file"):
            returned_files.receive([wrong + b"\nx"], builder)
