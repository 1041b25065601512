"""The log of a process, and its manual page."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import limits

ROOT = Path(__file__).resolve().parent.parent
MANUAL = ROOT / "docs" / "manual" / "events.md"
BEGIN = """
import logging, threading, warnings, structlog
from headrace import events
log = structlog.get_logger()
"""
PROGRAM = f"""{BEGIN}
events.configure(process="worker")
for n in range(3):
    log.warning("something happened", n=n)
print("alive")
"""


def run(stderr, program: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        check=False,
    )


def told(program: str) -> list[dict[str, object]]:
    """Return the events that ``program`` logs; every line is JSON."""
    done = run(subprocess.PIPE, BEGIN + program)
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_a_line_for_each_event():
    done = run(subprocess.PIPE)
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert '"process": "worker"' in lines[2]
    assert '"n": 2' in lines[2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_nobody_dies_of_a_log_that_cannot_be_written():  # H36
    with Path("/dev/full").open("w") as full:
        done = run(full)
    assert (done.returncode, done.stdout) == (0, "alive\n")


def test_text_for_a_terminal_and_where_it_is_asked_for():
    master, slave = os.openpty()
    try:
        assert run(slave).returncode == 0
        os.set_blocking(master, False)
        seen = os.read(master, 65_536).decode()
    finally:
        os.close(slave)
        os.close(master)
    assert "{" not in seen
    assert "something happened" in seen
    plain = run(subprocess.PIPE, PROGRAM.replace("process=", "shape='text', process="))
    assert re.search(
        r"^\d\d:\d\d:\d\d \[warning *\] something happened +n=2 +process=worker$",
        plain.stderr,
        re.MULTILINE,
    ), plain.stderr
    asked = run(subprocess.PIPE, PROGRAM.replace("process=", "shape='json', process="))
    assert json.loads(asked.stderr.splitlines()[0])["process"] == "worker"


def test_a_view_is_its_name_beside_its_number():
    first, unknown, text, many, unit, renamed, gone = told("""
events.configure()
events.know_view(7, '"public"."revenue"')
log.info("a", view=7)
log.info("a", view=8)
log.info("a", view='"public"."revenue"')
log.info("a", views=[7, 8])
log.info("a", unit=-3)
events.know_view(7, '"Odd".x')
log.info("a", view=7)
events.forget_view(7)
log.info("a", view=7)
""")
    assert (first["view"], first["view_id"]) == ("public.revenue", 7)
    assert (unknown["view"], unknown["view_id"]) == ("number 8", 8)
    assert (text["view"], text["view_id"]) == ("public.revenue", 7)
    assert many["views"] == ["public.revenue", "number 8"]
    assert unit["subplan"] == -3
    assert "view" not in unit
    assert (renamed["view"], gone["view"]) == ('"Odd".x', "number 7")


def test_threads_say_whose_they_are():
    [event] = told("""
events.configure(process="worker", pid=1)
made = threading.Thread(target=lambda: log.info("a"))
made.start(); made.join()
""")
    assert (event["process"], event["pid"]) == ("worker", 1)


def test_libraries_and_bugs_are_events_of_the_same_stream():
    events = told("""
import asyncio
events.configure("debug", process="builder")
logging.getLogger("py4j").warning("gateway %s", "gone")
logging.getLogger("py4j").debug("secret")
warnings.warn("old", DeprecationWarning)
async def main():
    asyncio.get_running_loop().call_exception_handler({"message": "lost task"})
asyncio.run(main())
made = threading.Thread(target=lambda: 1 / 0, name="t1")
made.start(); made.join()
raise KeyError("x")
""")
    by = {(e["event"], e.get("logger")): e for e in events}
    assert len(by) == len(events) - 1, "two by bugs"
    assert by["library", "py4j"]["message"] == "gateway gone"
    assert by["library", "py4j"]["level"] == "warning"
    assert "old" in by["library", "py.warnings"]["message"]
    assert by["library", "asyncio"]["message"] == "lost task"
    assert by["library", "asyncio"]["level"] == "error"
    bugs = [e for e in events if e["event"] == "ended by a bug"]
    assert [e["thread"] for e in bugs] == ["t1", "MainThread"]
    assert "ZeroDivisionError" in str(bugs[0]["exception"])
    assert "KeyError" in str(bugs[1]["exception"])
    assert {e["process"] for e in events} == {"builder"}
    assert "secret" not in str(events)


def test_nobody_writes_on_our_terminal():
    """Messages may contain text that comes from users."""
    done = run(
        subprocess.PIPE,
        BEGIN + "events.configure(shape='text')\n"
        r"log.error('a', reason='x\nforged \x1b[2J\x9b', list=['\x1b[1m'])" + "\n"
        "try:\n    raise ValueError('\\x1b[0m')\n"
        "except ValueError:\n    log.exception('b')\n",
    )
    assert "\x1b" not in done.stderr
    assert "\x9b" not in done.stderr
    assert "x forged ^[[2J<9b>" in done.stderr
    assert "ValueError" in done.stderr


# --- the manual


@functools.cache
def logged() -> list[tuple[str, str, str]]:
    """Return event, level and place of each call that logs."""
    return list(calls())


def calls() -> Iterator[tuple[str, str, str]]:
    for path in sorted((ROOT / "headrace").rglob("*.py")):
        where = path.relative_to(ROOT).as_posix()
        for node in ast.walk(limits.tree(path)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            level, value = node.func.attr, node.func.value
            of = str(getattr(value, "attr", getattr(value, "id", "")))
            noise = level == "tell" and (of.endswith("noise") or where.endswith("admission.py"))
            if not noise and not (of == "_log" and level not in ("bind",)):
                continue
            first = node.args[0]
            if not isinstance(first, ast.Constant):
                assert where.endswith("admission.py"), f"{where}: an event is a literal"
                continue
            yield first.value, {"exception": "error", "tell": "info"}.get(level, level), where


def documented() -> list[tuple[str, str, str, str]]:
    found = re.findall(
        r"^\| `([^`]+)` \| (debug|info|warning|error) \| (.+) \| (.+) \|$",
        MANUAL.read_text(),
        re.MULTILINE,
    )
    return [(a, b, c, d) for a, b, c, d in found]


def test_each_event_stands_in_the_manual_and_none_else():
    rows = documented()
    names = [name for name, *_ in rows]
    assert len(names) == len(set(names))
    levels: dict[str, set[str]] = {}
    for event, level, _ in logged():
        levels.setdefault(event, set()).add(level)
    assert len(levels) > 100
    assert sorted(levels) == sorted(names)
    text = {name: told for name, _, told, _ in rows}
    for name, level, *_ in rows:
        assert level in levels[name], name
        for other in levels[name] - {level}:
            assert f"*{other}*" in text[name], f"{name} is also logged as {other}"


def test_names_are_lower_case_words():
    for event, _, where in logged():
        words = event.replace("TLS", "").replace("WAL", "").replace("JVM", "")
        assert words == words.lower(), (event, where)
        assert not event.endswith("."), (event, where)
        assert ":" not in event, f"{where}: {event}: what is behind the colon is a field"
