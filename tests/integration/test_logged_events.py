"""Table ``headrace.events`` and ``headrace logs``: the log of all processes, for SQL and a shell."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading

import psycopg
import pytest

from headrace.event_files import EventFile, EventTail
from headrace.postgres import connect as connections
from headrace.server.cli import main
from headrace.sql import event_rows, install
from tests.security.roles import connect, role
from tests.waiting import PATIENCE_S, wait_until

TABLES = "CREATE TABLE t (id int PRIMARY KEY, x int)"
LEFT, JOINED = "view left its commit group", "view joined its commit group"


def events_of(conn: psycopg.Connection, view: str) -> list[tuple[str, str, str | None]]:
    return conn.execute(
        "SELECT level, event, fields ->> 'state' FROM headrace.events WHERE view = %s ORDER BY id",
        (view,),
    ).fetchall()


@pytest.mark.shared_engine
def test_the_life_of_a_view(source, commander):
    commander.execute("CALL headrace.create_view('life', 'SELECT id, x FROM t')")
    commander.execute("CALL headrace.pause_view('life')")
    commander.execute("CALL headrace.resume_view('life')")
    wait_until(lambda: ("info", JOINED, None) in events_of(source, "public.life"), "it is back")
    commander.execute("CALL headrace.drop_view('life')")
    wait_until(lambda: ("info", "view dropped", None) in events_of(source, "public.life"), "gone")
    found = events_of(source, "public.life")
    assert [event for _, event, _ in found[:3]] == ["population", "view adopted", "view populated"]
    assert ("info", LEFT, "paused") in found
    assert len(found) == len(set(found)), "each event is there once"


@pytest.mark.shared_engine
def test_events_are_rows_of_a_table(source, commander):
    commander.execute("CALL headrace.create_view('rel', 'SELECT id FROM t')")
    commander.execute("CALL headrace.pause_view('rel')")
    wait_until(lambda: ("info", LEFT, "paused") in events_of(source, "public.rel"), "recorded")
    for conn in (source, commander):
        conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        [row] = conn.execute(
            "SELECT v.name, e.process, e.at <= now() + interval '1 minute', e.pid > 1,"
            "       count(*) OVER () FROM headrace.list_views() v"
            "  JOIN headrace.events e ON e.view = v.name AND e.fields ->> 'state' = v.status"
            " WHERE v.name = 'public.rel' ORDER BY e.at DESC LIMIT 1"
        ).fetchall()
        conn.execute("COMMIT")
        assert row == ("public.rel", "worker", True, True, 1)


@pytest.mark.shared_engine
def test_a_role_sees_the_events_of_its_views(source, engine):
    with role(source, "one") as one, role(source, "two") as two:
        source.execute(f"GRANT SELECT ON t TO {one}, {two}")
        with connect(engine.source, one) as first, connect(engine.source, two) as second:
            try:
                for conn, name in ((first, "a"), (second, "b")):
                    conn.execute(f"CALL headrace.create_view('{name}', 'SELECT id FROM public.t')")
                    conn.execute(f"CALL headrace.pause_view('{name}')")
                for name in (f"{one}.a", f"{two}.b"):
                    wait_until(
                        lambda name=name: ("info", LEFT, "paused") in events_of(source, name),
                        "recorded",
                    )
                # The former owner of a dropped view still sees its events.
                first.execute("CALL headrace.drop_view('a')")
                wait_until(
                    lambda: ("info", "view dropped", None) in events_of(source, f"{one}.a"), "gone"
                )
                for conn, view in ((first, f"{one}.a"), (second, f"{two}.b")):
                    seen = conn.execute("SELECT DISTINCT view FROM headrace.events").fetchall()
                    assert seen == [(view,)]
                    assert events_of(conn, view) == events_of(source, view)
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        conn.execute("DELETE FROM headrace.events")
                # Events of no view are for members of the engine's role.
                [(count,)] = source.execute(
                    "SELECT count(*) FROM headrace.events WHERE view IS NULL"
                ).fetchall()
                assert count > 0
            finally:
                source.execute(f"CALL headrace.drop_view('{one}.a', true)")
                source.execute(f"CALL headrace.drop_view('{two}.b', true)")


def test_kills_lose_no_event_and_repeat_none(engine, source, commander):
    commander.execute("CALL headrace.create_view('v', 'SELECT id FROM t')")
    text = "SELECT pid FROM headrace.workers() WHERE worker = 'main'"
    [(pid,)] = source.execute(text).fetchall()
    os.kill(pid, signal.SIGKILL)
    ended = "SELECT count(*) FROM headrace.events WHERE event = 'child ended' AND level = 'warning'"
    wait_until(lambda: source.execute(ended).fetchone() == (1,), "the commander reports it")
    engine.kill9()
    # While nothing runs, the shell command shows the same.
    folder = engine.data_dir / "events"
    EventFile(folder, "worker").append({"event": "late", "level": "info", "process": "worker"})
    engine.start()
    wait_until(
        lambda: source.execute("SELECT 1 FROM headrace.events WHERE event = 'late'").fetchone(),
        "events of the time without a commander are copied later",
    )
    for statement in (ended, ended.replace("child ended", "late").replace("warning", "info")):
        assert source.execute(statement).fetchone() == (1,)
    tail = EventTail(folder)
    written = {(e.process, e.at, e.seq) for e in tail.read(100_000)}
    wait_until(
        lambda: (
            written
            <= set(source.execute("SELECT process, at, seq FROM headrace.events").fetchall())
        ),
        "all of them",
    )


def test_any_event_can_be_stored(database, tmp_path):
    file = EventFile(tmp_path, "worker")
    values = [
        "".join(hashlib.sha256(bytes([n])).hexdigest() for n in range(125)),
        "nul\0",
        "half \ud800 pair",
        1 << 70,
        [{"a\0": "\0"}],
        float("inf"),
        1e308,
        b"\0",
        None,
    ]
    for name in ("value", "view", "view_id", "pid", "assertion"):
        for value in values:
            file.append({"event": "e", "level": "info", "process": "worker"} | {name: value})
    found = EventTail(tmp_path).read(1_000)
    assert len(found) == 5 * len(values)

    async def put() -> None:
        async with await connections.async_session(database, name="test") as conn:
            await event_rows.put(conn, found)
            await event_rows.put(conn, found[3:])
            assert set(await event_rows.newest(conn)) == {"worker"}

    with psycopg.connect(database, autocommit=True) as conn:
        install.install(conn)
        asyncio.run(put())
        stored = conn.execute("SELECT at, seq FROM headrace.events ORDER BY id").fetchall()
    assert stored == [(event.at, event.seq) for event in found]


def test_the_table_is_bounded_and_a_noisy_view_takes_no_place_of_another(database, monkeypatch):
    for name, limit in (("_OF_VIEW", 3), ("_OF_NONE", 5), ("_ALL", 12)):
        monkeypatch.setattr(event_rows, name, limit)

    async def forget() -> None:
        async with await connections.async_session(database, name="test") as conn:
            await event_rows.forget(conn)

    with psycopg.connect(database, autocommit=True) as conn:
        install.install(conn)
        add = (
            "INSERT INTO headrace.events (at, level, event, view, process, pid, fields, seq)"
            " SELECT now() - %s::interval, 'info', 'e', %s, 'p', 1, '{}', s.s"
            "   FROM generate_series(%s::int, %s) s"
        )
        conn.execute(add, ("31 days", "old", 1, 1))
        conn.execute(add, ("1 day", "quiet", 2, 3))
        conn.execute(add, ("0", "noisy", 4, 50))
        conn.execute(add, ("0", None, 51, 90))
        asyncio.run(forget())
        left = "SELECT view, array_agg(seq ORDER BY seq) FROM headrace.events GROUP BY 1 ORDER BY 1"
        assert conn.execute(left).fetchall() == [
            ("noisy", [48, 49, 50]),
            ("quiet", [2, 3]),
            (None, [86, 87, 88, 89, 90]),
        ]
        conn.execute(add, ("0", "x", 91, 93))
        asyncio.run(forget())
        assert conn.execute("SELECT min(seq), count(*) FROM headrace.events").fetchone() == (3, 12)


def test_logs_of_a_server_that_does_not_run(tmp_path, capsys):
    folder = tmp_path / "events"
    folder.mkdir()
    one, two = EventFile(folder, "commander"), EventFile(folder, "worker")
    for n, file in enumerate((one, two, one, two, two)):
        level = "error" if n == 3 else "info"
        file.append({"event": f"e{n}", "level": level, "process": "p", "pid": 1, "view": f"s.v{n}"})

    def shown(*words: str) -> list[str]:
        assert main(["logs", "--data-dir", str(tmp_path), *words]) == 0
        return capsys.readouterr().out.splitlines()

    assert [line.split("] ")[1].split()[0] for line in shown()] == ["e0", "e1", "e2", "e3", "e4"]
    assert [json.loads(line)["event"] for line in shown("--json", "-n", "2")] == ["e3", "e4"]
    assert [json.loads(line)["view"] for line in shown("--json", "--view", "v1")] == ["s.v1"]
    assert [json.loads(line)["view"] for line in shown("--json", "--view", "s.v2")] == ["s.v2"]
    [line] = shown("--level", "warning")
    assert "[error" in line
    assert main(["logs", "--data-dir", str(tmp_path / "none")]) == 2
    assert "--data-dir" in capsys.readouterr().err


def test_logs_follow(tmp_path):
    folder = tmp_path / "events"
    folder.mkdir()
    file = EventFile(folder, "worker")
    file.append({"event": "first", "level": "info", "process": "worker"})
    main_end, other_end = pty.openpty()
    command = [sys.executable, "-m", "headrace.server.cli", "logs", "-f"]
    shown = subprocess.Popen(
        command, stdout=other_end, env=os.environ | {"HEADRACE_DATA_DIR": str(tmp_path)}
    )
    said = b""
    try:
        for word in (b"first", b"second"):
            while word not in said:
                assert select.select([main_end], [], [], PATIENCE_S)[0], said
                said += os.read(main_end, 65_536)
            file.append({"event": "second", "level": "warning", "process": "worker"})
    finally:
        shown.send_signal(signal.SIGINT)
        assert shown.wait(PATIENCE_S) == 0
        os.close(main_end)
        os.close(other_end)


@pytest.mark.shared_engine
def test_a_flood_of_events_does_not_hold_up_a_call(engine, source, commander):
    commander.execute("CALL headrace.create_view('v', 'SELECT id FROM t')")
    file = EventFile(engine.data_dir / "events", "flood")
    line = {"event": "noise", "level": "info", "process": "flood", "view": "public.v"}
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            file.append(line)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        noise = "SELECT count(*) FROM headrace.events WHERE event = 'noise'"
        wait_until(lambda: source.execute(noise).fetchone()[0] >= 500, "some are copied")
        source.execute("INSERT INTO t VALUES (1)")
        commander.execute("CALL headrace.wait_for('v')")
        assert source.execute("SELECT id FROM v").fetchall() == [(1,)]
    finally:
        stop.set()
        writing.join()
        file.close()
        (engine.data_dir / "events" / "flood.jsonl").unlink()
        (engine.data_dir / "events" / "flood.1.jsonl").unlink(missing_ok=True)
