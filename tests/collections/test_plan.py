"""Stored plans: this release reads the plans of an earlier one."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import msgspec
import pytest
from msgspec import structs

from headrace.collections import plan
from headrace.expressions.ir import Column, Remote
from headrace.types import INT4, INT8, TIMESTAMPTZ, Field, PlanPart
from tests.plans import all_plans, col, native, table

SCHEMA = (Field("k", INT4), Field("t", TIMESTAMPTZ))
LESS = native("<", col(0), col(1))
PLANS = {
    **all_plans(table(1), table(2)),
    "the others": plan.PhysicalPlan(
        (
            plan.FeedSpec("f", SCHEMA),
            plan.FlatMapSpec("m", "f", ("g($1)",), (0,), False, True, True, SCHEMA),
            plan.WindowSpec(
                *("w", "m", (0,)),
                (plan.SortKey(1, "<", False, True, True),),
                (
                    plan.WindowCallSpec(
                        *("lag($1)", (0,), Field("l", INT8), True),
                        plan.RunningSpec("lag", 0, None, 1, "0"),
                        "ROWS 1 PRECEDING",
                    ),
                ),
                SCHEMA,
            ),
            plan.TemporalSpec(
                *("c", "w"),
                (plan.TimeTestSpec(LESS, Column(1, 1184), Remote("now()", (LESS,), 1184), 1184),),
                SCHEMA,
            ),
            plan.CalendarSpec("d", "c", (Remote("date($1)", (Column(0, 1184),), 1082),), SCHEMA),
            plan.SinkSpec("s", "d", SCHEMA),
        )
    ),
}
DIGEST = "42f2e398627da87c"


def test_a_row_comes_once_only_if_nothing_hides_a_column() -> None:
    groups = plan.ReduceSpec("g", "l", (0,), (), (SCHEMA[0], SCHEMA[1]))
    columns = (Column(1, 25), Column(0, 23))

    def whole(*steps: plan.MapSpec | plan.FilterSpec) -> tuple[plan.PhysicalPlan, plan.Node]:
        last = plan.FusedSpec("f", "g", steps, SCHEMA[:2])
        source = plan.ValuesSpec("l", (), SCHEMA)
        return plan.PhysicalPlan((source, groups, last, plan.SinkSpec("s", "f", SCHEMA[:2]))), last

    turned = plan.MapSpec("m", "g", columns, SCHEMA[:2])
    one = plan.MapSpec("o", "m", columns[:1], SCHEMA[:1])
    tested = plan.FilterSpec("t", "m", (LESS,), SCHEMA[:2])
    assert plan.emits_once(*whole(turned, tested, turned))
    assert not plan.emits_once(*whole(turned, one))
    assert not plan.emits_once(*whole(one, plan.MapSpec("p", "o", columns[1:] * 2, SCHEMA[:2])))
    physical, _ = whole(turned)
    assert plan.emits_once(physical, groups)
    number = plan.WindowCallSpec("", (), SCHEMA[0], True, plan.RunningSpec("row_number"))
    for call in (number, plan.WindowCallSpec("row_number()", (), SCHEMA[0])):
        window = plan.WindowSpec("w", "l", (), (), (call,), (*SCHEMA, SCHEMA[0]))
        assert plan.emits_once(physical, window) == (call.running is not None)
    assert not plan.emits_once(physical, physical.nodes[0])


def parts(data: object) -> list[dict]:
    if isinstance(data, list):
        return [part for item in data for part in parts(item)]
    return [data, *parts(list(data.values()))] if isinstance(data, dict) else []


def test_what_is_stored_is_what_it_was() -> None:
    stored = [plan.to_json(PLANS[name]) for name in sorted(PLANS)]
    text = json.dumps(stored, sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == DIGEST
    every = {plan.kind(part) for part in PlanPart.__subclasses__()}
    assert {part["kind"] for part in parts(stored)} == every


def test_plans_of_before_keys_and_row_security_are_read() -> None:
    for made in PLANS.values():
        stored = plan.to_json(made)
        assert stored["nodes"][-1].pop("key") == []
        assert stored["nodes"][-1].pop("conditions") == []
        assert stored["nodes"][-1].pop("discreet") is False
        assert plan.from_json(stored) == made


@pytest.mark.parametrize("name", sorted(PLANS))
def test_it_is_read_as_it_was_written(name) -> None:
    stored = json.loads(json.dumps(plan.to_json(PLANS[name])))
    assert plan.from_json(stored) == PLANS[name]
    assert hash(plan.from_json(stored)) == hash(PLANS[name])


def test_what_came_later_has_its_default() -> None:
    fields = {plan.kind(c): structs.fields(c) for c in PlanPart.__subclasses__()}
    for whole in PLANS.values():
        stored = plan.to_json(whole)
        for part in parts(stored):
            for field in fields[part["kind"]]:
                if field.default is msgspec.UNSET:
                    assert field.name not in part
                    continue
                value = part[field.name]
                same = tuple(value) if isinstance(value, list) else value
                if not field.required and same == field.default:
                    del part[field.name]
        assert plan.from_json(stored) == whole


def test_a_source_of_earlier_has_a_text_to_push_down() -> None:
    whole = plan.PhysicalPlan((table(1).source("s"),))
    stored = plan.to_json(whole)
    stored["nodes"][0]["pushdown"] = ""
    assert plan.from_json(stored) == whole


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "Unheard"},
        {"nonsense": 1},
        {"nodes": None},
        {"nodes": [{"kind": "Sink", "id": "s"}]},
        {"nodes": [{"kind": "Sink", "id": "s", "input": 1}]},
        {"nodes": [{"kind": "Sink", "id": "s", "input": "x", "nonsense": 1}]},
        {"nodes": [{"kind": "Field", "name": "x", "oid": 23}]},
        {"nodes": [{"kind": "Sink", "id": "s", "input": "x", "frame": ""}]},
        {"nodes": [{"id": "s", "input": "x"}]},
        {"version": True},
    ],
    ids=str,
)
def test_what_is_no_plan_is_refused(change) -> None:
    stored = plan.to_json(PLANS["the others"])
    with pytest.raises((ValueError, TypeError, KeyError)):
        plan.from_json(stored | change)


FIRST = """
import sys, threading
from headrace.collections import plan
sys.setswitchinterval(1e-6)
data, start = {"nodes": [], "more": 1}, threading.Barrier(8)

def read():
    start.wait()
    try:
        plan.from_json(data)
    except ValueError:
        pass

threads = [threading.Thread(target=read) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_several_threads_may_be_the_first_readers() -> None:
    for _ in range(6):  # before, two in three died
        subprocess.run([sys.executable, "-c", FIRST], check=True)
