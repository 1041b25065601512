"""Prometheus text (the port: tests/console)."""

from __future__ import annotations

from headrace.server.health import Sample, render


def test_render():
    samples = [
        Sample("a", 1, (("view", 'x"\\\n'),)),
        Sample("b", 2.5, (), "counter"),
        Sample("a", 12_345_678_901, (("view", "y"),)),
    ]
    assert render(samples) == (
        '# TYPE a gauge\na{view="x\\"\\\\\\n"} 1\na{view="y"} 12345678901\n'
        "# TYPE b counter\nb 2.5\n"
    )
