# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# mypy: disable-error-code="attr-defined,has-type,no-any-return,untyped-decorator,misc"
"""Interleaved searches: while one waits for memory, the others continue.

A search in a large map is a chain of cache misses, each a tenth of a microsecond, and each
address is known only when the previous node has arrived.  So a batch is cut into lanes, each a
part of the sorted keys with a separate finger search.  In turn, each lane prefetches its next node
and yields to the next lane.  By its next turn the node is in the cache.

For the writer's thread; no write may happen meanwhile.  This module works compiled only.
"""

from __future__ import annotations

import cython
from cython.cimports.headrace.state.map.arena import block
from cython.cimports.headrace.state.map.skipnodes import Nodes
from cython.cimports.headrace.state.map.skiptypes import (
    Lane,
    LaneRef,
    NodeRef,
    NodeRefs,
    Numbers,
    Path,
    Slice,
    SliceRef,
    compare,
    links,
    newest,
    node_at,
    prefetch,
)

_LANES_MAX = cython.declare(cython.size_t, 12)
_SMALL = cython.declare(cython.int, 4)  # maps with fewer levels are in the cache anyway


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
@cython.returns(cython.void)
def seek_many(
    map: Nodes,  # noqa: A002
    keys: SliceRef,
    count: cython.size_t,
    handles: Numbers,
    exact: cython.bint,
    befores: NodeRefs,
) -> None:
    """Set ``handles`` to the keys' nodes; 0: none.

    If not ``exact``, set them to the first nodes not before the keys.  ``befores``, if not NULL,
    gets the last nodes before the keys.  Keys may be in any order; ascending order is fast.
    """
    lanes = cython.declare(Lane[12])
    path = cython.declare(Path)
    i: cython.size_t
    lane: cython.size_t
    count_of_lanes: cython.size_t = count if count < _LANES_MAX else _LANES_MAX
    busy: cython.size_t = count_of_lanes
    if count < 2 or map.top < _SMALL:
        map.start(cython.address(path))
        for i in range(count):
            handles[i] = map.seek(cython.address(path), keys[i])
            if not exact:
                handles[i] = links(path.at[0])[0]
            if befores:
                befores[i] = path.at[0]
        return
    for lane in range(count_of_lanes):
        lanes[lane].position = count * lane // count_of_lanes
        lanes[lane].end = count * (lane + 1) // count_of_lanes
        map.start(cython.address(lanes[lane].path))
        _begin(map, cython.address(lanes[lane]), keys)
    while busy:
        lane = 0
        while lane < busy:
            if _advance(map, cython.address(lanes[lane]), keys, handles, exact, befores):
                lane += 1
            else:
                busy -= 1
                lanes[lane] = lanes[busy]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
@cython.returns(cython.void)
def _begin(map: Nodes, lane: LaneRef, keys: SliceRef) -> None:  # noqa: A002
    """Climb from the last key's path to the start of the next key's search; see ``seek``."""
    key: Slice = keys[lane.position]
    last: cython.int = map.top - 1
    level: cython.int = 0
    order: cython.int
    handle: cython.uint
    lane.stop = 0
    lane.equal = False
    if lane.path.at[0] != map.head and compare(lane.path.at[0], key) >= 0:
        map.start(cython.address(lane.path))
        level = last
    else:
        while level < last:
            handle = links(lane.path.at[level])[level]
            if handle == 0:
                break
            order = compare(node_at(map.arena, handle), key)
            if order >= 0:
                lane.stop = handle
                lane.equal = order == 0
                break
            level += 1
    lane.level = level
    lane.node = lane.path.at[level]
    lane.following = links(lane.node)[level]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _advance(
    map: Nodes,  # noqa: A002
    lane: LaneRef,
    keys: SliceRef,
    handles: Numbers,
    exact: cython.bint,
    befores: NodeRefs,
) -> cython.bint:
    """Continue up to the next node that may not be in the cache; False: the lane is done."""
    bases: cython.pointer[cython.p_uchar] = map.arena.bases
    shift: cython.uint = map.arena.shift
    mask: cython.uint = map.arena.mask
    node: NodeRef
    order: cython.int
    handle: cython.uint = lane.following
    if handle != lane.stop and handle != 0:
        node = cython.cast(NodeRef, block(bases, shift, mask, handle))
        order = compare(node, keys[lane.position])
        if order >= 0:
            lane.stop = handle
            lane.equal = order == 0
        else:
            lane.node = node
    while True:
        handle = links(lane.node)[lane.level]
        if handle != lane.stop and handle != 0:
            lane.following = handle
            prefetch(block(bases, shift, mask, handle))
            return True
        if lane.level == 0:
            lane.path.at[0] = lane.node
            # Here ``handle`` is 0 or ``lane.stop``.
            handles[lane.position] = handle if lane.equal or not exact else 0
            if befores:
                befores[lane.position] = lane.node
                if lane.node != map.head:
                    prefetch(newest(map.arena, lane.node))
            elif handle:
                prefetch(newest(map.arena, node_at(map.arena, handle)))
            lane.position += 1
            if lane.position == lane.end:
                return False
            _begin(map, lane, keys)
            continue
        if lane.node == lane.path.at[lane.level]:
            lane.node = lane.path.at[lane.level - 1]
        else:
            lane.path.at[lane.level] = lane.node
        lane.level -= 1
