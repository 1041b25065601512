"""The last transaction that was received: the source must send it again, or it was restored.

A source that was restored from a snapshot of its disk has the same identity and timeline, and may
have written other changes over the same LSNs by the time the stream starts again.  Its slot is at a
position from before the snapshot, so a stream that begins at the last commit received repeats it,
unless the history is another one:

    slot ≤ commit: sent again  ─► as received: the history is the same up to its end
                               ─► otherwise: the views' states belong to another history
    slot > commit: everything before was confirmed by us in this history, so there is no question

Transactions without published rows are neither received nor repeated.  One that only carries
changes of other databases (``carried.py``) is repeated: logical messages are sent for good once
there has been a source.
"""

from __future__ import annotations

from headrace.errors import ContinuityLost
from headrace.kernels.pgoutput import Commit
from headrace.types import format_lsn


def repeats(expected: Commit, commit: Commit) -> bool:
    """Return whether ``commit``, which was received, is ``expected``; False: it comes before it.

    Raises:
        ContinuityLost: it is neither.
    """
    if commit.commit_lsn < expected.commit_lsn:
        return False
    if commit != expected:
        raise missing(expected)
    return True


def missing(expected: Commit) -> ContinuityLost:
    """Return the error for a source that does not have ``expected``."""
    return ContinuityLost(
        "the source has another history than the state of the views: it was restored",
        detail="It does not have the transaction that committed at"
        f" {format_lsn(expected.commit_lsn)}.",
    )
