"""Literals that might run code when they are read: all are found, in every notation."""

from __future__ import annotations

import random

import psycopg
import pytest

from headrace.planner.analyse.literals import suspects

PIECES = (
    *("a", "(", "{", "[", ")", " ", "\t", "\n", "''", '"', "--", "/*", "*/", "$", "$$"),
    *("$a$", "\\\\", "\\n", "\\x28", "\\050", "\\0028", "\\u0028", "\\'", "é", "&", ";"),
)
GAPS = (" ", "\n", "/* ' */", "/* /* '( */ ' */", "-- '(\n", "\n--'\n", "")
NAMES = ('"it\'s"', "e", '"$$"', 'U&"d\\0061t\'"', "x$y$", "é")


def literal(pick: random.Random, *, standard: bool) -> str:
    """Return a random string constant of Postgres' syntax, or nearly."""
    body = "".join(pick.choices(PIECES, k=pick.randrange(5)))
    kind = pick.choice(("", "E", "e", "U&", "u&", "$", "N", "more"))
    if kind == "$":
        tag = pick.choice(("$$", "$t$", "$é1$"))
        return f"{tag}{body.replace(tag, '').replace('$$', '')}{tag}"
    if kind in ("U&", "u&"):
        if not standard:
            return "'a'"
        body = body.replace("\\", "") + pick.choice(("", "\\0028"))
        if pick.random() < 0.3:
            return f"{kind}'{body.replace('!', '')}!0028' UESCAPE '!'"
        return f"{kind}'{body}'"
    if kind == "more":
        gap = pick.choice(("\n", " \n ", " -- it's\n", "\n-- (\n"))
        return f"'{body}'{gap}'{pick.choice('({[a')}'"
    return f"{kind}'{body}'"


@pytest.mark.parametrize("standard", [True, False])
def test_no_bracket_is_overlooked(database, standard):
    pick = random.Random(7)
    checked = 0
    with psycopg.connect(database, autocommit=True, prepare_threshold=None) as conn:
        conn.execute(f"SET standard_conforming_strings = {'on' if standard else 'off'}")
        conn.execute("SET backslash_quote = on; SET escape_string_warning = off")
        for _ in range(1500):
            texts = [literal(pick, standard=standard) for _ in range(pick.randrange(1, 5))]
            items = [
                f"{pick.choice(GAPS)}{t}{pick.choice(GAPS)} AS {pick.choice(NAMES)}" for t in texts
            ]
            query = f"SELECT {','.join(items)}{pick.choice(GAPS)}"
            try:
                row = conn.execute(query.encode()).fetchone()
            except psycopg.Error:
                continue  # not by Postgres' grammar
            values = ["" if v is None else str(v) for v in row or ()]
            found = suspects(query, standard_strings=standard)
            starts = [query[s.start : s.end] for s in found]
            # There may be more findings: an escape at the beginning might become a bracket.
            assert len(found) <= len(values)
            if len(values) != len(texts):
                continue  # one literal has swallowed another
            for text, value in zip(texts, values, strict=True):
                # N'…' has a type of its own.
                if value.strip()[:1] in tuple("({[") and text[:1].lower() != "n":
                    assert text in starts, (query, text, starts)
            checked += 1
    assert checked > 300
