"""Samples of the processes: bounded, exact, and right over restarts."""

from __future__ import annotations

import os

from headrace.console.host_interface import ProcessUsage
from headrace.console.process_samples import (
    COARSE_EVERY,
    COARSE_KEPT,
    FINE_KEPT,
    PROCESSES_MAX,
    ProcessSamples,
)
from headrace.server.health import _usage


def used(name, pid, cpu_s, memory=100):
    return ProcessUsage(name, pid, cpu_s, memory)


def test_the_share_of_a_processor_since_the_sample_before():
    samples = ProcessSamples()
    for at, cpu in ((100, 1.0), (110, 6.0), (120, 6.0)):
        samples.add(at, [used("worker", 7, cpu)])
    told = samples.fine()
    assert told["at"] == [100, 110, 120]
    assert told["of"]["worker"]["cpu"] == [None, 0.5, 0.0]


def test_a_process_that_restarts_comes_and_goes():
    samples = ProcessSamples()
    samples.add(100, [used("worker", 7, 50.0)])
    samples.add(110, [used("worker", 8, 1.0), used("worker e1", 9, 0.0)])
    samples.add(120, [used("worker", 8, 2.0)])
    told = samples.fine()["of"]
    # The counter of the new process is no difference to that of the old one.
    assert told["worker"]["cpu"] == [None, None, 0.1]
    assert told["worker e1"]["cpu"] == [None, None, None]
    assert told["worker e1"]["memory"] == [None, 100, None]


def test_coarse_points_have_the_mean_and_the_peak():
    samples = ProcessSamples()
    for n in range(COARSE_EVERY + 1):
        samples.add(10 * n, [used("worker", 7, n * 2.0, 900 if n == 3 else 100)])
    told = samples.coarse()
    assert told["at"] == [0, 10 * COARSE_EVERY]
    assert told["of"]["worker"] == {"cpu": [None, 0.2], "memory": [100, 900]}


def test_they_are_bounded():
    samples = ProcessSamples()
    for n in range(COARSE_EVERY * (COARSE_KEPT + 5)):
        # Each time other names, as executors that are started and ended have.
        samples.add(10 * n, [used(f"e{n}-{k}", n + 1, 0.0) for k in range(PROCESSES_MAX + 9)])
    assert len(samples.fine()["at"]) == FINE_KEPT
    assert len(samples.coarse()["at"]) == COARSE_KEPT
    assert len(samples.fine()["of"]) == FINE_KEPT * PROCESSES_MAX


def test_a_process_of_this_computer_is_read():
    mine = _usage("me", os.getpid())
    assert mine is not None
    assert mine.cpu_s > 0
    assert mine.memory_bytes > 1 << 20
    assert _usage("none", None) is None
    assert _usage("none", 2**22 + 1) is None
