"""IN lists as constant arrays against Postgres, with NULLs on either side."""

from __future__ import annotations

import pytest

from headrace.expressions.arrays import elements
from headrace.expressions.ir import Column, Literal, Native
from headrace.expressions.native import TypeRef, resolve
from tests.expressions.test_native import EDGES, conn, edges
from tests.expressions.test_texts import bulk

__all__ = ["conn"]

ARRAYS = {
    "bool": {1000: ["{t}", "{f,NULL}"]},
    "int2": {1005: ["{7,-32768}"], 1007: ["{70000,1}"], 1016: ["{-7,NULL}"]},
    "int4": {1005: ["{3}"], 1007: ["{-10,2147483647}", "{NULL}"], 1016: ["{5000000000,0}"]},
    "int8": {1016: ["{9223372036854775807,1}"], 1007: ["{1,NULL,10}"]},
    "text": {1009: ["{a,B}", '{"",é}', "{NULL,z}", '{"Z ","a,\\"b\\\\"}', '{"NULL"}']},
    "varchar": {1009: ['{"ab ",a}'], 1015: ["{ab}"]},
    "bpchar": {1014: ['{a,"B  "}', '{"a\t",NULL}']},
    "date": {1182: ["{infinity,2000-01-01}", "{1999-12-31,NULL}"]},
    "time": {1183: ["{24:00:00}"]},
    "timestamp": {1115: ['{"2000-01-01 00:00:00",-infinity}']},
    "timestamptz": {1185: ['{"2000-01-01 00:00:00+00",NULL}']},
    "uuid": {2951: ["{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}"]},
}  # fmt: skip
NAMES = {
    1000: "bool[]", 1005: "int2[]", 1007: "int4[]", 1016: "int8[]", 1009: "text[]",
    1015: "varchar[]", 1014: "bpchar[]", 1182: "date[]", 1183: "time[]",
    1115: "timestamp[]", 1185: "timestamptz[]", 2951: "uuid[]",
}  # fmt: skip


@pytest.mark.parametrize("word", ["= ANY", "<> ALL"])
@pytest.mark.parametrize("kind", ARRAYS)
def test_membership_equals_postgres(conn, kind, word):
    oid = EDGES[kind][0]
    for array, texts in ARRAYS[kind].items():
        for text in texts:
            op = resolve(word, [TypeRef(oid), TypeRef(array, literal=text)])
            assert op is not None, text
            assert not op.may_raise
            expr = f"$1 {word} (E'{text.replace(chr(92), chr(92) * 2)}'::{NAMES[array]})"
            node = Native(op.name, (Column(0, oid), Literal(text, array)), op.oid)
            bulk(conn, expr, [kind], [edges(kind)], node)


def test_what_is_no_plain_array_is_left_to_postgres():
    text = TypeRef(25)
    for array in ("{}", "{{a},{b}}", "[0:1]={a,b}"):
        assert resolve("= ANY", [text, TypeRef(1009, literal=array)]) is None
    assert resolve("= ANY", [text, TypeRef(1009)]) is None
    loose = TypeRef(25, bytewise=False, deterministic=False)
    assert resolve("= ANY", [loose, TypeRef(1009, literal="{a}")]) is None
    assert resolve("= ANY", [TypeRef(1700), TypeRef(1231, literal="{1}")]) is None


def test_elements_are_read_as_postgres_writes_them():
    assert elements('{a,"b c",NULL,"NULL","x\\"y\\\\z",""}') == [
        *("a", "b c", None, "NULL", 'x"y\\z', "")
    ]
