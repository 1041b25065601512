from __future__ import annotations

import re

import pytest

from headrace.errors import BugError
from headrace.planner.analyse import nodetree
from headrace.planner.analyse.nodetree import Node, read_nodes


def read(text: str) -> Node:
    [node] = read_nodes(f"({text})")
    return node


def test_fields_of_every_shape():
    node = read(
        r'{QUERY :a true :b <> :c 12 :name ?column? :odd a\ b\{\\ :e "" :list ({X :n 1} {X :n 2})'
        r" :nums (i 1 -2) :bits (b 8 9) :oids (o 20 23)}"
    )
    assert node.flag("a")
    assert node.node("b") is None
    assert node.number("c") == 12
    assert node.text("name") == "?column?"
    assert node.text("odd") == "a b{\\"
    assert node.text("e") == ""
    assert [n.number("n") for n in node.nodes("list")] == [1, 2]
    assert node.items("nums") == ["1", "-2"]
    assert node.numbers("bits") == [8, 9]
    assert node.numbers("oids") == [20, 23]


def test_a_list_of_strings_may_begin_with_a_marker_letter():
    node = read('{ALIAS :aliasname v :colnames ("x" "i" "b")}')
    assert node.items("colnames") == ["x", "i", "b"]


def test_datum():
    node = read("{CONST :constisnull false :constvalue 4 [ 30 0 0 -1 0 0 0 0 ] :z 1}")
    assert node.fields["constvalue"] == bytes([30, 0, 0, 255])
    assert node.number("z") == 1
    assert read("{CONST :constvalue <>}").fields["constvalue"] is None


def test_names_of_older_servers():
    assert read("{CASE :casetype 23}").kind == "CASEEXPR"


def test_walk_goes_in_order_of_the_text():
    node = read("{A :x {B :y 1} :z ({C :w {D :v 1}} {E :u 1})}")
    assert [n.kind for n in node.walk()] == ["A", "B", "C", "D", "E"]


def test_unreadable_text_is_a_bug():
    with pytest.raises(BugError, match="unreadable pg_node_tree at 'what' in QUERY"):
        read("{QUERY what 1}")
    with pytest.raises(BugError):
        read("{QUERY :name}")


@pytest.mark.parametrize("blank", ["\u00a0", "\u2003", "\x85", "\r", "\x0b", "\x1c"])
def test_a_name_ends_only_where_postgres_says(blank):
    """Otherwise a name could forge other fields, such as the oid of a table that is read."""
    node = read(f"{{RTE :ctename a{blank}:relid{blank}16400 :relid 0}}")
    assert node.text("ctename") == f"a{blank}:relid{blank}16400"
    assert node.number("relid") == 0


class Counted:
    """A pattern that counts its matches."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.found = 0
        self._pattern = pattern

    def match(self, *where):
        self.found += 1
        return self._pattern.match(*where)


def test_the_bytes_of_a_constant_are_no_tokens(monkeypatch):
    """A text of 900 kB is a constant of as many numbers in its tree."""
    tokens, fields = Counted(nodetree._TOKEN), Counted(nodetree._FIELD)
    monkeypatch.setattr(nodetree, "_TOKEN", tokens)
    monkeypatch.setattr(nodetree, "_FIELD", fields)
    values = [at % 256 for at in range(900_000)]
    signed = " ".join(str(v - 256 if v > 127 else v) for v in values)
    node = read(f"{{CONST :constlen -1 :constvalue {len(values)} [ {signed} ] :location 7}}")
    assert node.fields["constvalue"] == bytes(values)
    assert node.number("location") == 7
    assert tokens.found + fields.found < 20


def test_equal_words_of_a_tree_are_one_string():
    """A list of 5 000 constants has tens of thousands of words, of which few differ."""
    many = 5_000
    one = "{CONST :consttype 23 :constbyval true :constvalue 4 [ 1 0 0 0 ] :location -1}"
    node = read("{IN :args (" + " ".join([one] * many) + ")}")
    words = [value for const in node.nodes("args") for value in const.fields.values()]
    assert len(words) == 4 * many
    assert len({id(word) for word in words if isinstance(word, str)}) == 3
    names = [name for const in node.nodes("args") for name in const.fields]
    assert len({id(name) for name in names}) == 4


@pytest.mark.parametrize("cut", ["{QUERY", "{QUERY :abc", "{QUERY :abc 1", "({X :n 1}", "(i 1"])
def test_a_tree_that_ends_too_early(cut):
    with pytest.raises(BugError, match="ends too early"):
        read_nodes(f"({cut}")
