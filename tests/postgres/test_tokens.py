"""The scanner against Postgres' own, whose errors show tokens, their ends and their values."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import psycopg
import pytest

from headrace.postgres.tokens import STRINGS, Token, Unreadable, name, scan, value

PIECES = (
    *("'", "''", '"', '""', "$$", "$a$", "$é$", "$", "$1", "$1x", "E'", "e'", "N'"),
    *("U&'", 'u&"', "u&", "B'", "x'", "\\", "\\'", "\\\\", "\\n", "\\u0041", "é"),
    *("--", "/*", "*/", "*", "/", "\n", "\r", "\t", "\f", " ", " ", "a", "e", "_", "A"),
    *("1", "0", ".", "..", "1_0", "_", "0x1F", "0b", "1e5", "e+", "5e", "x1", "E"),
    *("+", "-", "=", "@", "!", "?", "~", "<", "=>", "::", ":", ":=", ";", ",", "("),
    *("'a'", "E'b'", '"c"', "'\n'", "' -- '\n '", "$b$ $", "-- x\n", "/* ' */"),
    *("{", "#", "`", "[", "%", "\x7f", "\U0001f600", "\u00a0"),
)
PREFIX = "REFRESH "
"""After it Postgres takes one word only; for any other token, its error gives text and place."""
VALUED = frozenset(("plain", "escape", "dollar", "quoted"))
SYNTAX = re.compile(r'syntax error at or near "(.*)"', re.DOTALL)
SCANNER = re.compile("unterminated|trailing junk|zero-length|operator too long|unsafe")


def said(conn: psycopg.Connection, text: str) -> psycopg.Error:
    """Return Postgres' error for the first token of a text."""
    with pytest.raises(psycopg.Error) as caught:
        conn.execute((PREFIX + text).encode())
    return caught.value


def judged(conn: psycopg.Connection, text: str) -> Iterator[tuple[int, int] | str]:
    """Yield the start and end of Postgres' tokens; last its scanner's error, if there is one."""
    at = 0
    while True:
        error = said(conn, text[at:])
        message = error.diag.message_primary or ""
        if message == "syntax error at end of input":
            return
        found = SYNTAX.fullmatch(message)
        if found is None:
            yield message
            return
        start = at + int(error.diag.statement_position or 0) - 1 - len(PREFIX)
        at = start + len(found[1])
        yield start, at


def ours(text: str, *, standard: bool) -> Iterator[Token | None]:
    """Yield the tokens, then None if no more can be read; N is a separate token, as in Postgres."""
    try:
        for token in scan(text, standard_strings=standard):
            if token.kind == "national":
                yield token._replace(end=token.start + 1)
                yield token._replace(start=token.start + 1)
            else:
                yield token
    except Unreadable:
        yield None


def nothing_behind(conn: psycopg.Connection, text: str, start: int, end: int) -> bool:
    """Return whether it is the N of a string that Postgres refuses."""
    refused = isinstance(next(judged(conn, text[end:])), str)
    return refused and text[start : end + 1] in ("n'", "N'")


def check(conn: psycopg.Connection, text: str, *, standard: bool) -> int:
    """Compare both scanners; return the number of tokens."""
    found = list(ours(text, standard=standard))
    count = 0
    for place, want in enumerate(judged(conn, text)):
        here = found[place] if place < len(found) else None
        if isinstance(want, str):
            # A U& string ends only after the next token.
            behind = found[place + 1 :][:1] if here and "uni" in here.kind else []
            refused = here is None or behind == [None]
            old = conn.info.server_version < 160000 and "junk" in want
            assert refused or old or not SCANNER.search(want), (text, want, here)
            return count
        if here is None:
            assert nothing_behind(conn, text, *want), (text, want)
            return count
        assert (here.start, here.end) == want, (text, here)
        count += 1
    assert found[count:] == [], text
    return count


@pytest.fixture(params=[True, False], ids=["standard", "backslashes"])
def judge(database, request):
    with psycopg.connect(database, autocommit=True, prepare_threshold=None) as conn:
        setting = "on" if request.param else "off"
        conn.execute(f"SET standard_conforming_strings = {setting}")
        conn.execute("SET backslash_quote = on; SET escape_string_warning = off")
        conn.execute("SET lc_messages = 'C'")
        yield conn, request.param


def texts(count: int) -> Iterator[str]:
    pick = random.Random(11)
    for _ in range(count):
        yield "".join(pick.choices(PIECES, k=pick.randrange(1, 12)))


def test_tokens_are_those_of_postgres(judge):
    conn, standard = judge
    assert sum(check(conn, text, standard=standard) for text in texts(600)) > 600


@pytest.mark.slow
def test_tokens_of_many_texts_are_those_of_postgres(judge):
    conn, standard = judge
    for text in texts(20_000):
        check(conn, text, standard=standard)


@pytest.mark.parametrize(
    "text",
    [
        *("1..2", "1...5", "1.5.3", ".5x", "1.e5", "1._5", "0x1.5", "0b12", "1_0$a$ $a$"),
        *("1e5$$a$$", "1.e5$$a$$", "1e+5$$a$$", "1_0.5$$a$$", "1_0e+5$$a$$", "1_0.$$a$$", "1e+5_0$$a$$"),
        *("a@-b", "+-+1", "=-1", "@+-/*x*/-", "-" * 70, "+" * 70, "*" * 63, "*" * 64),
        *("@" + "-+" * 31, "+" * 63 + "=", "+--x\n-", "a/*/*/*/**/*/*/*/b", "/*/", "//**/"),
        *("x$y$z$", "1$$a$$", "$a$ $b$a$", "$a$ $$a$", "$a$ $aa$a$", "$a b", "$é$\u00a0$é$"),
        *("E'\\'b'", "e'\\''", "'\\''", "E'a'\n'\\''", "B'0''1'", "x'1'\n'2'", "N'a'\n'b'"),
        *("'a' 'b'", "'a' -- '\n'b'", "'a'\n--\n--\n'b'", "'a'\n--'b'", "'a'\n/**/'b'"),
        *('""', '""""', '"a""', 'u&"a"""', 'u&""', "u&'a''b'", "u & 'a'", "u&\n'a'"),
        *("$1$2", "$$", "a.1", "a..b", ":::=", "'", '"', "$a$", "/*", "E'\\", ""),
    ],
)  # fmt: skip
def test_hard_texts(judge, text):
    conn, standard = judge
    check(conn, text, standard=standard)
    check(conn, f" {text} a '", standard=standard)


def test_values_are_those_of_postgres(judge):
    conn, standard = judge
    compared = 0
    for text in texts(2000):
        for token in ours(text, standard=standard):
            if token is None or token.kind not in VALUED:
                continue
            piece = text[token.start : token.end]
            try:
                mine = name(piece) if token.kind == "quoted" else value(text, token)
            except Unreadable:
                continue
            if token.kind == "quoted":
                shown = conn.execute(f"SELECT 1 AS {piece}".encode()).description
                assert shown[0].name == mine, text
            else:
                assert conn.execute(f"SELECT {piece}".encode()).fetchone() == (mine,)
            compared += 1
    assert compared > 300


def test_a_run_of_operators_is_not_read_piece_by_piece():
    """The run is longer than any real one; the scanner must not examine each sign again."""
    assert len([*scan("+-" * 299 + "1")]) == 599
    for run in ("+-" * 32_000, "@-" * 32_000, "-/" * 301 + "1"):
        with pytest.raises(Unreadable):
            next(scan(run))


def test_steps_are_counted():
    for text in ("a " * 99, "/*" * 49 + "*/" * 49, "+" * 99, "/**/" * 33, "=" + "-+" * 49):
        assert len(list(scan(text, steps=101))) <= 99
        with pytest.raises(Unreadable):
            list(scan(text, steps=98))


def test_kinds_of_strings_are_told():
    text = """'a' E'a' $$a$$ U&'a' N'a' B'1' "a" U&"a" a 1 $1 +"""
    kinds = [token.kind for token in scan(text)]
    assert kinds[:3] == ["plain", "escape", "dollar"]
    assert set(kinds[:6]) == STRINGS
    assert kinds[6:] == ["quoted", "unicode_quoted", "word", "number", "parameter", "symbol"]
