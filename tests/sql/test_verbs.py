"""The table of verbs: the process of each verb, and arguments that only the server adds."""

from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path

import psycopg
import pytest

from headrace.errors import UserError
from headrace.server import procedures
from headrace.server.procedures import bind, invocation_of
from headrace.server.statements import parse
from headrace.sql import calls, install
from headrace.sql.verbs import VERBS, Request
from headrace.views.builder import DOES

ROOT = Path(__file__).parents[2]
WORDS = {"text": "'x'", "bool": "true", "jsonb": "'{}'", "pg_lsn": "'0/0'"}
FROM_PROCEDURE = "digest"
"""A procedure adds it on a direct connection, so that the command has no secret."""
ADDED = [
    pytest.param(verb, added.name, id=f"{verb.name}-{added.name}")
    for verb in VERBS.values()
    for added in dataclasses.fields(verb.request)
    if added.kw_only
]


def test_each_verb_has_who_does_it():
    assert {v.name for v in VERBS.values() if v.by == "builder"} == DOES.keys()
    assert {v.by for v in VERBS.values()} == {"builder", "worker", "commander"}
    for name, act in DOES.items():
        wanted = typing.get_type_hints(act)["request"]
        assert issubclass(VERBS[name].request, wanted), name
    assert {f.name for f in dataclasses.fields(Request)} <= {a.values[1] for a in ADDED}


@pytest.mark.parametrize(("verb", "added"), ADDED)
def test_what_the_server_adds_is_said_by_nobody_else(verb, added):
    given = [WORDS.get(p.kind, "NULL") for p in verb.parameters]
    kind = "SELECT * FROM" if verb.selected else "CALL"
    for word in ("true", "1", "NULL"):
        named = ", ".join([*given, f"{added} => {word}"])
        statement = parse(f"{kind} headrace.{verb.name}({named})")
        assert statement is None or bind(statement, (), "utf-8") is None
    if added == FROM_PROCEDURE:
        return
    with pytest.raises(UserError, match="has no argument"):
        invocation_of(verb.name, {added: None})


def test_what_is_bound_on_our_port_is_of_types_that_are_read_there():
    for verb in VERBS.values():
        if not (verb.relayed or verb.selected or verb.step):
            assert {p.kind for p in verb.parameters} <= procedures.READ.keys(), verb.name


WITHOUT_COMMAND = (
    *("check_assertion", "create_feed", "drop_feed", "feed_ack"),
    "what_if",
)
"""Procedures with a file: they wait, read, write the caller's own rows, or take several steps."""
STEP = "carry_out"
"""Procedure for a step of such a procedure; users do not call it."""


def test_the_page_names_the_procedures_as_they_are(database):
    page = (ROOT / "headrace" / "sql" / "README.md").read_text()
    told = {
        name: re.findall(r"\w+", arguments)
        for name, arguments in re.findall(r"`(\w+)\(([^)`]*)\)`", page)
    }
    with psycopg.connect(database) as conn:
        install.install(conn)
        found = conn.execute(
            "SELECT proname, coalesce(proargnames[:array_length(proargnames, 1)"
            " - coalesce(array_length(array_positions(proargmodes, 'b'), 1), 0)], '{}')"
            " FROM pg_proc WHERE prokind = 'p'"
            " AND pronamespace = 'headrace'::regnamespace"
        ).fetchall()
    assert sorted(name for name, _ in found) == sorted([*calls.names(), *WITHOUT_COMMAND, STEP])
    found = [(name, taken) for name, taken in found if name != STEP]
    assert {name: told.get(name) for name, _ in found} == dict(found)


def test_a_key_in_the_command_table_is_a_text():
    assert invocation_of("why", {"name": "v", "key": "{}"}).arguments["key"] == "{}"
    with pytest.raises(UserError):
        invocation_of("why", {"name": "v", "key": {"id": 1}})
