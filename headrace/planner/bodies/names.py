"""Names in texts of PL/pgSQL that may mean a variable."""

from __future__ import annotations

from headrace.postgres import tokens


def other_name(name: str) -> str:
    """Return a name that cannot occur in a text."""
    return f"\x01{name}"


def renamed(text: str, variables: set[str], function: str, parameters: set[str]) -> str:
    """Return ``text`` with its variables renamed by ``other_name``.

    A name after a dot is a column, except for a parameter after the function's name.  A name before
    a dot is a table, and one before a parenthesis a function.  A name after AS is a label, and one
    after FROM or JOIN a table.
    """
    found = list(tokens.scan(text))
    words = [text[token.start : token.end].lower() for token in found]
    called = [
        tokens.name(text[token.start : token.end]) if token.kind in ("word", "quoted") else ""
        for token in found
    ]
    tables = _tables(words)
    out: list[str] = []
    at = 0
    for n, token in enumerate(found):
        before = words[n - 1] if n else ""
        behind = words[n + 1] if n + 1 < len(words) else ""
        own = before == "." and called[n - 2] == function and words[n - 3 : n - 2] != ["."]
        plain = before not in (".", "as") or (own and called[n] in parameters)
        plain = plain and behind not in (".", "(") and n not in tables
        if called[n] in variables and plain:
            out += (text[at : token.start], tokens.identifier(other_name(called[n])))
            at = token.end
    return "".join((*out, text[at:]))


def _tables(words: list[str]) -> set[int]:
    """Return the indexes of tokens after JOIN, and after a FROM that begins a clause.

    FROM also occurs in IS DISTINCT FROM, and in extract(… FROM …) and the like.
    """
    found: set[int] = set()
    groups = ["select"]
    for n, word in enumerate(words):
        if word == "(":
            groups.append(words[n + 1] if n + 1 < len(words) else "")
        elif word == ")" and len(groups) > 1:
            groups.pop()
        clause = groups[-1] in ("select", "with") and words[n - 1 : n] != ["distinct"]
        if word == "join" or (word == "from" and clause):
            found.add(n + 1)
    return found


def is_string(text: str) -> bool:
    """Return whether ``text`` is a quoted string literal."""
    found = list(tokens.scan(text))
    return len(found) == 1 and found[0].kind in tokens.STRINGS and found[0].kind != "bits"
