"""What the states of checks mean for jobs, and that a node abstains for one."""

from __future__ import annotations

from typing import Any

from support.small_cluster import Cluster, asked_for, job

from coordd.core.checks.check import Check, Use
from coordd.core.checks.reactions import abstentions, told, uses


def check(name: str = "room", **changes: Any) -> Check:
    return Check(name=name, kind="disk", path="/", **changes)


BAD = "unhealthy"


def test_a_job_has_its_own_checks_those_that_it_names_and_those_for_all_jobs() -> None:
    known = {"room": check(then="abstain"), "mem": check("mem")}
    own = check("own", job="sales", then="suspend")
    sales = job("sales", checks=(own,), uses=(Use("room", "warn"),))
    assert [(one.key, then) for one, then in uses(sales, known)] == [
        ("sales/own", "suspend"), ("room", "warn"), ("mem", "warn"),
    ]  # fmt: skip
    assert [(one.key, then) for one, then in uses(job("other"), known)] == [("room", "abstain"), ("mem", "warn")]
    assert list(uses(job("gone", uses=(Use("no-such"),)), {})) == []


def test_a_node_abstains_only_for_a_bad_check_that_concerns_it_and_never_from_hooks() -> None:
    jobs = {name: job(name) for name in ("sales", "hook~page")}
    known = {"room": check(then="abstain", scope="tag:edge")}
    assert abstentions(jobs, known, {"room": BAD}, ("edge",)) == {"sales": "check room is unhealthy"}
    assert abstentions(jobs, known, {"room": BAD}, ("core",)) == {}
    for state in ("healthy", "degraded", "unknown"):
        assert abstentions(jobs, known, {"room": state}, ("edge",)) == {}
    assert abstentions(jobs, {"room": check()}, {"room": BAD}, ()) == {}
    assert told(check(), "insecure", 'it says "x"' * 99).count('"') == 2
    assert len(told(check(), "insecure", "x" * 999)) < 200


def test_the_other_node_takes_the_run_and_the_first_one_says_why_not() -> None:
    cluster = Cluster("a", "b", jobs=[job()])
    cluster.wait(3.0)
    for name in ("a", "b"):
        other = {"a": "b", "b": "a"}[name]
        cluster.shells[name].node.abstaining.take({"sales": "check room is unhealthy"}, cluster.shells[name].now())
        cluster.trigger("a", asked_for(f"sales#{name}"))
        cluster.wait(2.0)
        assert cluster.launches(f"sales#{name}") == [(other, 0)]
        election = cluster.shells["a"].node.elections.by_id[f"sales#{name}/0"]
        [said] = [one.abstains for of, one in election.statements.items() if of.startswith(name)]
        assert said == "check room is unhealthy"
        cluster.end(other, f"sales#{name}")
        cluster.shells[name].node.abstaining.take({}, cluster.shells[name].now())
        cluster.wait(2.0)


def test_a_run_waits_while_all_nodes_abstain_and_starts_when_one_does_not_any_more() -> None:
    cluster = Cluster("a", "b", jobs=[job()])
    cluster.wait(3.0)
    for shell in cluster.shells.values():
        shell.node.abstaining.take({"sales": "check room is unhealthy"}, shell.now())
    cluster.trigger("a", asked_for("sales#1"))
    cluster.wait(60.0)
    assert cluster.launches("sales#1") == []
    assert "check room is unhealthy" in cluster.shells["b"].node.pursuits.pursuits["sales#1"].why
    cluster.shells["b"].node.abstaining.take({}, cluster.shells["b"].now())
    cluster.wait(15.0)
    assert cluster.launches("sales#1") == [("b", 0)]
