"""A coordinator's emissions in the notation of the requirements."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.runtime.coordinator import Emission, EmitBatch


def words(emitted: Sequence[Emission]) -> str:
    """Format emissions as ``batch 1.0 2.0, commit 1.0``, or a dash if there are none."""
    out: list[str] = []
    for emission in emitted:
        kind = "batch" if isinstance(emission, EmitBatch) else "commit"
        told = f"{emission.txid}.{emission.attempt}"
        if out and out[-1].startswith(kind):
            out[-1] += f" {told}"
        else:
            out.append(f"{kind} {told}")
    return ", ".join(out) or "—"
