"""A small round of `make arrivals`: files in bursts, and the nodes that poll are killed."""

from __future__ import annotations

from arrivals.play import Plan, play


def test_a_small_round_of_arrivals_has_one_run_for_each_file() -> None:
    verdict = play(Plan(seed=7, files=40, nodes=3, kill_every_s=2.0))
    assert verdict.violations == []
    assert verdict.counts["kills"] >= 1
