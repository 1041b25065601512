"""Options of create_view: their defaults, and the messages for refused ones."""

from __future__ import annotations

import msgspec
import pytest

from headrace.config import Settings
from headrace.errors import UserError
from headrace.sql.verbs import AlterView, CheckView, CreateView
from headrace.sql.view_spec import OptionChanges, ViewSpec

MODES = "Values are: auto, local, spark."
ROWS = 'option "threshold_rows" must be a number of rows'
GROUP = 'option "commit_group" must be a text of at most 63 characters'
KEY = 'option "key" must be a list of column names'
WRITE = 'Write for example {"key": ["country"]}.'
LATE = 'option "latency_ms" must be a number of milliseconds up to 3600000'
LIMIT = "must be a number from 1 to 2147483647"
KNOWN = (
    "Options are: block, commit_group, dialect, first_rows, from, history, key, latency_ms, max_recursion_iterations,"
    " max_recursion_rows, on_change, on_damage, placement, population, sharing, threshold_rows, trust_stable,"
    " view_memory_bytes_max, view_rows_max, view_time_ms_max."
)


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({"limits": {}}, 'unrecognized option "limits"', KNOWN),
        ({"nonsense": 1, "block": 1}, 'unrecognized option "nonsense"', KNOWN),
        ({"population": "Local"}, 'invalid value for option "population": "Local"', MODES),
        ({"population": ["auto"]}, 'invalid value for option "population": ["auto"]', MODES),
        ({"population": {"ä": None}}, 'invalid value for option "population": {"ä":null}', MODES),
        ({"population": False}, 'invalid value for option "population": false', MODES),
        ({"on_change": 1}, 'invalid value for option "on_change": 1', "Values are: follow, stop, resync."),
        ({"on_damage": "follow"}, 'invalid value for option "on_damage": "follow"', "Values are: resync, stop."),
        ({"threshold_rows": -1}, ROWS, None),
        ({"latency_ms": -1}, LATE, None),
        ({"latency_ms": 3_600_001}, LATE, None),
        ({"latency_ms": 1.5}, LATE, None),
        ({"latency_ms": "soon"}, LATE, None),
        ({"threshold_rows": True}, ROWS, None),
        ({"threshold_rows": 5.0}, ROWS, None),
        ({"threshold_rows": "5"}, ROWS, None),
        ({"block": "no"}, 'option "block" must be true or false', None),
        ({"sharing": 0}, 'option "sharing" must be true or false', None),
        ({"commit_group": "ä" * 64}, GROUP, None),
        ({"commit_group": 5}, GROUP, None),
        ({"key": "id"}, KEY, WRITE),
        ({"key": [None]}, KEY, WRITE),
        ({"key": ["id", 1]}, KEY, WRITE),
        ({"max_recursion_rows": 0}, f'option "max_recursion_rows" {LIMIT}', None),
        ({"max_recursion_rows": 2**31}, f'option "max_recursion_rows" {LIMIT}', None),
        ({"max_recursion_iterations": True}, f'option "max_recursion_iterations" {LIMIT}', None),
        ({"view_rows_max": "many"}, f'option "view_rows_max" {LIMIT}', None),
        ({"view_time_ms_max": 10**30}, f'option "view_time_ms_max" {LIMIT}', None),
        # The first of several, in the order of the class.
        ({"view_rows_max": 0, "key": [], "threshold_rows": -1}, ROWS, None),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(given, message, hint):
    with pytest.raises(UserError) as caught:
        ViewSpec.of(given)
    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert caught.value.code == "22023"


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({}, ViewSpec()),
        ({"threshold_rows": None, "max_recursion_rows": None, "view_rows_max": None}, ViewSpec()),
        ({"population": None, "latency_ms": None, "block": None, "commit_group": None, "from": None,
          "placement": None, "trust_stable": None}, ViewSpec()),
        ({"threshold_rows": 0, "block": False}, ViewSpec(threshold_rows=0, block=False)),
        ({"threshold_rows": 10**30}, ViewSpec(threshold_rows=10**30)),
        ({"commit_group": "ä" * 63}, ViewSpec(commit_group="ä" * 63)),
        ({"key": ["b", "a"]}, ViewSpec(key=("b", "a"))),
        ({"key": []}, ViewSpec(key=())),
        ({"key": None}, ViewSpec()),
        ({"sharing": False, "on_change": "stop", "on_damage": "stop", "population": "spark"},
         ViewSpec("spark", sharing=False, on_change="stop", on_damage="stop")),
        ({"max_recursion_iterations": 1, "max_recursion_rows": 2**31 - 1},
         ViewSpec(max_recursion_iterations=1, max_recursion_rows=2**31 - 1)),
        ({"view_time_ms_max": 7, "view_rows_max": None},
         ViewSpec(limits={"view_time_ms_max": 7})),
    ],
)  # fmt: skip
def test_what_fits(given, made):
    assert ViewSpec.of(given) == made


def test_a_view_that_is_fed_is_loaded_anywhere():
    for mode in ("local", "spark"):
        made = ViewSpec.of({"from": "p", "population": mode})
        assert (made.point, made.population) == ("p", mode)


def test_a_request_that_is_no_object_is_refused():
    for given in ([], 5, "spark", True, None):
        for kind in (ViewSpec, OptionChanges):
            with pytest.raises(UserError, match="options must be a JSON object") as caught:
                kind.from_request(given, Settings())
            assert caught.value.code == "22023"


def test_changes_are_validated_by_themselves_and_together_with_the_others():
    before = ViewSpec.of({"commit_group": "slow", "key": ["a"], "latency_ms": 5})
    more = {"view_time_ms_max": 100_000}
    settings = Settings(view_time_ms_max=60_000)
    changes = OptionChanges.from_request({**more, "key": None}, settings)
    after = changes.applied(before, settings)
    assert after.given == {"commit_group": "slow", "latency_ms": 5, **more}
    assert (after.key, after.limits) == (None, more)
    with pytest.raises(UserError, match="only in a commit group"):
        OptionChanges.of({"commit_group": None}).applied(after, settings)
    for given, message in (
        ({"nope": None}, 'unrecognized option "nope"'),
        ({"latency_ms": "soon"}, LATE),
    ):
        with pytest.raises(UserError, match=message):
            OptionChanges.from_request(given, settings)


def test_replace_keeps_options_that_have_a_call_of_their_own():
    kept = {"latency_ms": 5, "placement": "w1", "history": "1 hour", "block": False}
    before = ViewSpec.of({**kept, "sharing": False, "key": ["a"]})
    wanted = {"population": "local", "placement": "w2", "history": None, "key": None}
    after = before.replaced_by(ViewSpec.of(wanted), Settings())
    assert after.given == {"population": "local", **kept}
    assert before.replaced_by(ViewSpec.of({"latency_ms": 0}), Settings()).latency_ms == 0
    assert ViewSpec().replaced_by(ViewSpec.of(wanted), Settings()).given == {"population": "local"}


def test_options_travel_as_they_were_given():
    given = {"key": ["a"], "threshold_rows": None, "view_rows_max": 7}
    about = {"caller": "somebody", "settings": {}}
    for request in (
        CreateView("v", "SELECT 1", ViewSpec.of(given), **about),
        CheckView("SELECT 1", ViewSpec.of(given), **about),
        AlterView("v", "SELECT 1", OptionChanges.of(given), **about),
    ):
        message = msgspec.json.decode(msgspec.json.encode(request.message()))
        assert message["options"] == given
        again = type(request).of_message(message)
        assert again == request
        assert again.options.given == given
