"""The simulator's speed on one core: the amount of simulated protocol that a test run can execute."""

from __future__ import annotations

import statistics
import time

import simulator

from bench.figures import Figure, summary

SECTION = "simulator"

# The number of events that other simulators call one schedule.
SCHEDULE_EVENTS = 500


def measure(*, quick: bool) -> list[Figure]:
    """Measure some whole worlds, in CPU time of this process."""
    rates = []
    events = 0
    simulator.run(0)  # warm up
    for seed in range(1, 5 if quick else 31):
        began = time.process_time()
        world = simulator.run(seed)
        rates.append(world.events / (time.process_time() - began))
        events += world.events
    rate = statistics.median(rates)
    told = f"{len(rates)} worlds, {events:,} events; per second of CPU time"
    return [
        Figure(SECTION, "events per second and core", rate, "/s", 30_000, ">=", told, {"per_second": summary(rates)}),
        Figure(SECTION, f"schedules of {SCHEDULE_EVENTS} events", rate / SCHEDULE_EVENTS, "/s"),
    ]
