"""The table of forms: the function that lowers each kind of node."""

from __future__ import annotations

from typing import Final

from headrace.planner.scalars import (
    calls,
    coercions,
    conditionals,
    constructors,
    containers,
    leaves,
    operators,
    rowtypes,
)
from headrace.planner.scalars.lower import Form

FORMS: Final[dict[str, Form]] = {
    **leaves.FORMS,
    **calls.FORMS,
    **operators.FORMS,
    **conditionals.FORMS,
    **coercions.FORMS,
    **rowtypes.FORMS,
    **containers.FORMS,
    **constructors.FORMS,
}
