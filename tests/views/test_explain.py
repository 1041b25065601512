"""How rows go on from each node, as explain_view tells it."""

from __future__ import annotations

from headrace.views.explain import with_edges

PLAN = """\
sink_1 Sink (g integer) cost: O(changed result rows)
  reduce_1 Reduce [max(x)] by [0] where "a
b" (g integer) state: one entry per group
    union_1 Union (g integer) state: none
      map_1 Map (g integer) state: none
        join_1 Join on 0 = 0 (g integer) state: all rows of both sides
      join_1 Join (shared, see above)
      source_9 Source public.t by key id (g integer) state: all rows"""
ALONE = """\
sink_1 Sink (g integer) cost: O(changed result rows)
  reduce_1 Reduce [max(x)] by [0] where "a
b" (g integer) state: one entry per group; edge: synchronous
    union_1 Union (g integer) state: none; edge: synchronous
      map_1 Map (g integer) state: none; edge: synchronous
        join_1 Join on 0 = 0 (g integer) state: all rows of both sides; edge: synchronous
      join_1 Join (shared, see above); edge: synchronous
      source_9 Source public.t by key id (g integer) state: all rows; edge: synchronous"""
SHARING = """\
sink_1 Sink (g integer) cost: O(changed result rows)
  reduce_1 Reduce [max(x)] by [0] where "a
b" (g integer) state: one entry per group; edge: synchronous
    union_1 Union (g integer) state: none; edge: synchronous
      map_1 Map (g integer) state: none; edge: buffered in the queue of subplan 128;\
 kept once, shared with "public"."w"
        join_1 Join on 0 = 0 (g integer) state: all rows of both sides
      join_1 Join (shared, see above); edge: synchronous
      source_9 Source public.t by key id (g integer) state: all rows; edge: buffered in the queue\
 of subplan 7; kept once, shared with no other view now"""


def test_a_view_that_shares_nothing() -> None:
    assert with_edges(PLAN, {}) == ALONE


def test_a_view_that_shares() -> None:
    """Of what is below a shared node nothing is said: it is the subplan's."""
    buffered = {"map_1": (-128, ['"public"."w"']), "source_9": (-7, [])}
    assert with_edges(PLAN, buffered) == SHARING
