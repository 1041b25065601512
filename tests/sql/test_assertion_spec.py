"""Options of an assertion: their defaults, and the messages for refused ones."""

from __future__ import annotations

import pytest

from headrace.errors import UserError
from headrace.sql.assertion_spec import KEPT, AssertionSpec


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"history": None},
        {"sample": None, "grace": None, "webhook": None, "on_violation": None, "latency_ms": None},
    ],
)
def test_an_option_that_is_null_has_its_default(given):
    # Without a history no violation would be noticed.
    spec = AssertionSpec.of(given)
    assert spec == AssertionSpec()
    assert spec.view.history == KEPT


@pytest.mark.parametrize(
    ("value", "shown"),
    [("both ", '"both "'), (["both"], '["both"]'), (True, "true"), ({"a": None}, '{"a":null}')],
)
def test_a_message_quotes_the_value_as_json(value, shown):
    with pytest.raises(UserError) as caught:
        AssertionSpec.of({"on_violation": value})
    assert caught.value.message == f'invalid value for option "on_violation": {shown}'
    assert caught.value.hint == "Values are: notify, webhook, both."
