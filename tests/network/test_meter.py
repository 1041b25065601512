"""Figures of a link: the best of the last probes, and the traffic of the last seconds."""

from __future__ import annotations

from headrace.network.meter import LinkFigures, LinkMeter
from headrace.network.probe import Probed

MB = 1_000_000


def test_nothing_is_known_before_it_is_measured() -> None:
    assert LinkMeter().figures(100.0) == LinkFigures(None, None, None, 0, 0)


def test_the_best_of_the_last_three_probes_counts() -> None:
    """A busy machine makes a link look slow, never fast."""
    meter = LinkMeter()
    for latency, rate in ((900, 2 * MB), (700, 9 * MB), (800, 3 * MB)):
        meter.probed(Probed(latency, rate))
    assert meter.figures(0.0) == LinkFigures(700, 9 * MB, 9 * MB, 0, 0)
    for latency, rate in ((5000, MB), (6000, 2 * MB), (7000, MB)):
        meter.probed(Probed(latency, rate))
    assert meter.figures(0.0) == LinkFigures(5000, 2 * MB, 9 * MB, 0, 0)


def test_traffic_is_of_the_last_ten_seconds() -> None:
    meter = LinkMeter()
    for second in range(100):
        meter.sent.add(1000, second)
        meter.received.add(2000, second + 0.5)
    figures = meter.figures(99.9)
    assert (figures.out_now, figures.in_now, figures.bandwidth) == (1000, 2000, None)
    assert (meter.figures(200.0).out_now, meter.sent.total) == (0, 100_000)
