"""Opening of a state database: a damaged one is set aside."""

from __future__ import annotations

import pytest

from headrace.errors import OtherFormat, StateDamaged
from headrace.state.opening import open_database

BYTES = 64 << 20


def nothing(database) -> None:
    """Read nothing of ``database``."""


def test_a_sound_database_is_opened_and_read_once(tmp_path):
    read = []
    database, damage = open_database(tmp_path / "state", BYTES, read.append)
    database.close()
    assert (read, damage) == ([database], None)


@pytest.mark.parametrize("kind", [StateDamaged, OtherFormat])
def test_a_database_that_cannot_be_read_is_set_aside(tmp_path, kind):
    path = tmp_path / "state"
    first, _ = open_database(path, BYTES, nothing)
    first.close()
    before = sorted(f.name for f in path.iterdir() if f.suffix == ".sst" or f.name == "CURRENT")
    errors = [kind("a record is cut")]

    def read(_) -> None:
        if errors:
            raise errors.pop()

    database, damage = open_database(path, BYTES, read)
    database.close()
    assert type(damage) is kind
    aside = path.with_name("state.damaged-1")
    assert set(before) <= {f.name for f in aside.iterdir()}


def test_a_damaged_file_is_found(tmp_path):
    path = tmp_path / "state"
    open_database(path, BYTES, nothing)[0].close()
    (path / "CURRENT").write_bytes(b"noise\n")
    database, damage = open_database(path, BYTES, nothing)
    database.close()
    assert isinstance(damage, StateDamaged)
    assert path.with_name("state.damaged-1").is_dir()


def test_damage_of_the_new_database_is_not_hidden(tmp_path):
    def read(_) -> None:
        raise StateDamaged("always")

    with pytest.raises(StateDamaged):
        open_database(tmp_path / "state", BYTES, read)
    # It was closed: another process, or a later try, can open it.
    open_database(tmp_path / "state", BYTES, nothing)[0].close()
