"""Three bare Debians, set up as README says, and somebody who watches them: what fails calls, and says why."""

from __future__ import annotations

import html
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chaos.net import Net

from system.lab.debian import Host
from system.lab.processes import until
from system.packages.desk import PAGES_PORT, RULES, Browser, Desk
from system.packages.readme import HOSTS, THREE, three_hosts, type_into

METRICS_PORT, WEB_PORT = 9530, 8765

# Behind what `coordd init` has written, which ends in [cluster]. A short lease, because a ledger that was away grants
# nothing for a lease and 10 s.
CONFIG = """
lease = 8.0
renew_interval = 1.0
ledger_timeout = 1.0
kill_grace = 3.0

[metrics]
listen = "{address}:{metrics}"

[[hook]]
name = "page"
on = ["run.failure"]
url = "http://desk:{pages}/page"
"""

CAUSE = "OperationalError: warehouse-7 refused the connection"
JOBS = {
    "nightly": f'run_as = "etl"\n[command]\nargv = ["/bin/sh", "-c", "echo loading; echo \'{CAUSE}\' >&2; exit 3"]\n',
    "long": 'run_as = "etl"\n[command]\nargv = ["/bin/sleep", "4242"]\n',
}

# Of the rules of deploy/watch; in peace only the last one fires.
WATCHDOG = "CoorddWatchdog"


class Site:
    """The machines, and the desk."""

    def __init__(self, net: Net, hosts: dict[str, Host], desk: Desk) -> None:
        self.net, self.hosts, self.desk = net, hosts, desk

    def host_of(self, run: str) -> Host:
        """The machine that ran it."""
        node: str = self.hosts["edge-1"].run_of(run)["node"]
        return self.hosts[node.partition(".")[0]]


@pytest.fixture(scope="module")
def site(image: Path, package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with three_hosts(image, package, ["desk"]) as (net, hosts):
        type_into(hosts, THREE)
        for name, host in hosts.items():
            host.shell("useradd --create-home etl; echo etl > /etc/coordd/run_as.allow")
            with host.file("/etc/coordd/coordd.toml").open("a") as file:
                file.write(CONFIG.format(address=net.address(name), metrics=METRICS_PORT, pages=PAGES_PORT))
            for job, text in JOBS.items():
                host.file(f"/etc/coordd/jobs.d/{job}.toml").write_text(text)
            host.shell("coordd check-config && systemctl restart coordd")
        targets = [f"{net.address(name)}:{METRICS_PORT}" for name in HOSTS]
        with Desk(net.netns("desk"), targets, tmp_path_factory.mktemp("prometheus")) as desk:
            found = Site(net, hosts, desk)
            until(lambda: value(desk, "sum(coordd_cluster_ready)") == len(HOSTS), why="all are scraped, and ready")
            until(lambda: firing(desk) == {WATCHDOG}, why="nothing else fires in peace")
            desk.forget()
            yield found


def value(desk: Desk, query: str) -> float | None:
    """The one value that Prometheus has for a query; None if it has none."""
    found = desk.ask(query)
    return float(found[0]["value"][1]) if len(found) == 1 else None


def firing(desk: Desk) -> set[str]:
    return {one["metric"]["alertname"] for one in desk.ask('ALERTS{alertstate="firing"}')}


def test_a_failing_job_calls_once_and_the_cause_is_the_same_wherever_one_looks(site: Site) -> None:
    site.hosts["edge-2"].shell("coordctl run trigger nightly --id 1 --wait", check=False)
    run = site.hosts["edge-2"].run_of("nightly#1")
    assert (run["state"], run["exit_code"], run["attempt"]) == ("failure", 3, 0)
    reason = f"exit code 3: {CAUSE}"

    # Somebody is called, by a hook and by a rule.
    until(site.desk.pages, why="the hook has posted")
    [page] = site.desk.pages()
    assert (page["event"], page["run"], page["reason"]) == ("run.failure", "nightly#1", reason)
    assert reason in page["sentence"]
    said = ("CoorddRunFailed", "A run of nightly has failed, after all its attempts")
    until(lambda: said in site.desk.calls("ticket"), why="the alert is sent")

    # `why` on every node, the page on every node, the journal of the node that ran it: one and the same cause.
    whys = {host.ctl("why", "nightly#1")["why"] for host in site.hosts.values()}
    assert len(whys) == 1
    [why] = whys
    assert sentence_of(site, "edge-1") == sentence_of(site, "edge-3") == why
    assert f": {reason}. " in why
    [entry] = journal(site.host_of("nightly#1"), "COORDD_RUN=nightly#1", "COORDD_EVENT=run.failed")
    assert entry["COORDD_REASON"] == reason
    assert entry["PRIORITY"] == "3"
    assert reason in entry["MESSAGE"]
    for name in HOSTS:
        assert CAUSE in site.hosts[name].shell("coordctl run logs nightly#1")
    assert len(site.desk.pages()) == 1, "once in the cluster"


def sentence_of(site: Site, name: str) -> str:
    """What the run's page says about it, on that machine."""
    host = site.hosts[name]
    host.shell(f"setsid -f coordctl web --port {WEB_PORT} > web.log 2>&1")
    log = host.file("/root/web.log")
    until(lambda: re.search(r"http://\S+token=\S+", log.read_text()), why="the pages are there")
    found = re.search(r"http://\S+token=\S+", log.read_text())
    assert found is not None
    page = Browser(site.net.netns(name), found[0]).page("runs/nightly%231")
    host.shell("pkill -f 'coordctl web'")
    [sentence] = re.findall(r'<p class="sentence">(.*?)</p>', page, re.DOTALL)
    assert CAUSE in html.unescape(page.replace(sentence, "")), "and in the table of attempts"
    return html.unescape(sentence)


def journal(host: Host, *matches: str) -> list[dict[str, Any]]:
    said = host.shell(f"journalctl --no-pager -u coordd -o json {' '.join(matches)}")
    return [json.loads(line) for line in said.splitlines()]


def test_a_run_of_another_user_is_in_systemds_tree_by_its_name(site: Site) -> None:
    site.hosts["edge-1"].shell("coordctl run trigger long --id 2026-11-23T02:00")
    run = "long#2026-11-23T02:00"
    until(lambda: site.hosts["edge-1"].run_of(run)["state"] == "started", why="it runs")
    host = site.host_of(run)
    name = host.shell("systemctl list-units --plain --no-legend 'coordd-run@long*' | cut -d' ' -f1")
    assert name.startswith("coordd-run@long_2026-11-23T02:00.0.")

    assert host.lab.show(name, "Description")["Description"].startswith("coordd run long_2026-11-23T02:00.0.")
    tree = host.shell("systemctl status --no-pager system.slice 2>&1", check=False)
    inside = tree.partition(name)[2]
    assert inside, tree
    program = inside.partition("program")[2].splitlines()[1]
    assert "/bin/sleep 4242" in program, tree
    status = host.shell("systemctl status --no-pager 'coordd-run@long*'", check=False)
    assert "coordd-run long_2026-11-23T02:00.0." in status
    assert host.shell("ps -o user= -p $(pgrep -x sleep)") == "etl"

    site.hosts["edge-3"].shell(f"coordctl run cancel '{run}'")
    until(lambda: site.hosts["edge-1"].run_of(run)["state"] == "revoked", why="it is cancelled")
    until(lambda: name not in host.shell("systemctl status --no-pager system.slice", check=False), why="it is gone")


@pytest.mark.hosts
def test_a_cluster_without_its_ledger_calls(site: Site) -> None:
    site.hosts["edge-1"].shell("systemctl stop redis-server")
    said = ("CoorddLedgerDown", "No node of prod reaches the ledger; nothing new starts")
    until(lambda: said in site.desk.calls("page"), why="the alert is sent")

    site.hosts["edge-1"].shell("systemctl start redis-server")
    until(lambda: "CoorddLedgerDown" not in firing(site.desk), why="it is over")
    until(lambda: site.hosts["edge-2"].ctl("status")["ready"]["cluster"], why="it is used again")


def test_a_dead_cluster_calls(site: Site, tmp_path: Path) -> None:
    """The last test here: all three machines lose their power."""
    before = site.desk.ask('{job="coordd",__name__=~"up|coordd_.*"}')
    assert site.desk.calls("page") <= {("CoorddLedgerDown", "No node of prod reaches the ledger; nothing new starts")}
    for host in site.hosts.values():
        host.lab.down()

    said = ("CoorddAbsent", "No node of any cluster is scraped")
    until(lambda: said in site.desk.calls("page"), why="the alert is sent")
    down = {("CoorddNodeDown", f"The daemon on {site.net.address(n)}:{METRICS_PORT} does not answer") for n in HOSTS}
    until(lambda: down <= site.desk.calls("ticket"), why="each node is named")

    # The rules as they are, with their minutes, over what was scraped: ten minutes of it, and then nothing.
    cases = tmp_path / "cases.json"
    cases.write_text(json.dumps(as_cases(before)))
    done = subprocess.run(["promtool", "test", "rules", cases], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def as_cases(scraped: list[dict[str, Any]]) -> dict[str, Any]:
    """A test for promtool: for ten minutes the values that were scraped, and then none, but that `up` is 0."""
    series = []
    for one in scraped:
        labels = ",".join([f"{key}={json.dumps(text)}" for key, text in one["metric"].items() if key != "__name__"])
        is_up = one["metric"]["__name__"] == "up"
        values = f"{one['value'][1]}x10 {'0x10' if is_up else 'stale'}"
        series.append({"series": f"{one['metric']['__name__']}{{{labels}}}", "values": values})
    assert any("coordd_cluster_ready" in one["series"] for one in series)
    letters = [one for one in scraped if one["metric"]["__name__"] == "coordd_dead_letters" and one["value"][1] != "0"]
    given_up = {"CoorddRunGivenUp": 1} if letters else {}  # the run of the first test, which nobody has replayed
    wanted = {
        9: {WATCHDOG: 1, **given_up},
        14: {WATCHDOG: 1},
        17: {WATCHDOG: 1, "CoorddAbsent": 1, "CoorddNodeDown": len(HOSTS)},
    }
    asked = [
        {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": count} for name, count in alerts.items()],
        }
        for minute, alerts in wanted.items()
    ]
    return {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": asked}],
    }
