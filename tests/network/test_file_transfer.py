"""File transfer between two ends: files arrive whole or not at all, and only in their folder."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import OutOfReach
from headrace.network import file_transfer
from headrace.network.ends import End, Near, Relayed
from headrace.network.link import FlightLink
from headrace.network.port import FlightPort, FlightSession
from headrace.process import keys
from tests.network.relay import dialed


def _serve(session: FlightSession) -> None:
    while True:
        session.receive()


@pytest.fixture(params=["near", "far"])
def linked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[FlightLink, Path]]:
    """Yield a link and the folder of the other end's files."""
    files = tmp_path / "files"
    near, relayed = Near(tmp_path / "w1.flight"), Relayed(tmp_path / "w1.sock")
    far = request.param == "far"
    with contextlib.ExitStack() as stack:
        port = FlightPort(relayed if far else near, _serve, lambda _: None, files)
        stack.callback(port.shutdown)
        end: End = stack.enter_context(dialed(relayed, tmp_path)) if far else near
        made = FlightLink("w1", end, lambda: None)
        stack.callback(made.close)
        yield made, files


@pytest.mark.parametrize("size", [0, 1, 1 << 18, (1 << 18) + 1, 3_000_000])
def test_there_and_back(linked: tuple[FlightLink, Path], tmp_path: Path, size: int) -> None:
    made, files = linked
    data = bytes(itertools.islice(itertools.cycle(range(251)), size))
    (tmp_path / "given").write_bytes(data)
    made.send_file(tmp_path / "given", "1.sst")
    assert (files / "1.sst").read_bytes() == data
    made.fetch_file("1.sst", tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == data
    assert list(files.iterdir()) == [], "what was fetched is there no longer"


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "", ".x", "a/b", "A", "x" * 200])
def test_no_other_files(linked: tuple[FlightLink, Path], tmp_path: Path, name: str) -> None:
    made, files = linked
    (tmp_path / "given").write_bytes(b"1")
    with pytest.raises(OutOfReach):
        made.send_file(tmp_path / "given", name)
    with pytest.raises(OutOfReach):
        made.fetch_file(name, tmp_path / "got")
    assert not files.exists() or list(files.iterdir()) == []
    assert not (tmp_path / "got").exists()


def test_there_is_none(linked: tuple[FlightLink, Path], tmp_path: Path) -> None:
    with pytest.raises(OutOfReach):
        linked[0].fetch_file("2.sst", tmp_path / "got")
    assert not list(tmp_path.glob("*got*"))


def test_what_was_cut_off_is_not_kept(tmp_path: Path) -> None:
    class Chunk:
        data = pa.record_batch([pa.array([b"some"], pa.binary())], ["piece"])

    with pytest.raises(pa.ArrowInvalid, match="cut off"):
        file_transfer.write_file([Chunk()], tmp_path / "1.sst")
    assert list(tmp_path.iterdir()) == []


def test_keys_are_made_once_and_nobody_else_reads_them(tmp_path: Path) -> None:
    first = keys.load_or_create(tmp_path / "keys")
    assert keys.load_or_create(tmp_path / "keys") == first
    assert keys.load_or_create(tmp_path / "others") != first
    [file] = (tmp_path / "keys").iterdir()
    assert file.stat().st_mode & 0o077 == 0
