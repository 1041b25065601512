"""Errors of Postgres in our class tree: family by SQLSTATE; message and position unchanged."""

from __future__ import annotations

import psycopg
import pytest

from headrace import errors
from headrace.errors import ErrorFamily, PrivilegeError, TransientError, UserError
from headrace.postgres import failures


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("08006", TransientError), ("40001", TransientError), ("40P01", TransientError),
        ("53300", TransientError), ("57P01", TransientError), ("55006", TransientError),
        ("42P01", UserError), ("22012", UserError), ("55P03", TransientError),
    ],
)  # fmt: skip
def test_family_follows_the_sqlstate(code, kind):
    error = failures.translate(psycopg.errors.lookup(code)("text"), UserError)
    assert type(error) is kind
    assert (error.code, error.message) == (code, "text")


FAMILIES = {
    ErrorFamily.TRANSIENT: ("08", "40", "53", "57", "58"),
    ErrorFamily.DEFINITE: ("0A", "25", "28", "2F", "3D", "3F", "42"),
    # Raised for some rows only, or by RAISE in a user's function.
    ErrorFamily.DATA: (
        *("02", "03", "09", "0B", "0F", "0L", "0P", "0Z", "10", "20", "21", "22", "23"),
        *("24", "26", "27", "2B", "2D", "34", "38", "39", "3B", "44", "54", "55", "72"),
        *("F0", "HV", "P0", "XX"),
    ),
}
"""All classes of SQLSTATE of Postgres."""
OTHERS = {
    "25006": ErrorFamily.TRANSIENT,
    "55006": ErrorFamily.TRANSIENT,
    "55P03": ErrorFamily.TRANSIENT,
}
"""States whose family is not that of their class."""
STATES = sorted(
    {
        kind.sqlstate
        for kind in vars(psycopg.errors).values()
        if isinstance(kind, type)
        and issubclass(kind, psycopg.Error)
        and getattr(kind, "sqlstate", None)
    }
)


def test_every_sqlstate_has_the_family_of_its_class():
    by_class = {c: kind for kind, classes in FAMILIES.items() for c in classes}
    assert {state[:2] for state in STATES} == set(by_class)
    assert len(by_class) == sum(map(len, FAMILIES.values()))
    for state in STATES:
        assert errors.family(state) is OTHERS.get(state, by_class[state[:2]]), state
    assert errors.family(None) is ErrorFamily.TRANSIENT
    assert errors.family("ZZ999") is ErrorFamily.DATA


def test_what_a_server_says_of_itself_is_transient():
    for state in STATES:
        assert errors.transient(state) == (errors.family(state) is ErrorFamily.TRANSIENT)


def test_lost_connection_is_transient():
    error = failures.translate(psycopg.OperationalError("gone"), UserError)
    assert isinstance(error, TransientError)
    assert error.code == "08006"


def test_words_are_kept_and_the_position_is_the_users(postgres):
    with psycopg.connect(postgres, autocommit=True) as conn:
        with pytest.raises(psycopg.Error) as caught:
            conn.execute("SELECT 1 AS one, nope")
        with pytest.raises(psycopg.Error) as hinted:
            conn.execute("SELECT now(1)")
    error = failures.translate(caught.value, PrivilegeError, shift=17)
    assert isinstance(error, PrivilegeError)
    assert (error.position, error.code) == (1, "42703")
    assert failures.translate(caught.value, UserError).position is None
    assert failures.translate(caught.value, UserError, shift=20).position is None
    assert failures.translate(hinted.value, UserError).hint == hinted.value.diag.message_hint
    assert hinted.value.diag.message_hint
