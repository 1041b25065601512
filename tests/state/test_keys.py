"""Physical keys of a batch: their form, and their order against that of Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernels import packed
from headrace.state.map import keygroups
from headrace.state.map.skipkeys import Keys
from tests.state.lists import SkipList

BEGINNINGS = (b"", b"\0", b"\0" * 8, b"\xff" * 9, b"g", b"common beginning", b"common beginning\0")
STRING = st.builds(bytes.__add__, st.sampled_from(BEGINNINGS), st.binary(max_size=10))
ALIKE = st.builds(bytes.__add__, st.just(b"g" + b"common" * 3), st.binary(max_size=3))
MANY = st.lists(STRING, max_size=40) | st.lists(ALIKE, max_size=40)


def ordered(keys: list[bytes], *, times: int = 1) -> list[bytes]:
    """Return the values of a map in its key order, each the last one put."""
    keys = keys * times
    values = [b"%d" % i for i in range(len(keys))]
    made = SkipList()
    made.put_many(keys, values)
    found = [pair for page in made.items(None) for pair in zip(*page, strict=True)]
    wanted = dict(zip(keys, values, strict=True))
    assert found == sorted(wanted.items()), "later duplicates win"
    assert made.get_many(keys[::-1])[0] == [wanted[key] for key in keys[::-1]]
    return [key for key, _ in found]


def sorted_by(keys: list[bytes], *, physical: bool = True) -> list[int]:
    """Return the caller's positions of the keys in the order of ``Keys``."""
    found = packed.pack(keys)
    made = Keys(found.data, found.bounds, physical=physical)
    assert len(made) == len(keys)
    return made.positions().tolist()


@given(MANY)
def test_keys_are_in_the_order_of_bytes_and_equal_ones_in_theirs(keys):
    assert sorted_by(keys) == sorted(range(len(keys)), key=keys.__getitem__)


@settings(max_examples=30)
@given(st.lists(STRING | ALIKE, min_size=1, max_size=40), st.integers(13, 40))
def test_many_keys_are_in_order_too(keys, times):
    many = [key + bytes((i % 7,)) for i in range(times) for key in keys]
    assert sorted_by(many) == sorted(range(len(many)), key=many.__getitem__)


def test_keys_of_all_groups_are_in_order():
    rng = np.random.default_rng(5)
    keys = [bytes(rng.integers(0, 256, rng.integers(0, 4), np.uint8)) for _ in range(3000)]
    assert sorted_by(keys) == sorted(range(3000), key=keys.__getitem__)
    physical = keygroups.physical(keys)
    assert sorted_by(keys, physical=False) == sorted(range(3000), key=physical.__getitem__)


@given(st.lists(st.tuples(STRING, STRING), max_size=20))
def test_physical_keys_are_group_key_and_row(pairs):
    keys, rows = packed.pack([k for k, _ in pairs]), packed.pack([r for _, r in pairs])
    made = Keys(keys.data, keys.bounds, rows.data, rows.bounds)
    groups = keygroups.physical([k for k, _ in pairs])
    wanted = [group + row for group, (_, row) in zip(groups, pairs, strict=True)]
    assert made.strings(list(range(len(pairs)))) == wanted
    assert made.positions().tolist() == sorted(range(len(pairs)), key=wanted.__getitem__)


@given(st.lists(STRING.map(lambda key: b"\7" + key), max_size=30))
def test_the_map_has_the_keys_in_order(keys):
    ordered(keys, times=2)


@pytest.mark.parametrize(
    "bounds",
    [([], None), ([0, 4], None), ([2, 1], None), ([-1, 1], None), ([0, 1], [0, 0, 0])],
)
def test_bounds_that_do_not_fit_are_refused(bounds):
    own, rest = (None if one is None else np.array(one, np.int64) for one in bounds)
    data = np.zeros(3, np.uint8)
    with pytest.raises(ValueError, match="packed"):
        Keys(data, own, *(() if rest is None else (data, rest)))
