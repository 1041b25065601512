"""Parameters of pipelined statements are the values that Postgres gets."""

from __future__ import annotations

import random

import psycopg
import pytest

from headrace.postgres.pipelined import Pipelined, Sent

TEXTS = (
    *("", " ", "NULL", "null", "a,b", "{x}", '"', "\\", '\\"', "a\nb", "ö🔑", "'", "x" * 9),
    None,
)


@pytest.mark.parametrize("seed", range(20))
def test_arrays(database, seed):
    rng = random.Random(seed)
    texts = [rng.choice(TEXTS) for _ in range(rng.randrange(6))]
    numbers = [rng.choice([None, 0, -1, 1 << 62]) for _ in range(rng.randrange(6))]
    with psycopg.connect(database, autocommit=True, prepare_threshold=None) as conn:
        statement = b"SELECT $1::text[], $2::bigint[]"
        [found] = Pipelined(conn).exchange([Sent(statement, (texts, numbers))])
    assert found.rows == [(texts, numbers)]
