"""The page about replay bundles: its commands are run, in order."""

import contextlib
import os
import re
import shlex
import signal
import subprocess

import pytest

from tests.outside import pages
from tests.outside.following import Follower, emptied
from tests.replay.bundles import HEADRACE, everything, writing

pytestmark = pytest.mark.shared_engine


WRITE = "INSERT INTO parcels VALUES (%(n)s, 'west', 1, '555 ' || %(n)s)"


def plain(text: str) -> str:
    """Return lines without what differs each time: numbers, and the plurals that go with them."""
    evened = re.sub(r"[\d.:+T-]*\d[\d.:+T-]*", "#", text.strip())
    return re.sub(r"# (batch|state)(e?s)?\b", r"# \1", evened)


def test_the_commands_of_the_page(engine, tmp_path):
    where = ("--source", engine.source, "--data-dir", str(engine.data_dir))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PG")} | engine.env
    ended, count = contextlib.ExitStack(), 0

    def run(typed, _):
        nonlocal count
        count += 1
        words = shlex.split(typed.words)[1:]
        more = () if words[0] == "replay" else where
        command = (*HEADRACE, *words, *more)
        if words[0] == "record":
            process = subprocess.Popen(
                command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
            )
            ended.callback(process.wait)
            ended.callback(process.send_signal, signal.SIGINT)
            assert "recording" in process.stderr.readline()
            return
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if typed.answer:
            shown = "\n".join(typed.answer)
            assert plain(done.stdout) == plain(shown)

    with emptied(engine.dsn) as conn, ended:
        follower = Follower(conn, engine.source, run=run)
        [sql, *rest] = [b for b in pages.blocks(pages.page_of("replay")) if b.kind != "none"]
        follower.take(sql)
        with writing(engine.source, WRITE):
            for block in rest:
                follower.take(block)
        follower.end()
    assert count == 6
    for name in ("rows", "masked", "bundle", "past"):
        assert b"555 " not in everything(tmp_path / f"{name}.zip"), "no view reads the column"
