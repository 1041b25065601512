"""Bundles from strangers: damaged, of a later version, or no bundles at all."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import msgspec
import pytest

from headrace.errors import UserError
from headrace.kernels.pgoutput import Begin, Commit
from headrace.network.messages import UnitRecord
from headrace.replay.bundle import (
    FORMAT,
    BatchEntry,
    Bundle,
    BundleError,
    BundleManifest,
    BundleWriter,
    StateSize,
    UnitEntry,
    parse_column,
)
from headrace.replay.compare import differences
from headrace.replay.masks import MessageFilter
from tests.replay.bundles import replayed, rewritten

UNIT = UnitEntry(
    UnitRecord(1, {"kind": "PhysicalPlan", "nodes": []}, {}, 0, "owner", {}, "public.v"),
    0,
    2,
    [StateSize("a", 2, 2, 2)],
)


def manifest(**changes: object) -> BundleManifest:
    given = BundleManifest(
        *(FORMAT, "0", 6, 160000, "2026-01-01", True, True, [], "", [UNIT], [], [], {})
    )
    return msgspec.structs.replace(given, **changes)


def made(path: Path) -> Path:
    with path.open("w+b") as file:
        writer = BundleWriter(file)
        writer.put_manifest(manifest())
        writer.put_batches([BatchEntry(1, 1, 2, 3, 1, 3, 3, {})])
        writer.put_events([])
        with writer.frames() as frames:
            frames.put(1, [b"one", b""])
        with writer.states(1, "begin") as states:
            states.state("a")
            states.put([b"k", b"l"], [b"1", b"2"])
        with writer.states(1, "end") as states:
            states.state("a")
            states.put([b"l", b"m"], [None, b""])
        writer.close()
    return path


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return made(tmp_path / "bundle.zip")


def pairs(found) -> dict[str, list]:
    return {
        name: [pair for keys, values in pieces for pair in zip(keys, values, strict=True)]
        for name, pieces in found
    }


def test_what_is_written_is_read(bundle):
    found = Bundle(bundle)
    assert found.manifest == manifest()
    assert list(found.frames()) == [(1, [b"one", b""])]
    assert pairs(found.begin(UNIT)) == {"a": [(b"k", b"1"), (b"l", b"2")]}
    assert pairs(found.end(UNIT)) == {"a": [(b"l", None), (b"m", b"")]}
    assert found.results is None
    # A reader that takes no pairs gets the next state.
    assert [name for name, _ in found.begin(UNIT)] == ["a"]


def test_differences_are_counted(bundle):
    found = Bundle(bundle)

    def counted(actual: dict) -> list:
        states = {name: [(list(values), list(values.values()))] for name, values in actual.items()}
        told = differences(found.begin(UNIT), found.end(UNIT), states)
        return [(d.state, d.missing, d.unexpected, d.changed) for d in told]

    assert counted({"a": {b"k": b"1", b"m": b""}}) == []
    assert counted({"a": {b"k": b"x", b"l": b"2"}, "b": {b"z": b""}}) == [
        ("a", 1, 1, 1),
        ("b", 0, 1, 0),
    ]
    assert counted({}) == [("a", 2, 0, 0)]


def refused(path: Path) -> str:
    """Return why a bundle cannot be read, whole."""

    def read() -> None:
        found = Bundle(path)
        list(found.frames())
        pairs(found.begin(UNIT))
        assert found.results is None
        assert found.batches

    with pytest.raises(BundleError) as caught:
        read()
    return f"{caught.value.message} {caught.value.detail}"


def test_a_bundle_that_is_cut_anywhere_is_refused(bundle, tmp_path):
    data = bundle.read_bytes()
    for size in range(0, len(data), 97):
        (tmp_path / "cut.zip").write_bytes(data[:size])
        assert "not a replay bundle" in refused(tmp_path / "cut.zip")


def test_a_bundle_with_other_bytes_anywhere_is_refused_or_the_same(bundle, tmp_path):
    data = bundle.read_bytes()
    for place in range(0, len(data), 7):
        changed = bytearray(data)
        changed[place] ^= 0x55
        (tmp_path / "other.zip").write_bytes(changed)
        try:
            found = Bundle(tmp_path / "other.zip")
            list(found.frames())
            pairs(found.begin(UNIT))
        except BundleError:
            pass


@pytest.mark.parametrize("name", ["../../etc/x", "/etc/x", "states/x.begin", "states/1.begin.py"])
def test_an_archive_with_another_entry_is_refused(bundle, tmp_path, name):
    with zipfile.ZipFile(bundle, "a") as archive:
        archive.writestr(name, b"x")
    assert "but not a replay bundle" in refused(bundle)
    assert not (tmp_path.parent / "etc").exists()


def test_a_bundle_of_a_later_version_is_refused(bundle, tmp_path):
    later = msgspec.json.encode({"format": FORMAT + 1, "anything": []})
    path = rewritten(bundle, tmp_path / "later.zip", {"manifest.json": later})
    assert "is of a later version" in refused(path)
    said = replayed(path, 2)
    assert "Hint: Install the version" in said
    path = rewritten(bundle, tmp_path / "none.zip", {"manifest.json": b'{"format": 0}'})
    assert "its format is 0" in refused(path)
    states = msgspec.json.encode(manifest(state_format=99))
    path = rewritten(bundle, tmp_path / "states.zip", {"manifest.json": states})
    assert "states of format 99" in replayed(path, 2)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("batches.bin", struct.pack("<QI", 1, 1) + struct.pack("<I", 0xFFFF_FFFF)),
        ("batches.bin", struct.pack("<QI", 1, 0xFFFF_FFFF)),
        ("batches.bin", b"\0" * 5),
        ("states/1.begin", b"S\x01\x00aP" + struct.pack("<IQQ", 1, 1 << 62, 1)),
        ("states/1.begin", b"S\x01\x00aP" + struct.pack("<IQQ", 0xFFFF_FFFF, 1, 1)),
        ("states/1.begin", b"S\x01\x00aP" + struct.pack("<IQQII", 1, 1, 1, 2, 1) + b"ab"),
        ("states/1.begin", b"S\x01\x00bS\x01\x00aE"),
        ("states/1.begin", b"S\x01\x00aES"),
        ("states/1.begin", b"S\x01\x00a"),
        ("states/1.begin", None),
        ("batches.json", b"[{}]"),
        ("results.json", b"\xff"),
        ("manifest.json", b"[]"),
    ],
)
def test_a_length_or_document_that_is_wrong_is_refused(bundle, tmp_path, name, data):
    if name == "results.json":
        with zipfile.ZipFile(bundle, "a") as archive:
            archive.writestr(name, data)
        assert "damaged" in refused(bundle)
        return
    path = rewritten(bundle, tmp_path / "other.zip", {name: data})
    said = refused(path)
    assert "damaged" in said or "not a replay bundle" in said


def test_a_bundle_that_is_too_large_is_neither_written_nor_read(bundle, tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.replay.bundle.BYTES_MAX", 100)
    assert "too large" in refused(bundle)
    with (tmp_path / "other.zip").open("w+b") as file:
        writer = BundleWriter(file)
        writer.put_manifest(manifest())
        with pytest.raises(UserError, match="would have more than"):
            writer.check_size()
        writer.close()


def test_a_mask_names_a_column():
    assert parse_column("a.b.c") == ("a", "b", "c")
    for wrong in ("a.b", "a.b.c.d", "a..c", ""):
        with pytest.raises(UserError):
            parse_column(wrong)


# --- the messages that are kept


def relation(oid: int, name: str, *columns: str) -> bytes:
    out = struct.pack(">cI", b"R", oid) + b"public\0" + name.encode() + b"\0"
    out += struct.pack(">cH", b"d", len(columns))
    for column in columns:
        out += struct.pack(">B", 0) + column.encode() + b"\0" + struct.pack(">Ii", 25, -1)
    return out


def row(kind: bytes, oid: int, *tuples: tuple[bytes, list[bytes | None]]) -> bytes:
    out = kind + struct.pack(">I", oid)
    for tag, values in tuples:
        out += tag + struct.pack(">H", len(values))
        for value in values:
            out += b"n" if value is None else b"t" + struct.pack(">I", len(value)) + value
    return out


def test_only_the_values_that_are_read_are_kept():
    numbers = {"id": 1, "name": 2, "x": 3}
    kept = MessageFilter(
        {7: frozenset((0, 1, 3))},
        lambda found, _: {c.name: numbers[c.name] for c in found.columns if c.name in numbers},
    )
    begin, commit = Begin(5, 0, 9).encode(), Commit(5, 6, 0).encode()
    described = relation(7, "t", "id", "name", "x", "strange")
    other = relation(8, "u", "id")
    sent = [
        *(begin, b"M\x01" + bytes(8) + b"headrace\0" + b"\0\0\0\x01r", described, other),
        row(b"I", 7, (b"N", [b"1", b"hidden", None, b"hidden"])),
        row(b"U", 7, (b"K", [b"1", b"hidden", None, None]), (b"N", [b"2", b"hidden", b"3", b""])),
        row(b"D", 7, (b"O", [b"2", b"hidden", b"3", b"hidden"])),
        row(b"I", 8, (b"N", [b"hidden"])),
        struct.pack(">cIB", b"T", 2, 0) + struct.pack(">II", 8, 7),
        struct.pack(">cIB", b"T", 1, 0) + struct.pack(">I", 8),
        commit,
    ]
    assert kept.filtered(sent) == [
        *(begin, described),
        row(b"I", 7, (b"N", [b"1", None, None, None])),
        row(b"U", 7, (b"K", [b"1", None, None, None]), (b"N", [b"2", None, b"3", None])),
        row(b"D", 7, (b"O", [b"2", None, b"3", None])),
        struct.pack(">cIB", b"T", 1, 0) + struct.pack(">I", 7),
        commit,
    ]
    assert kept.take_changes() == {
        "public.t": {"insert": 1, "update": 1, "delete": 1, "truncate": 1}
    }
