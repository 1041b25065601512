"""Rows as Postgres writes them, read as values."""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.server.row_texts import as_object

VALUES = st.lists(
    st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    max_size=5,
)


@pytest.fixture(scope="module")
def conn(postgres):
    with psycopg.connect(postgres, autocommit=True) as made:
        yield made


@pytest.mark.parametrize(
    "values",
    [[""], [None], [None, ""], ['a"b', "c\\d", "e,f", "(g)"], ["NULL", None], [" x ", "\n"]],
)
def test_values_are_those_of_the_row(conn, values):
    check(conn, values)


@given(VALUES)
def test_any_values_are_those_of_the_row(conn, values):
    check(conn, values)


def check(conn, values: list[str | None]) -> None:
    slots = ", ".join(["%s::text"] * len(values))
    [text] = conn.execute(f"SELECT ROW({slots})::text", values).fetchone()
    names = [f"c{i}" for i in range(len(values))]
    assert as_object(text, names) == dict(zip(names, values, strict=True))
    for end in range(len(text)):
        found = as_object(text[:end], names)
        for name, value in zip(names, values, strict=True):
            if name in found and not (found[name] or "").endswith("…"):
                assert found[name] == value


def test_a_cut_row_says_so():
    assert as_object('(1,"a b', ["x", "y", "z"]) == {"x": "1", "y": "a b…"}
    assert as_object("(1,", ["x", "y"]) == {"x": "1"}
