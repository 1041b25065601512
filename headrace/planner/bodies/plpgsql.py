"""Reads the body of a PL/pgSQL function of simple statements.

PL/pgSQL splits its text at keywords and semicolons, and passes each expression to SQL with its
variables as parameters.  ``parse`` does the same for statements that change only variables; any
other statement is refused.  As in PL/pgSQL's own scanner, a keyword outside parentheses always ends
an expression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from headrace.errors import UnsupportedError
from headrace.planner.bodies import statements as st
from headrace.planner.bodies.routines import Routine
from headrace.planner.bodies.statements import Body, Expression, Statement
from headrace.planner.bodies.twin import Variable
from headrace.postgres import tokens
from headrace.types import BOOL, INT4, TEXT

_LEVELS: Final = ("debug", "log", "info", "notice", "warning", "exception")
_OPENING, _CLOSING = ("(", "["), (")", "]")
_END: Final = ""
"""The token after the last one."""
ANY: Final = -1
"""Target of an expression whose value is used unconverted, or as text."""
ELEMENT: Final = -2
"""The value is an array, whose elements are assigned to the variable ``Expression.loop``."""
NESTING_MAX: Final = 50
FOUND: Final = "found"
"""The variable with whether the last query had a row."""


def parse(routine: Routine, type_of: Callable[[str], int | None]) -> Body:
    """Return the parsed body of the PL/pgSQL function ``routine``.

    ``type_of`` returns the OID of the type that a declaration names.

    Raises:
        UnsupportedError: the body has a statement that is not known to be harmless.
    """
    try:
        return _Parser(routine, type_of).run()
    except tokens.Unreadable as error:
        raise UnsupportedError("its body cannot be read") from error


class _Reader:
    """Tokens of a body, one after the other."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(tokens.scan(text))
        self._at = 0

    def _raw(self, ahead: int = 0) -> str:
        place = self._at + ahead
        if place >= len(self._tokens):
            return _END
        return self._text[self._tokens[place].start : self._tokens[place].end]

    def _word(self, ahead: int = 0) -> str:
        """Return the token in lower case; a quoted name keeps its quotes and is no keyword."""
        return self._raw(ahead).lower()

    def _next(self) -> str:
        word = self._word()
        self._at += 1
        return word

    def _accept(self, *words: str) -> bool:
        if all(self._word(i) == word for i, word in enumerate(words)):
            self._at += len(words)
            return True
        return False

    def _expect(self, *words: str) -> None:
        if not self._accept(*words):
            self._unknown()

    def _unknown(self) -> NoReturn:
        shown = self._raw() or "end of text"
        raise UnsupportedError(f'its body has an unsupported statement at "{shown}"')

    def _identifier(self) -> str:
        if self._at >= len(self._tokens) or self._tokens[self._at].kind not in ("word", "quoted"):
            self._unknown()
        found = tokens.name(self._raw())
        self._at += 1
        return found

    def _until(self, *ends: str) -> str:
        """Return the text up to the first of ``ends`` outside parentheses, which stays unread."""
        first, depth = self._at, 0
        while depth or self._word() not in ends:
            word = self._word()
            if word == _END:
                self._unknown()
            depth += (word in _OPENING) - (word in _CLOSING)
            if depth < 0 or (word == ";" and ";" not in ends):
                self._unknown()
            self._at += 1
        return self._span(first, self._at)

    def _span(self, first: int, end: int) -> str:
        if first >= end:
            self._unknown()
        return self._text[self._tokens[first].start : self._tokens[end - 1].end]


class _Parser(_Reader):
    """Statements of PL/pgSQL."""

    def __init__(self, routine: Routine, type_of: Callable[[str], int | None]) -> None:
        super().__init__(routine.text)
        self._routine = routine
        self._type_of = type_of
        self._depth = 0
        self._found: list[Expression] = []
        # Parameters that only go in come first: $n is the n-th of all parameters.
        outputs = tuple(p for p in routine.outputs if p not in routine.inputs)
        self._scope = (*routine.inputs, *outputs, Variable(FOUND, BOOL))
        self._names = {p.name for p in self._scope if p.name}
        """Names of all variables so far, also of those whose block has ended."""
        if outputs and any(token.kind == "parameter" for token in self._tokens):
            raise UnsupportedError("its body has numbered parameters beside OUT parameters")

    def run(self) -> Body:
        block = self._block()
        self._accept(";")
        if self._word() != _END:
            self._unknown()
        return Body((block,), self._found)

    # -- expressions and variables

    def _add(self, text: str, targets: tuple[int, ...] | None, loop: int = 0) -> Expression:
        found = Expression(text, self._scope, targets, loop)
        self._found.append(found)
        return found

    def _value(self, target: int | None, *ends: str) -> Expression:
        """Read an expression up to ``ends``, assigned to a variable of type ``target``."""
        text = self._until(*ends)
        return self._add(f"SELECT {text}", None if target is None else (target,))

    def _variable(self) -> Variable:
        called = self._identifier()
        found = next((p for p in reversed(self._scope) if p.name == called), None)
        if found is None or self._word() in (".", "["):
            self._unknown()
        return found

    @contextmanager
    def _inside(self, *more: Variable) -> Iterator[None]:
        """Enter a nested scope, in which ``more`` hide variables of the same names."""
        outer, names = self._scope, {p.name for p in more}
        if names & {p.name for p in self._routine.inputs}:
            self._unknown()  # The parameter keeps its number.
        self._scope = (*(p for p in outer if p.name not in names), *more)
        self._depth += 1
        if self._depth > NESTING_MAX:
            self._unknown()
        yield
        self._depth -= 1
        self._scope = outer

    # -- statements

    def _block(self) -> st.Block:
        declared: list[Statement] = []
        with self._inside():
            if self._accept("declare"):
                while self._word() != "begin":
                    declared.append(self._declaration())
            self._expect("begin")
            inside = self._statements("end")
            self._expect("end")
        return st.Block((*declared, *inside))

    def _declaration(self) -> st.Declaration:
        called = self._identifier()
        self._accept("constant")
        first = self._at
        while self._word() not in (";", ":=", "=", "default", "not", "collate"):
            kind = self._tokens[self._at].kind if self._at < len(self._tokens) else "end"
            if kind not in ("word", "quoted", "number") and self._raw() not in (*".,()[]",):
                self._unknown()
            self._at += 1
        text = self._span(first, self._at)
        declared = self._type_of(text)
        if declared is None:
            self._unknown()
        not_null = self._accept("not", "null")
        value = None
        if self._accept(":=") or self._accept("=") or self._accept("default"):
            value = self._value(declared, ";")
        self._expect(";")
        if any(p.name == called for p in self._routine.inputs):
            self._unknown()
        kept = tuple(p for p in self._scope if p.name != called)
        self._scope = (*kept, Variable(called, declared))
        hides = called in self._names
        self._names.add(called)
        return st.Declaration(called, text, value, not_null, hides)

    def _statements(self, *ends: str) -> tuple[Statement, ...]:
        found: list[Statement] = []
        while self._word() not in ends:
            found.append(self._statement())
        return tuple(found)

    def _statement(self) -> Statement:
        found: Statement
        if self._word(1) in (":=", "="):
            target = self._variable()
            self._at += 1
            found = st.Assignment(target.name, self._value(target.type, ";"))
            self._expect(";")
            return found
        known: dict[str, Callable[[], Statement]] = {
            "if": self._if,
            "case": self._case,
            "perform": self._perform,
            "return": self._return,
            "select": self._select,
            "with": self._select,
        }
        others: dict[str, Callable[[], None]] = {
            "while": self._while,
            "loop": self._loop,
            "for": self._for,
            "foreach": self._foreach,
            "exit": self._leave,
            "continue": self._leave,
            "raise": self._raise,
        }
        word = self._word()
        if word in ("declare", "begin"):
            found = self._block()
        elif self._accept("null"):
            found = st.Null()
        elif word in known:
            if word not in ("select", "with"):
                self._at += 1
            found = known[word]()
        elif word in others:
            self._at += 1
            others[word]()
            found = st.Other(word.upper())
        else:
            self._unknown()
        self._expect(";")
        return found

    def _if(self) -> st.Conditional:
        arms = [self._arm()]
        while self._accept("elsif") or self._accept("elseif"):
            arms.append(self._arm())
        otherwise = self._statements("end") if self._accept("else") else ()
        self._expect("end", "if")
        return st.Conditional(tuple(arms), otherwise)

    def _arm(self) -> tuple[Expression, tuple[Statement, ...]]:
        condition = self._value(BOOL, "then")
        self._expect("then")
        return condition, self._statements("elsif", "elseif", "else", "end")

    def _case(self) -> Statement:
        compared = "" if self._word() == "when" else self._until("when")
        arms = []
        while self._accept("when"):
            text = self._until("then")
            # A searched value is compared as IN does.
            text = f"SELECT ({compared}) IN ({text})" if compared else f"SELECT {text}"
            condition = self._add(text, (BOOL,))
            self._expect("then")
            arms.append((condition, self._statements("when", "else", "end")))
        otherwise = self._statements("end") if self._accept("else") else None
        self._expect("end", "case")
        return st.Other("CASE") if compared else st.Conditional(tuple(arms), otherwise)

    def _while(self) -> None:
        self._value(BOOL, "loop")
        self._expect("loop")
        self._loop()

    def _loop(self) -> None:
        with self._inside():
            self._statements("end")
            self._expect("end", "loop")

    def _for(self) -> None:
        called = self._identifier()
        self._expect("in")
        self._accept("reverse")
        self._value(INT4, "..", "loop")
        self._expect("..")
        self._value(INT4, "by", "loop")
        if self._accept("by"):
            self._value(INT4, "loop")
        self._expect("loop")
        with self._inside(Variable(called, INT4)):
            self._loop()

    def _foreach(self) -> None:
        target = self._variable()
        self._expect("in", "array")
        self._add(f"SELECT {self._until('loop')}", (ELEMENT,), target.type)
        self._expect("loop")
        self._loop()

    def _leave(self) -> None:
        if self._accept("when"):
            self._value(BOOL, ";")

    def _return(self) -> Statement:
        routine = self._routine
        if self._accept("query"):
            text = self._until(";")
            if text.split(None, 1)[0].lower() not in ("select", "with", "values"):
                self._unknown()
            columns = tuple(p.type for p in routine.outputs) or (routine.result,)
            return st.ReturnQuery(self._add(text, columns))
        more = self._accept("next")
        if more and not routine.returns_set:
            self._unknown()
        value = None if self._word() == ";" else self._value(routine.result, ";")
        return st.Other("RETURN NEXT") if more else st.Return(value)

    def _perform(self) -> st.Perform:
        return st.Perform(self._value(None, ";"))

    def _raise(self) -> None:
        if self._word() == ";":
            return
        if self._word() in _LEVELS:
            self._at += 1
        if self._accept("sqlstate"):
            self._at += 1
        elif self._at < len(self._tokens) and self._tokens[self._at].kind in tokens.STRINGS:
            self._at += 1
            while self._accept(","):
                self._value(ANY, ",", "using", ";")
        elif self._word() not in ("using", ";"):
            self._identifier()  # A condition.
        if self._accept("using"):
            while True:
                self._identifier()
                if not (self._accept("=") or self._accept(":=")):
                    self._unknown()
                self._value(TEXT, ",", ";")
                if not self._accept(","):
                    return

    def _select(self) -> st.Into:
        """Read a query whose row is assigned INTO variables."""
        first, depth = self._at, 0
        while depth or self._word() != "into":
            word = self._word()
            if word in (_END, ";"):
                self._unknown()
            depth += (word in _OPENING) - (word in _CLOSING)
            self._at += 1
        before = self._span(first, self._at)
        self._at += 1
        strict = self._accept("strict")
        targets = [self._variable()]
        while self._accept(","):
            targets.append(self._variable())
        behind = "" if self._word() == ";" else self._until(";")
        query = self._add(f"{before} {behind}", tuple(p.type for p in targets))
        return st.Into(query, tuple(p.name for p in targets), strict)
