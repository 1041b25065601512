from __future__ import annotations

import pytest

from headrace.errors import BugError
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
    with pytest.raises(BugError):
        read("{QUERY what 1}")


@pytest.mark.parametrize("blank", ["\u00a0", "\u2003", "\x85", "\r", "\x0b", "\x1c"])
def test_a_name_ends_only_where_postgres_says(blank):
    """Else a name could bring fields of its own: what a query reads, under which number."""
    node = read(f"{{RTE :ctename a{blank}:relid{blank}16400 :relid 0}}")
    assert node.text("ctename") == f"a{blank}:relid{blank}16400"
    assert node.number("relid") == 0
