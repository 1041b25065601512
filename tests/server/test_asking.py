"""Questions of functions and of calls in transactions, and how their arguments come."""

from __future__ import annotations

import random
import threading

import psycopg
import pytest

from headrace.sql.questions import Question, SentArguments
from tests.server.test_direct import direct
from tests.waiting import wait_until

CHECK = "CALL headrace.check_view(%s)"
WORDS = """
SELECT k.pid, k.classid::bigint, k.objid::bigint FROM pg_locks k
 WHERE k.locktype = 'advisory' AND k.objsubid = 2"""
PIECES = [
    "a",
    "'",
    '"',
    "\\",
    "\n",
    "\t",
    "ä",
    "€",
    "😀",
    "\x7f",
    "\u2028",
    "%",
    "{}",
    "x" * 60,
    " ",
]


def asked(commander, conn: psycopg.Connection, query: str) -> str:
    """Ask in a transaction; return the query that the builder got."""
    with conn.transaction():
        [(plan,)] = conn.execute(CHECK, (query,)).fetchall()
    assert plan == f"plan of {query}"
    return commander.builder.calls[-1][1]["query"]


def test_arguments_of_any_text_and_length(commander):
    rng = random.Random(20261129)
    with direct(commander) as conn:
        for size in [*range(1, 9), 55, 56, 57, 300, 4_000]:
            query = "".join(rng.choices(PIECES, k=size))
            assert asked(commander, conn, query) == query


def test_in_a_transaction_that_has_written(commander):
    with direct(commander) as conn, conn.transaction(force_rollback=True):
        conn.execute("CREATE TABLE written (id int)")
        conn.execute("SET LOCAL TimeZone = 'Asia/Tokyo'")
        assert conn.execute(CHECK, ("SELECT 1",)).fetchall() == [("plan of SELECT 1",)]
        assert commander.builder.calls[-1][1]["settings"]["TimeZone"] == "Asia/Tokyo"


def test_arguments_that_are_too_large(commander):
    with direct(commander) as conn:
        with pytest.raises(psycopg.errors.ProgramLimitExceeded) as caught, conn.transaction():
            conn.execute(CHECK, ("x" * 70_000,))
        assert "outside of a transaction" in caught.value.diag.message_hint
        assert conn.execute(CHECK, ("x" * 70_000,)).fetchall() == [("plan of " + "x" * 70_000,)]


def test_no_other_role_reads_the_arguments(commander):
    """Any role sees locks; the words in them say nothing."""
    text = "".join(chr(ord("a") + n % 26) for n in range(8_000))
    seen: set[int] = set()
    done = threading.Event()

    def watch() -> None:
        with direct(commander) as conn:
            while not done.is_set():
                seen.update(word for _, _, word in conn.execute(WORDS))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with direct(commander) as conn:
            assert asked(commander, conn, text) == text
    finally:
        done.set()
        watcher.join()
    plain = {int.from_bytes(text[i : i + 4].encode(), "big") for i in range(26)}
    assert len(seen) > 200, "words were seen"
    assert not seen & plain


def test_a_caller_that_goes_away_while_it_sends(commander):
    """A question whose words stop: its command fails, and nothing is begun."""
    with direct(commander) as conn, conn.transaction():
        pose = "SELECT headrace.pose_question('check_view', 400)"
        [(command,)] = conn.execute(pose).fetchall()
        state = (
            "SELECT status, progress->>'received', error->>'C' FROM headrace.commands WHERE id = %s"
        )
        wait_until(
            lambda: conn.execute(state, (command,)).fetchone() == ("running", "0", None),
            "it is taken",
        )
    with direct(commander) as conn:
        wait_until(
            lambda: conn.execute(state, (command,)).fetchone() == ("failed", None, "57014"),
            "it is given up",
        )
    assert not commander.builder.calls


@pytest.mark.parametrize(
    "said",
    [
        b"nonsense",
        b'{"arguments": {"query": "a\\u0000b"}, "settings": {}}',
        b'{"arguments": {"query": "\xff"}, "settings": {}}',
        b'{"arguments": [], "settings": {}}',
        b'{"arguments": {"query": "a", "other": 1}, "settings": {}}',
        b'{"arguments": {"query": "a"}, "settings": {"role": "postgres"}}',
        b'{"arguments": ' + b"[" * 9_000 + b', "settings": {}}',
    ],
)
def test_arguments_that_cannot_be_read(commander, said):
    """The session of a role can send any bytes: only its own command fails."""
    with direct(commander) as conn:
        with conn.transaction():
            sent = (
                "SELECT headrace.send_arguments('check_view', c, %s, NULL), c"
                " FROM headrace.pose_question('check_view', %s) c"
            )
            [(_, command)] = conn.execute(sent, (said, len(said))).fetchall()
            failed = "SELECT failed->>'C' FROM headrace.check_command(%s, NULL)"
            assert conn.execute(failed, (command,)).fetchone() == ("22023",)
        assert not commander.builder.calls
        assert asked(commander, conn, "SELECT 1") == "SELECT 1"


def test_words_that_come_late_twice_or_too_many():
    incoming = SentArguments(Question(1, 2, 3, 4, 10), "check_view", "low")
    for at in (1, 0, 0, 2, 1, 1, 5, 2, 3):
        incoming.add(at, 7)
    assert (incoming.received, incoming.words) == (3, 3)
