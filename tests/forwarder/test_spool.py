"""Messages of a large transaction on disk."""

from __future__ import annotations

import os

import pytest

from headrace.forwarder.spool import Spool


def nameless(folder) -> bool:
    try:
        os.close(os.open(folder, os.O_RDWR | os.O_TMPFILE))
    except (AttributeError, OSError):
        return False
    return True


def test_messages_come_as_they_went(tmp_path):
    messages = [b"%d" % n * (n % 50) for n in range(1000)]
    spool = Spool(tmp_path)
    spool.write(messages[:300])
    spool.write(messages[300:])
    for _ in range(2):
        chunks = [*spool.read(1000)]
        assert len(chunks) > 10
        assert [message for chunk in chunks for message in chunk] == messages
    spool.close()


def test_who_is_killed_leaves_no_file(tmp_path, monkeypatch):
    """The file never has a name, so that nothing must remove it."""
    if not nameless(tmp_path):
        pytest.skip("this file system makes no files without a name")

    def killed(*_, **__) -> None:
        raise AssertionError("killed before this")

    for name in ("unlink", "remove"):
        monkeypatch.setattr(os, name, killed)
    spool = Spool(tmp_path / "spool")
    spool.write([b"x"])
    assert [*(tmp_path / "spool").iterdir()] == []
    spool.close()
