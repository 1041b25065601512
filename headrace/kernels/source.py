"""Hot loops of the source collection: replay ops in stream order to the last row of each key."""

from __future__ import annotations

import cython

INSERT = 0
UPDATE = 1
DELETE = 2
TRUNCATE = 3

NO_ROW = -1
"""``after`` of a key that has no row any more."""
UNTOUCHED = -2
"""``after`` of a key whose row is unchanged."""

MISSING = 1
"""The row to change or delete does not exist."""
PRESENT = 2
"""The row to add exists already."""


def segments(
    ops: list[int],
    old_keys: list[bytes | None],
    new_keys: list[bytes | None],
    unchanged: list[bool] | None,
) -> list[int]:
    """Return where to cut the ops, so that the keys of each piece can be looked up together.

    A TRUNCATE is a separate piece.  An op with unchanged TOAST values needs its old row, so it may
    not follow an op on the same key within a piece.  The last cut is ``len(ops)``.
    """
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(ops)
    start: cython.Py_ssize_t = 0
    truncate: cython.int = TRUNCATE
    cuts: list[int] = []
    touched: set[bytes | None] = set()
    for i in range(n):
        op: cython.int = ops[i]
        if op == truncate:
            if i > start:
                cuts.append(i)
            cuts.append(i + 1)
            start = i + 1
            touched.clear()
            continue
        if unchanged is None:
            continue
        old = old_keys[i]
        if old is None:
            old = new_keys[i]
        if unchanged[i] and old in touched:
            cuts.append(i)
            start = i
            touched.clear()
        touched.add(old)
        touched.add(new_keys[i])
    if start < n:
        cuts.append(n)
    return cuts


def keyless(ops: list[int], old_keys: list[bytes | None], new_keys: list[bytes | None]) -> bool:
    """Return whether an INSERT or UPDATE has no new key, or a DELETE no old one."""
    i: cython.Py_ssize_t
    update: cython.int = UPDATE
    delete: cython.int = DELETE
    for i in range(len(ops)):
        op: cython.int = ops[i]
        if op <= update and new_keys[i] is None:
            return True
        if op == delete and old_keys[i] is None:
            return True
    return False


def touched_keys(
    ops: list[int], old_keys: list[bytes | None], new_keys: list[bytes | None], start: int, end: int
) -> dict[bytes, int]:
    """Assign numbers to the keys of ops ``start`` to ``end`` in first-seen order."""
    i: cython.Py_ssize_t
    delete: cython.int = DELETE
    slots: dict[bytes, int] = {}
    for i in range(start, end):
        old = old_keys[i]
        if old is not None and old not in slots:
            slots[old] = len(slots)
        op: cython.int = ops[i]
        if op != delete:
            new = new_keys[i]
            if new is not None and new not in slots:
                slots[new] = len(slots)
    return slots


def replay(
    ops: list[int],
    old_keys: list[bytes | None],
    new_keys: list[bytes | None],
    start: int,
    end: int,
    slots: dict[bytes, int],
    present: list[bool],
    partial: bool,
) -> tuple[list[int], int, int]:
    """Replay ops ``start`` to ``end`` in order.

    ``present`` flags keys with a row before.  With ``partial`` only some rows are known, so none
    counts as missing.  Returns, per slot, the op whose new row the key has afterwards (or
    ``NO_ROW``, ``UNTOUCHED``).  Then follow the position of the first wrong op and its error
    (``MISSING``, ``PRESENT``); -1 and 0 if there is none.
    """
    i: cython.Py_ssize_t
    insert: cython.int = INSERT
    delete: cython.int = DELETE
    after: list[int] = [UNTOUCHED] * len(slots)
    there: list[bool] = list(present)
    for i in range(start, end):
        op: cython.int = ops[i]
        if op != insert:
            old = old_keys[i]
            if old is None:
                old = new_keys[i]
            slot: cython.Py_ssize_t = slots[old]
            if not there[slot] and not partial:
                return after, i, MISSING
            there[slot] = False
            after[slot] = NO_ROW
        if op != delete:
            slot = slots[new_keys[i]]
            if there[slot]:
                return after, i, PRESENT
            there[slot] = True
            after[slot] = i
    return after, -1, 0


def changes(
    keys: list[bytes],
    before: list[bytes | None],
    after: list[int],
    rows: list[bytes],
    wanted: list[bool] | None,
    start: int,
) -> tuple[list[bytes], list[int], list[bytes], list[bytes | None]]:
    """Return the effect of a replay on the stored rows.

    ``rows`` are the new rows of the ops from ``start`` on; only the ``wanted`` ones are stored
    (None: all).  Returns the removed rows, the positions in ``rows`` of the added ones, and the
    keys and values to store (None deletes).  Keys whose row is unchanged are left out.
    """
    slot: cython.Py_ssize_t
    no_row: cython.Py_ssize_t = NO_ROW
    untouched: cython.Py_ssize_t = UNTOUCHED
    first: cython.Py_ssize_t = start
    went: list[bytes] = []
    came: list[int] = []
    put_keys: list[bytes] = []
    put_values: list[bytes | None] = []
    for slot in range(len(keys)):
        at: cython.Py_ssize_t = after[slot]
        if at == untouched:
            continue
        old = before[slot]
        new = None if at == no_row else rows[at - first]
        if wanted is not None and at != no_row and not wanted[at - first]:
            new = None
        if old == new:
            continue
        if old is not None:
            went.append(old)
        if new is not None:
            came.append(at - first)
        put_keys.append(keys[slot])
        put_values.append(new)
    return went, came, put_keys, put_values
