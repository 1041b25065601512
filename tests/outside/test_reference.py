"""The reference names exactly the existing calls and options (its examples: `test_pages.py`)."""

import dataclasses
import json
import re
from pathlib import Path

import psycopg
import pytest

from headrace.sql import view_spec
from headrace.sql.verbs import VERBS
from headrace.sql.view_spec import ViewSpec
from tests.outside import pages

pytestmark = pytest.mark.shared_engine

SQL = Path(view_spec.__file__).resolve().parent
PAGE = pages.text("reference")
CALL = re.compile(r"^    (CALL )?headrace\.(\w+)\((.*?)\)( → .*)?$")
MORE = re.compile(r"^      +(?=\S)")
"""A continuation line."""
SHORT = {"timestamp with time zone": "timestamptz", "double precision": "float8"}
ROUTINES = """
SELECT proname, prokind = 'p', pg_get_function_arguments(oid), pg_get_function_result(oid)
  FROM pg_proc WHERE pronamespace = 'headrace'::regnamespace ORDER BY proname
"""


def signatures(page: str) -> dict[str, str]:
    """Return the signature of each call: ``[CALL ]headrace.name(parameters)[ → columns]``."""
    joined: list[str] = []
    for line in page.split("\n"):
        if joined and MORE.match(line):
            joined[-1] += " " + line.strip()
        else:
            joined.append(line)
    found = [line.strip() for line in joined if CALL.match(line)]
    named = [re.sub(r"^(CALL )?headrace\.(\w+).*", r"\2", line) for line in found]
    assert len(named) == len(set(named)), "a call stands there twice"
    return dict(zip(named, found, strict=True))


def parameters(signature: str) -> list[str]:
    """Return the names of the parameters, without those that return a procedure's result."""
    inside = signature.split("(", 1)[1].split(")", 1)[0]
    each = [said.split() for said in inside.split(", ") if said]
    return [words[0] for words in each if words[0] != "INOUT"]


def plain(text: str) -> str:
    """Rewrite an argument list of Postgres as on the page: no casts, no IN, short types."""
    for long, short in SHORT.items():
        text = text.replace(long, short)
    text = re.sub(r"'(\d+)'::\w+", r"\1", text)
    text = re.sub(r"(INOUT \w+ \w+) DEFAULT NULL", r"\1", text)
    return re.sub(r"::\w+|\bIN (?=\w)", "", text)


def known(conn: psycopg.Connection) -> dict[str, str]:
    """Return the signatures of all routines in the schema, according to Postgres."""
    out = {}
    for name, procedure, arguments, answers in conn.execute(ROUTINES):
        taken, _, told = (
            arguments.partition("OUT ") if "INOUT" not in arguments else (arguments, "", "")
        )
        columns = told.replace("OUT ", "") or re.sub(r"^TABLE\((.*)\)$", r"\1", answers or "")
        said = f"headrace.{name}({plain(taken.removesuffix(', '))})"
        out[name] = f"CALL {said}" if procedure else f"{said} → {plain(columns)}"
    return out


def test_each_procedure_stands_in_it_with_its_parameters():
    found = signatures(PAGE)
    verbs = {verb.called: verb for verb in VERBS.values() if verb.called}
    assert len(verbs) > 35
    for name, verb in verbs.items():
        assert name in found, f"{name} is missing"
        assert parameters(found[name]) == [p.name for p in verb.parameters], name


def test_what_users_call_stands_in_it_and_nothing_else():
    rows = [line for line in (SQL / "README.md").read_text().split("\n") if line.startswith("| `")]
    called = set(re.findall(r"\b(\w+)\(", "\n".join(rows)))
    assert {"list_views", "join_worker", "create_view", "feed_read"} <= called
    assert set(signatures(PAGE)) == called


def test_signatures_are_those_of_postgres(engine):
    """Types, defaults and columns are compared too."""
    found = signatures(PAGE)
    with psycopg.connect(engine.source) as conn:
        there = known(conn)
    assert {name: there.get(name) for name in found} == found


def test_each_call_has_an_example():
    """Examples are in fences, which are run; those that a test cannot run are indented."""
    examples = "\n".join(
        [*pages.fences("reference", "sql"), *re.findall(r"^    .*;$", PAGE, re.MULTILINE)]
    )
    used = set(re.findall(r"headrace\.(\w+)\(", examples))
    assert set(signatures(PAGE)) - used == {"join_worker"}, "headrace worker calls that one"


def test_every_option_stands_in_it_with_its_default():
    table = PAGE.split("#### Options")[1].split("\n#")[0]
    rows = [line.split("|")[1:3] for line in table.split("\n") if line.startswith("| `")]
    said = {name.strip(" `"): default.strip() for name, default in rows}
    assert len(said) == len(rows)
    assert set(said) == set(view_spec._TYPES)
    given = {f.name: f.default for f in dataclasses.fields(ViewSpec) if f.name in said}
    for name, default in given.items():
        if default is None:
            assert not said[name].startswith("`"), name
        else:
            assert said[name] == f"`{json.dumps(default)}`", name
