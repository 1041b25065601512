"""Errors of Postgres in our tree: the family by SQLSTATE, the words and the position as they are."""

from __future__ import annotations

import psycopg
import pytest

from headrace.errors import PrivilegeError, TransientError, UserError
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
    assert (
        failures.translate(hinted.value, UserError).hint
        == hinted.value.diag.message_hint
    )
    assert hinted.value.diag.message_hint
