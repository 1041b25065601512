"""The staged result of a population, as the worker reads it."""

from __future__ import annotations

import json

import pytest

from headrace.config import Settings
from headrace.errors import StateDamaged
from headrace.population import staging
from headrace.runtime import views
from headrace.state import loaded


def test_staged_state_of_another_format_is_not_read(tmp_path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert views.manifest(settings, 7) is None
    staged = staging.of_view(settings.staging_dir, 7)
    staged.make()
    staged.write_state("0", {"s": loaded.pieces([b"\x00k"], [b"v"])})
    staged.seal({"txid": 3, "lsn": 100})
    found = views.manifest(settings, 7)
    assert found is not None
    assert (found.txid, found.lsn) == (3, 100)
    assert found.runs == [staged.path / "state" / "s.0.sst"]
    path = staged.path / staging.MANIFEST
    facts = json.loads(path.read_text())
    for other in (facts | {"format": 1}, {k: facts[k] for k in facts if k != "format"}):
        path.write_text(json.dumps(other))
        with pytest.raises(StateDamaged):
            views.manifest(settings, 7)
