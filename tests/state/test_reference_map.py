"""The reference of the versioned map against the expected values of requirements.md 3.3.

These rows prove the reference only; the compiled map is then compared with the reference.
"""

from __future__ import annotations

import pytest

from tests.state.reference_map import ReferenceMap

K = b"k"


@pytest.mark.parametrize(
    ("snapshot", "value"),
    [(9, b"8"), (8, b"4"), (5, b"4"), (4, b"2"), (3, b"2"), (2, None)],
)
def test_value_belonging_to_snapshot(snapshot, value) -> None:
    m = ReferenceMap()
    m.chains[K] = [(8, b"8"), (4, b"4"), (2, b"2")]
    assert m.read(K, snapshot) == value


def test_prune_keeps_the_newest_finished_version() -> None:
    m = ReferenceMap()
    m.chains[K] = [(8, b"8"), (4, b"4"), (2, b"2")]
    m.finished, m.running = 5, {6: 1, 9: 1}
    assert m.iterate(9) == [(K, b"8")]
    assert [v for v, _ in m.chains[K]] == [8, 4]
    assert m.read(K, 6) == b"4"


def test_first_write_after_a_snapshot_copies_the_second_replaces() -> None:
    m = ReferenceMap()
    m.put(K, b"a")
    m.put(K, b"b")
    assert len(m.chains[K]) == 1
    m.snapshot()
    m.put(K, b"c")
    m.put(K, b"d")
    assert m.chains[K] == [(1, b"d"), (0, b"b")]


def test_removal_is_logical_while_a_snapshot_runs() -> None:
    m = ReferenceMap()
    m.put(K, b"old")
    s = m.snapshot()
    m.remove(K)
    m.remove(K)
    assert (m.size(), m.allocations()) == (0, 3)
    m.put(K, b"new")
    assert m.allocations() == 3 and m.read(K, s) == b"old"
    m.release(s)
    m.remove(K)
    assert m.allocations() == 0


def test_snapshots_finished_out_of_order() -> None:
    m = ReferenceMap()
    for i in range(4):
        m.put(K, b"%d" % i)
        m.snapshot()
    m.snapshot()
    m.snapshot()
    seen = []
    for s in (1, 3, 2, 4, 5, 6):
        m.pruning = {K} if s == 4 else set()
        value = m.iterate(s)[0][1]
        m.release(s)
        chain = "".join(v.decode() for _, v in m.chains[K])
        seen.append((value, chain, m.finished, m.allocations()))
    assert seen == [
        (b"0", "3210", 1, 5),
        (b"2", "321", 1, 4),
        (b"1", "321", 3, 4),
        (b"3", "321", 4, 4),
        (b"3", "3", 5, 2),
        (b"3", "3", 6, 2),
    ]


@pytest.mark.parametrize(("ratio", "left"), [(0.0, 0), (0.2, 20)])
def test_next_snapshot_deletes_the_excess(ratio, left) -> None:
    m = ReferenceMap(ratio)
    for i in range(100):
        m.put(b"%03d" % i, b"v")
    s = m.snapshot()
    for i in range(100):
        m.remove(b"%03d" % i)
    assert (m.size(), len(m.chains), m.allocations()) == (0, 100, 300)
    m.release(s)
    assert m.allocations() == 300
    m.snapshot()
    assert len(m.chains) == left
