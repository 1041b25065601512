"""The tokenizer compared with Postgres's own, and the two kinds of statements that we execute."""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.postgres.tokens import Unreadable
from headrace.server.procedures import Given, bind
from headrace.server.statements import parse, tokenize


def arguments(text: str, **options):
    statement = parse(text, **options)
    return statement and [a.value for a in statement.arguments]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("CALL headrace.create_view('a', 'b')", ["a", "b"]),
        ("call HEADRACE . Create_View ( 'a' , $$b$$ ) ;;", ["a", "b"]),
        ('/* x /* y */ */ CALL "headrace"."create_view"(\'it\'\'s\', $q$b $$ c$q$) -- end', ["it's", "b $$ c"]),
        (r"CALL headrace.create_view(E'a\nb\'\\c\u0041', 'a\nb')", ["a\nb'\\cA", "a\\nb"]),
        ("CALL headrace.drop_view('a', true)", ["a", True]),
        ("CALL headrace.drop_view('a', NULL)", ["a", None]),
        ("CALL headrace.drop_index('ä')", ["ä"]),
        ("CALL headrace.x()", []),
        ("CALL headrace.create_view('a'\n'b', E'c'--'\n--d\n'\\'')", ["ab", "c'"]),
    ],
)  # fmt: skip
def test_ours(text, want):
    assert arguments(text) == want


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SELECT 1",
        "CALL other.create_view('a')",
        "CALL create_view('a', 'b')",
        "CALL \"Headrace\".create_view('a')",
        "CALL headrace.create_view('a', 'b'); SELECT 1",
        "SELECT 1; CALL headrace.create_view('a', 'b')",
        "CALL headrace.create_view('a' || 'b')",
        "CALL headrace.create_view(U&'a', 'b')",
        "CALL headrace.create_view(E'\\x41', 'b')",
        "CALL headrace.create_view('a', 'b'",
        "CALL headrace.create_view('a', )",
        "CALL headrace.create_view(, 'a')",
        "CALL headrace.create_view('a' 'b')",
        "CALL headrace.drop_view(name '=>' 'b')",
        "CALL headrace.drop_view(name \":=\" 'b')",
        "CALL headrace.drop_view('a'::'text')",
        "CALL headrace '.' drop_view('a')",
        "CALL headrace \".\" drop_view('a')",
        "CALL headrace.drop_view(N'a')",
        "CALL headrace.drop_view('a'1x)",
        "CALL headrace.create_view('a'::regclass)",
        "CALL headrace.create_view('unterminated)",
        "CALL headrace.create_view($x$unterminated)",
        "CALL headrace.create_view('a') /* unterminated",
        "CALL headrace.create_view",
        "EXPLAIN CALL headrace.create_view('a', 'b')",
        "SELECT * FROM headrace.list_views()",
        "SELECT * FROM headrace.explain_view('a')",
    ],
)
def test_not_ours(text):
    assert parse(text) is None


def test_strings_with_backslashes_when_not_standard():
    text = r"CALL headrace.drop_view('a\'b')"
    assert parse(text) is None
    assert arguments(text, standard_strings=False) == ["a'b"]


def test_positions():
    text = "CALL headrace.create_view(query => E'a\\'b''c', name => 'v')"
    invocation = bind(parse(text), (), "utf-8")
    query = invocation.arguments["query"]
    assert query == "a'b'c"
    shown = [text[invocation.position(i + 1) - 1] for i in range(len(query))]
    assert shown == ["a", "\\", "b", "'", "c"]
    assert text[invocation.position(6) - 1] == "'"
    assert invocation.position(7) is None
    fields = invocation.error_fields({"C": "1", "M": "m", "P": "1"})
    assert fields["P"] == str(text.index("a\\") + 1)


@pytest.mark.parametrize(
    "text",
    [
        "CALL headrace.create_view('a')",
        "CALL headrace.create_view('a', 'b', 'c')",
        "CALL headrace.create_view('a', 'b', '{}', 'd')",
        "CALL headrace.create_view('a', name => 'b')",
        "CALL headrace.create_view(name => 'a', 'b')",
        "CALL headrace.create_view('a', nonsense => 'b')",
        "CALL headrace.create_view('a', true)",
        "CALL headrace.create_view('a', 'b', '{}'::text)",
        "CALL headrace.explain_view('a')",
        "CALL headrace.create_view('a', 'b', '" + "[" * 50_000 + "')",
        "CALL headrace.create_view('a', 'b', '{\"a\": NaN}')",
        "CALL headrace.create_view('a', 'b', '{\"a\": \"\\ud800\"}')",
        "CALL headrace.create_view('a', 'b', '" + "1" * 50_000 + "')",
        "CALL headrace.drop_view('a', 'maybe')",
        "CALL headrace.drop_view($1)",
    ],
)
def test_wrong_arguments_are_left_to_postgres(text):
    assert bind(parse(text), (), "utf-8") is None


def test_parameters_in_both_formats():
    statement = parse("CALL headrace.create_view($2, $1, options => $3::jsonb)")
    for given_options in (Given(0, b'{"a": 1}', 3802), Given(1, b'\x01{"a": 1}', 0)):
        given_all = [Given(0, b"q", 0), Given(1, "ä".encode(), 25), given_options]
        assert bind(statement, given_all, "utf-8").arguments == {
            "name": "ä", "query": "q", "options": {"a": 1}, "replace": False,
        }  # fmt: skip
    assert bind(statement, [*given_all[:2], Given(0, b"{}", 114)], "utf-8") is None
    drop = parse("CALL headrace.drop_view('v', $1)")
    assert bind(drop, [Given(1, b"\x01", 16)], "utf-8").arguments["if_exists"] is True
    assert bind(drop, [Given(0, b"f", 0)], "utf-8").arguments["if_exists"] is False


TEXTS = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=30)


@given(TEXTS)
def test_quoting_by_psycopg_is_read_back(value):
    literal = psycopg.sql.Literal(value).as_string(None).strip()
    statement = parse(f"CALL headrace.drop_index({literal})")
    assert statement is not None
    assert statement.arguments[0].value == value


PIECES = st.lists(
    st.sampled_from(
        ["'", '"', "$$", "$a$", "E'", "\\", "--", "/*", "*/", "\n", " ", "a", "1", ".5",
         "::", "=>", ";", "(", "$1", "U&'", "é", "''"]
    ),
    max_size=14,
).map("".join)  # fmt: skip


def test_strings_are_what_postgres_reads(database):
    """Random lexemes: every string constant found here has the same value in Postgres."""
    with psycopg.connect(database, autocommit=True) as conn:

        @given(
            PIECES.map("'a{}'".format) | PIECES.map("E'a{}'".format) | PIECES.map("$$a{}$$".format)
        )
        def check(text: str) -> None:
            try:
                tokens = tokenize(text)
            except Unreadable:
                return
            if [t.kind for t in tokens] != ["string"]:
                return
            row = conn.execute(f"SELECT {text}\n".encode()).fetchone()
            assert row == (tokens[0].value,)

        check()


def test_positions_and_intervals_are_for_postgres_to_read():
    text = "CALL headrace.wait_for('v', '0/1F'::pg_lsn, timeout => '2 s'::interval)"
    found = bind(parse(text), (), "utf-8")
    assert found.arguments == {"name": "v", "lsn": "0/1F", "timeout": "2 s"}
    found = bind(parse("CALL headrace.wait_for('v')"), (), "utf-8")
    assert found.arguments == {"name": "v", "lsn": None, "timeout": None}
    statement = parse("CALL headrace.wait_for($1, $2, $3)")
    texts = [Given(0, b"v", 0), Given(0, b"0/1F", 3220), Given(0, b"00:00:02", 1186)]
    assert bind(statement, texts, "utf-8").arguments["timeout"] == "00:00:02"
    # Binary forms and expressions are left to the procedure in the database.
    binary = [*texts[:1], Given(1, bytes(8), 3220), texts[2]]
    assert bind(statement, binary, "utf-8") is None
    assert parse("CALL headrace.wait_for('v', pg_current_wal_lsn())") is None


def test_verify_view_is_left_to_its_function_and_never_called():
    assert bind(parse("CALL headrace.verify_view('v')"), (), "utf-8") is None
    for text in (
        "SELECT * FROM headrace.verify_view('v');",
        "SELECT plan FROM headrace.verify_view('v')",
        "SELECT surplus FROM headrace.verify_view('v')",
        "SELECT * FROM headrace.verify_view('v') WHERE surplus > 0",
    ):
        assert parse(text) is None


@pytest.mark.parametrize("name", ["queues", "memory"])
def test_what_the_worker_tells_of_itself_is_left_to_its_function(name):
    assert bind(parse(f"CALL headrace.{name}()"), (), "utf-8") is None
    for text in (
        f"SELECT * FROM headrace.{name}()",
        f"SELECT * FROM headrace.{name}('v')",
        f"SELECT plan FROM headrace.{name}()",
        f"SELECT count(*) FROM headrace.{name}()",
    ):
        assert parse(text) is None
