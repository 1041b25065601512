"""Tokens and passwords appear in no log of a server that logs everything, and stay in no table."""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headrace.embedded.engine import EmbeddedEngine
from headrace.sql import install, nodes
from tests.amounts import seeds
from tests.integration.test_sources import at
from tests.integration.test_sources import other as other
from tests.waiting import wait_until

PASSWORD = "sesame-4713"
PATH = "sesame-4714"
"""A part of a webhook's URL; on the port, the call is not passed on."""
WEBHOOK = f'{{"on_violation": "webhook", "webhook": "http://127.0.0.1:1/{PATH}"}}'
NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


def log_of(conn: psycopg.Connection) -> str:
    """Return the whole log of the server."""
    [(data,)] = conn.execute("SELECT current_setting('data_directory')").fetchall()
    path = Path(data).parent / f"{Path(data).name}.log"
    if not path.exists():
        pytest.skip("the log of this server is somewhere else")
    return path.read_text(errors="replace")


def log_everything(conn: psycopg.Connection) -> None:
    """Make later sessions of the database log statements, parameters and durations."""
    for name, value in (("log_statement", "all"), ("log_min_duration_statement", "0")):
        conn.execute(
            psycopg.sql.SQL("ALTER DATABASE {} SET {} = {}").format(
                psycopg.sql.Identifier(conn.info.dbname), psycopg.sql.Identifier(name), value
            )
        )


def test_secrets_are_neither_logged_nor_kept(
    database: str, other: psycopg.Connection, start_engine: Callable[..., EmbeddedEngine]
) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        log_everything(conn)
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
    log_everything(other)
    engine = start_engine(database, HEADRACE_WEBHOOK_HOSTS="127.0.0.1:1")
    dsn = make_conninfo(at(other), password=PASSWORD)
    with (
        psycopg.connect(database, autocommit=True) as direct,
        psycopg.connect(engine.dsn, autocommit=True) as port,
    ):
        tokens = []
        for conn, name in ((direct, "w2"), (port, "w3")):
            [(token,)] = conn.execute(f"CALL headrace.create_worker_token('{name}')").fetchall()
            assert token.startswith(f"{name}.") and len(token) > 40
            nodes.join(direct, token, "x:1", b"certificate")
            tokens.append(token.partition(".")[2])
        port.execute(f"CALL headrace.add_source('eu', '{dsn}', 'orders')")
        other.execute("INSERT INTO orders VALUES (1, 1)")
        wait_until(
            lambda: port.execute("SELECT * FROM headrace.sources()").fetchall()[0][4] > 0,
            "its change has come",
        )
        [(carrier,)] = direct.execute("SELECT token FROM headrace.carrier").fetchall()
        [(stored,)] = direct.execute("SELECT dsn FROM headrace.origins").fetchall()
        assert PASSWORD in stored, "the carrier needs it"
        port.execute(f"CALL headrace.create_assertion('a', 'SELECT id FROM t', '{WEBHOOK}')")
        direct.execute("INSERT INTO t VALUES (1)")
        wait_until(
            lambda: direct.execute("SELECT last_error FROM headrace.webhooks()").fetchone()[0],
            "a request was signed",
        )
        [(signing,)] = direct.execute("SELECT secret FROM headrace.webhook_targets").fetchall()
        log = log_of(direct)
        assert "COPY headrace.origins" in log and "pg_logical_emit_message" in log
        assert "headrace.join_worker($1" in log
        assert "COPY headrace.webhook_targets" in log
        for secret in (*tokens, PASSWORD, carrier, signing, PATH):
            assert secret not in log
        # On a direct connection the statement itself may be logged: it is the caller's.
        with pytest.raises(psycopg.errors.DuplicateObject):
            direct.execute(f"CALL headrace.add_source('eu', '{dsn}', 'orders')")
        kept = str(direct.execute("SELECT c::text FROM headrace.commands c").fetchall())
        assert "add_source" in kept and "create_worker_token" in kept
        for secret in (*tokens, PASSWORD):
            assert secret not in kept
        for secret in (PASSWORD, signing, PATH):
            assert secret not in engine.log


@pytest.fixture
def catalog(database: str):
    with psycopg.connect(database, autocommit=True) as conn:
        install.install(conn)
        conn.execute("INSERT INTO headrace.meta VALUES ('certificate', 'that of the engine')")
        yield conn


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_a_proof_is_good_for_its_message_and_once(catalog: psycopg.Connection, seed: int) -> None:
    rng = random.Random(seed)
    secret = secrets.token_urlsafe(48)[: rng.randint(1, 64)]
    nodes.invite(catalog, "w2", hashlib.sha256(secret.encode()).digest())
    for _ in range(3):
        answer = nodes.join(catalog, f"w2.{secret}", f"h:{rng.randint(1, 9)}", b"c")
        assert answer == b"that of the engine"

    def joined(name: str, made_at: int, proof: bytes, address: str, certificate: str) -> str:
        try:
            catalog.execute(
                "SELECT headrace.join_worker(%s, %s, %s, %s, %s)",
                (name, made_at, proof, address, certificate),
            )
        except psycopg.Error as error:
            return str(error.sqlstate)
        return ""

    def proof(made_at: int, secret: str = secret) -> bytes:
        return nodes.join_proof(secret, f"w2\n{made_at}\na:1\nc")

    [(now,)] = catalog.execute(NOW).fetchall()
    good = proof(now)
    digest = hashlib.sha256(secret.encode()).hexdigest()
    for given in (
        ("w2", now, good, "a:2", "c"),
        ("w2", now, good, "a:1", "d"),
        ("w2", now + 1, good, "a:1", "c"),
        ("w3", now, good, "a:1", "c"),
        ("w2", now, good[:-1], "a:1", "c"),
        ("w2", now, good + b"x", "a:1", "c"),
        ("w2", now, b"", "a:1", "c"),
        ("w2", now, bytes(65), "a:1", "c"),
        ("w2", now, proof(now, secret + "x"), "a:1", "c"),
        ("w2", now, proof(now, digest), "a:1", "c"),  # the digest in the catalog is not enough
    ):
        assert joined(*given) == "28000", given
    assert joined("w2", now, good, "a:1", "c") == ""
    assert joined("w2", now, good, "a:1", "c") == "40001", "it was used"
    for other_time in (now - 61_000_000, now + 3_600_000_000):
        assert joined("w2", other_time, proof(other_time), "a:1", "c") == "40001"
    catalog.execute("UPDATE headrace.nodes SET seen_at = now() + interval '1 hour'")
    [(now,)] = catalog.execute(NOW).fetchall()
    assert joined("w2", now, proof(now), "a:1", "c") == "", "the server's clock was set back"
