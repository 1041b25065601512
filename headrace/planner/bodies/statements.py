"""The statements of a PL/pgSQL body, as ``plpgsql.parse`` reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headrace.planner.bodies.twin import Variable


@dataclass(frozen=True, slots=True)
class Expression:
    """A statement of SQL, and the variables that its columns are assigned to."""

    text: str
    variables: tuple[Variable, ...]
    targets: tuple[int, ...] | None
    """OIDs of types; None: the columns are not assigned to anything."""
    loop: int = 0
    """Type of the variable of FOREACH."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """``name type [:= value]``."""

    name: str
    declared: str
    """The type as it is written."""
    value: Expression | None
    not_null: bool
    hides: bool
    """Whether another variable of the body has the name."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """``name := value``."""

    name: str
    value: Expression


@dataclass(frozen=True, slots=True)
class Into:
    """``SELECT … INTO names``."""

    query: Expression
    names: tuple[str, ...]
    strict: bool


@dataclass(frozen=True, slots=True)
class Perform:
    """``PERFORM …``: only FOUND is set."""

    query: Expression


@dataclass(frozen=True, slots=True)
class Conditional:
    """IF, or CASE without a compared value; ``otherwise`` is None for a CASE without ELSE."""

    arms: tuple[tuple[Expression, tuple[Statement, ...]], ...]
    otherwise: tuple[Statement, ...] | None


@dataclass(frozen=True, slots=True)
class Block:
    """Declarations and statements between BEGIN and END."""

    statements: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Return:
    """``RETURN [value]``."""

    value: Expression | None


@dataclass(frozen=True, slots=True)
class ReturnQuery:
    """``RETURN QUERY …``."""

    query: Expression


@dataclass(frozen=True, slots=True)
class Null:
    """``NULL``."""


@dataclass(frozen=True, slots=True)
class Other:
    """A statement of which only the expressions are analysed; ``word`` is its first word."""

    word: str


Statement: TypeAlias = (
    Declaration
    | Assignment
    | Into
    | Perform
    | Conditional
    | Block
    | Return
    | ReturnQuery
    | Null
    | Other
)


@dataclass(frozen=True, slots=True)
class Body:
    """A body: its statements, and every expression in them."""

    statements: tuple[Statement, ...]
    expressions: Sequence[Expression]
