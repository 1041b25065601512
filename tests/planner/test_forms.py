"""The table of forms has those of every module, and each kind of node once."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter

from headrace.planner import scalars
from headrace.planner.scalars.forms import FORMS


def test_each_kind_has_one_form():
    names = [m.name for m in pkgutil.iter_modules(scalars.__path__)]
    modules = [importlib.import_module(f"{scalars.__name__}.{n}") for n in names]
    own = {m.__name__: m.FORMS for m in modules if hasattr(m, "FORMS")}
    del own["headrace.planner.scalars.forms"]
    assert len(own) > 5
    counted = Counter(kind for forms in own.values() for kind in forms)
    assert [kind for kind, times in counted.items() if times > 1] == []
    assert counted.keys() == FORMS.keys()
