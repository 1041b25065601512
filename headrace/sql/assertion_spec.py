"""Options of an assertion: its own, and those of its view; validated when a request enters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self, get_args

from headrace.config import Settings
from headrace.errors import UnsupportedError, UserError
from headrace.sql import webhook_urls
from headrace.sql.view_spec import ViewSpec, json_text

KEPT: Final = "1 hour"
"""For how long the changes of an assertion's rows are kept, unless an option says it."""
SAMPLE_MAX: Final = 100
OnViolation = Literal["notify", "webhook", "both"]


@dataclass(frozen=True, slots=True)
class AssertionSpec:
    """Options of one assertion.  ``given`` has all of them as JSON data, as a caller gave them."""

    on_violation: OnViolation = "notify"
    sample: int = 10
    """How many of the violating rows are stored with a violation."""
    grace: str | None = None
    """Interval; a violation that is over within it is not reported.  None: none."""
    webhook: str | None = None
    """URL to which violations are sent."""
    view: ViewSpec = field(default_factory=lambda: ViewSpec.of({"history": KEPT}))
    """Options of its view."""
    given: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def from_request(cls, given: object, settings: Settings) -> Self:
        """Validate the options of a request.

        Raises:
            UserError: 22023, an option is unknown or has an invalid value; 55000, webhooks to this
                host are not allowed.
            UnsupportedError: options exclude each other.
        """
        if not isinstance(given, Mapping):
            raise UserError("options must be a JSON object")
        spec = cls.of(given)
        spec.view.check(settings)
        if spec.webhook is not None:
            webhook_urls.check_allowed(webhook_urls.parse(spec.webhook), settings.webhook_hosts)
        return spec

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Parse options from another process, which were validated before; see ``from_request``."""
        own = {name: given[name] for name in _OWN if given.get(name) is not None}
        others = {
            name: value
            for name, value in given.items()
            if name not in _OWN and not (name == "history" and value is None)
        }
        if others.get("block") is False:
            raise UnsupportedError(
                'option "block" of an assertion cannot be false',
                hint="Call create_assertion in another session.",
            )
        _check(own)
        view = ViewSpec.of({"history": KEPT, **others})
        return cls(**own, view=view, given=dict(given))


_OWN: Final = ("on_violation", "sample", "grace", "webhook")


def _check(own: Mapping[str, Any]) -> None:
    on_violation = own.get("on_violation", "notify")
    if on_violation not in get_args(OnViolation):
        raise UserError(
            f'invalid value for option "on_violation": {json_text(on_violation)}',
            hint=f"Values are: {', '.join(get_args(OnViolation))}.",
        )
    sample = own.get("sample", 0)
    if type(sample) is not int or not 0 <= sample <= SAMPLE_MAX:
        raise UserError(f'option "sample" must be a number of rows from 0 to {SAMPLE_MAX}')
    for name in ("grace", "webhook"):
        if not isinstance(own.get(name, ""), str):
            raise UserError(f'option "{name}" must be a text')
    if (on_violation == "notify") == ("webhook" in own):
        raise UserError(
            'options "on_violation" and "webhook" do not fit together',
            detail="A webhook needs a URL, and a URL is used only with on_violation webhook or"
            " both.",
            hint='Write for example {"on_violation": "both", "webhook":'
            ' "https://hooks.example.com/stock"}.',
        )
