"""What the pages answer: to their person, to strangers, to bad requests, and while the daemon is away."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
import time
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from support.fake_daemon import RUN, refusal

from cli.web.conftest import JOB, Pages
from coordd.cli import web
from coordd.cli.web import http, models, source
from coordd.cli.web.http import BODY_BYTES_MAX, CONNECTIONS_MAX, POLICY
from coordd.cli.web.site import PAGES
from coordd.core.jobs.job import IDENT

ADDRESSES = ("/", "/jobs", "/jobs/j", "/jobs/j/2026-10-03", "/runs", "/runs/j%231", "/cluster")


def test_there_is_an_address_for_each_page() -> None:
    assert len(ADDRESSES) == len(PAGES)


@pytest.mark.parametrize("address", [*ADDRESSES, "/live?page=/", "/nothing"])
def test_without_a_session_nothing_is_told(pages: Pages, address: str) -> None:
    status, text = pages.get(address)
    assert status == 403
    assert "coordctl web --print-token" in text
    assert pages.daemon.asked == []


@pytest.mark.parametrize("address", ADDRESSES)
def test_each_page_is_whole_without_a_script(pages: Pages, address: str) -> None:
    pages.enter()
    answer, text = pages.ask("GET", address)
    assert answer.status == 200, text
    assert answer.getheader("Content-Security-Policy") == POLICY
    assert answer.getheader("Cache-Control") == "no-store"
    assert "seen from edge-1" in text
    assert "you are ann (operator)" in text
    assert "style=" not in text
    assert "onclick" not in text
    assert "http://" not in text.replace('xmlns="http://www.w3.org/2000/svg"', ""), "nothing is loaded from elsewhere"


def test_what_jobs_and_programs_say_is_text(pages: Pages) -> None:
    pages.enter()
    _, text = pages.get("/runs/j%231")
    assert "&lt;b&gt;two&lt;/b&gt;\\x1b[31m" in text
    assert "j#1 &lt;ran&gt; on edge-1." in text


def test_a_step_and_a_fire_time_of_which_nothing_is_known_print_no_none(pages: Pages) -> None:
    step = {"at": None, "node": "edge-1.example.com", "what": "granted", "detail": "attempt 0"}
    pages.daemon.answers["why"] = {"id": "j#1", "sentence": "it ran", "timeline": [step], "unheard": []}
    fire = {"fire_time": "2026-10-03T02:00:00Z", "decision": None, "reason": "not recorded: too old", "run": None}
    pages.daemon.answers["job.fires"] = [fire]
    pages.enter()
    _, text = pages.get("/runs/j%231")
    assert "<tr><td></td><td>edge-1.example.com</td><td>granted</td>" in text
    _, text = pages.get("/jobs/j/2026-10-03")
    assert ("not known" in text, "pending" in text) == (True, False)


def test_a_cookie_is_for_the_root_alone_and_nobody_is_told_of_the_root(pages: Pages) -> None:
    root = pages.door.root
    for method, path in (("GET", "/"), ("GET", f"/?token={pages.door.token()}"), ("GET", root), ("POST", "/do/resume")):
        answer, text = pages.anywhere(method, path)
        assert (answer.status, "coordctl web --print-token" in text, root in text) == (403, True, False), path
        assert root not in str(answer.getheaders())
        assert answer.getheader("Set-Cookie") is None
    answer, _ = pages.ask("GET", f"/?token={pages.door.token()}")
    assert str(answer.getheader("Set-Cookie")).endswith(f"; Path={root}/")
    pages.cookie = str(answer.getheader("Set-Cookie")).partition(";")[0]
    for path in (*ADDRESSES, "/live?page=/", "/x/jobs"):
        answer, text = pages.anywhere("GET", path)
        assert (answer.status, root in text) == (403, False), "the cookie is of no use elsewhere"
    assert pages.daemon.asked == []


def test_strangers_who_know_the_root_are_not_told_of_it_again(pages: Pages) -> None:
    for path in ("/", "/jobs", "/?token=none"):
        status, text = pages.get(path)
        assert (status, pages.door.root in text) == (403, False)


@pytest.mark.parametrize("address", [*ADDRESSES, "/nothing", "/jobs/j/no-day"])
def test_all_addresses_in_a_page_lie_below_the_root(pages: Pages, address: str) -> None:
    pages.enter()
    text = pages.get(address)[1] + pages.get(f"/?token={pages.door.token()}")[1]
    found = re.findall('(?:href|src|action|hx-get|url|content)="?(/[^"]*|0;url=[^"]*)', text)
    found += re.findall('name="back" value="([^"]*)"', text)
    assert found
    assert [one for one in found if not one.removeprefix("0;url=").startswith(f"{pages.door.root}/")] == []
    assert f'data-root="{pages.door.root}"' in text
    for link in {one for one in found if "/static/" in one}:
        assert pages.anywhere("GET", link)[0].status == 200


def test_an_address_opens_one_session(pages: Pages) -> None:
    token = pages.door.token()
    answer, _ = pages.ask("GET", f"/?token={token}")
    cookie = str(answer.getheader("Set-Cookie"))
    assert (answer.status, "HttpOnly" in cookie, "SameSite=Strict" in cookie) == (200, True, True)
    status, text = pages.get(f"/?token={token}")
    assert (status, "was used before" in text) == (403, True)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1:1"])
def test_another_name_gets_nothing_even_with_the_cookie(pages: Pages, host: str) -> None:
    pages.enter()
    status, text = pages.get("/", Host=host)
    assert (status, "seen from" in text) == (421, False)


def test_a_form_is_one_call_and_its_answer_is_told_once(pages: Pages) -> None:
    pages.enter()
    pages.daemon.answers["job.suspend"] = {"job": "j", "suspended": True}
    form = urlencode({"job": "j", "note": " a window ", "until": "", "back": f"{pages.door.root}/jobs/j", "other": "x"})
    answer, _ = pages.ask("POST", "/do/suspend", form)
    assert (answer.status, answer.getheader("Location")) == (303, f"{pages.door.root}/jobs/j")
    assert pages.daemon.asked[-1] == ("job.suspend", {"job": "j", "note": "a window"})
    assert "j is suspended on every node" in pages.get("/jobs/j")[1]
    assert "j is suspended on every node" not in pages.get("/jobs/j")[1]


def test_a_trigger_leads_to_its_run(pages: Pages) -> None:
    pages.enter()
    pages.daemon.answers["run.trigger"] = {"id": "j#77", "durable": "ledger"}
    answer, _ = pages.ask("POST", "/do/trigger", "job=j")
    assert answer.getheader("Location") == f"{pages.door.root}/runs/j%2377"


def ids(text: str) -> list[str]:
    """The ids in the forms that trigger a run."""
    forms = [form for form in text.split("<form ") if '/do/trigger"' in form]
    return [found for form in forms for found in re.findall('name="id" value="([^"]*)"', form)]


@pytest.mark.parametrize("address", ["/jobs/j", "/runs/j%231"])
def test_a_form_that_is_sent_twice_is_one_run(pages: Pages, address: str) -> None:
    pages.enter()
    pages.daemon.answers["run.trigger"] = lambda params: {"id": f"j#{params['id']}", "durable": "ledger"}
    (first,), (second,) = ids(pages.get(address)[1]), ids(pages.get(address)[1])
    assert IDENT.fullmatch(first)
    assert first != second, "another form is another run"
    for _ in range(2):
        pages.ask("POST", "/do/trigger", urlencode({"job": "j", "id": first}))
    calls = [params for method, params in pages.daemon.asked if method == "run.trigger"]
    assert calls == [{"job": "j", "id": first}] * 2


def test_dedupe_makes_the_ids_of_its_runs_itself(pages: Pages) -> None:
    pages.daemon.answers["job.show"] = {**JOB, "dedupe": "{day}"}
    pages.daemon.answers["run.trigger"] = {"id": "j#7", "durable": "ledger"}
    pages.enter()
    for address in ("/jobs/j", "/runs/j%231"):
        assert ids(pages.get(address)[1]) == [""]
    pages.ask("POST", "/do/trigger", urlencode({"job": "j", "id": ""}))
    assert pages.daemon.asked[-1] == ("run.trigger", {"job": "j"})


def test_a_change_has_patience_and_a_page_has_not(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    pages.enter()
    released = threading.Event()

    def slow(_: dict[str, Any]) -> dict[str, Any]:
        released.wait(30)
        return {"id": "j#7", "durable": "ledger"}

    monkeypatch.setattr(http, "REQUEST_S", 1.0)
    monkeypatch.setattr(source, "ANSWER_S", 1.0)
    pages.daemon.answers |= {"run.trigger": slow, "node.list": slow}
    timer = threading.Timer(2.5, released.set)
    timer.start()
    answer, _ = pages.ask("POST", "/do/trigger", "job=j")
    timer.join()
    assert (answer.status, answer.getheader("Location")) == (303, f"{pages.door.root}/runs/j%237")
    released.clear()
    assert pages.get("/cluster")[0] == 503
    released.set()


@pytest.mark.parametrize(
    "back",
    [
        "//evil.example/",
        "https://evil.example",
        "/\\evil.example",
        "",
        "/\t/evil.example",
        "/\n/evil.example",
        "/ /evil",
        "/x\r\nA: b",
        "/\x01",
    ],
)
def test_a_form_leads_back_to_a_page_of_this_address(pages: Pages, back: str) -> None:
    pages.enter()
    pages.daemon.answers["job.resume"] = {"job": "j"}
    answer, _ = pages.ask("POST", "/do/resume", urlencode({"job": "j", "back": pages.door.root + back}))
    assert answer.getheader("Location") == f"{pages.door.root}/"
    answer, _ = pages.ask("POST", "/do/resume", urlencode({"job": "j", "back": back}))
    assert answer.getheader("Location") == f"{pages.door.root}/"


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Origin": ""}, {"Cookie": "x=1"}])
def test_a_form_of_another_site_changes_nothing(pages: Pages, headers: dict[str, str]) -> None:
    pages.enter()
    asked = len(pages.daemon.asked)
    answer, _ = pages.ask("POST", "/do/resume", "job=j", **headers)
    assert answer.status in (403, 421)
    assert len(pages.daemon.asked) == asked


@pytest.mark.parametrize(
    ("action", "form", "status", "said"),
    [
        ("cancel", "id=j%231", 409, "cancel needs a reason"),
        ("explode", "id=j", 404, "there is no action"),
        ("resume", "job=j", 403, "ann may not operate j"),
    ],
)
def test_what_is_refused_is_told(pages: Pages, action: str, form: str, status: int, said: str) -> None:
    pages.enter()
    pages.daemon.answers["job.resume"] = refusal("not_permitted", "ann may not operate j", "the operator group")
    answer, text = pages.ask("POST", f"/do/{action}", form)
    assert (answer.status, said in text) == (status, True)


def test_a_viewer_is_offered_no_change(pages: Pages) -> None:
    pages.daemon.answers["ping"] = {"pong": True, "version": "9", "user": "bob", "role": "viewer"}
    pages.enter()
    for address in ("/jobs/j", "/runs/j%231", "/cluster"):
        assert '<form method="post"' not in pages.get(address)[1]


@pytest.mark.parametrize(
    ("address", "status", "said"),
    [
        ("/nothing", 404, "There is no such page"),
        ("/jobs/j/2026-13-03", 404, "is not a date"),
        ("/runs/gone", 404, "no run"),
        ("/static/../door.py", 404, "no such file"),
        ("/live?page=/nothing", 404, "There is no such page"),
    ],
)
def test_a_wrong_address_says_what_is_right(pages: Pages, address: str, status: int, said: str) -> None:
    pages.enter()
    pages.daemon.answers["run.show"] = refusal("unknown_run", "no run 'gone'")
    found, text = pages.get(address)
    assert (found, said in text) == (status, True)


def test_without_a_daemon_the_page_says_so(pages: Pages) -> None:
    pages.enter()
    pages.daemon.answers["status"] = None  # the connection is closed
    status, text = pages.get("/cluster")
    assert (status, "No daemon answers" in text) == (503, True)


def test_many_pages_ask_the_daemon_once(pages: Pages) -> None:
    pages.enter()
    for _ in range(20):
        assert pages.get("/")[0] == 200
    methods = [method for method, _ in pages.daemon.asked]
    assert methods.count("job.list") == 1
    assert methods.count("ping") == 1


def test_the_part_that_changes_is_sent_again_when_it_has_changed(pages: Pages) -> None:
    pages.enter()
    answer, _ = pages.ask("GET", f"/live?page={quote('/runs/j#1', safe='/')}".replace("#", "%2523"))
    assert answer.status == 200
    assert answer.readline().startswith(b"retry:")
    lines = [answer.readline() for _ in range(3)]
    assert lines[1] == b"event: page\n"
    assert b"j#1 <ran>" not in lines[2]
    assert b"j#1 &lt;ran&gt;" in lines[2].replace(b"\\u003c", b"<")
    pages.daemon.answers["run.logs"] = {"id": "j#1", "attempt": 0, "text": "three\n"}
    pages.source.forget()
    until = time.monotonic() + 30
    while b"three" not in (line := answer.readline()):
        assert line, "the stream has ended"
        assert time.monotonic() < until
    answer.close()


def forms(answer: HTTPResponse) -> str:
    """The next forms of a stream of changes."""
    until = time.monotonic() + 30
    for line in answer:
        assert time.monotonic() < until, "no forms came"
        if line == b"event: forms\n":
            return str(json.loads(answer.readline().removeprefix(b"data: ")))
    raise AssertionError("the stream has ended")


def test_the_forms_follow_the_state_of_the_run(pages: Pages) -> None:
    pages.daemon.answers["run.show"] = {**RUN, "state": "pending", "attempts": [], "timeline": []}
    pages.enter()
    _, text = pages.get("/runs/j%231")
    answer, _ = pages.ask("GET", "/live?page=/runs/j%25231")
    first = forms(answer)
    assert ("/do/revoke" in first, "/do/cancel" in first) == (True, False)
    (drawn,) = re.findall('(?s)<div id="below">(.*)</div>', text)
    assert drawn.replace(ids(text)[0], ids(first)[0]).split() == first.split(), "the same as in the page"
    pages.daemon.answers["run.show"] = {**RUN, "state": "started", "attempts": [], "timeline": []}
    pages.source.forget()
    second = forms(answer)
    assert ("/do/revoke" in second, "/do/cancel" in second) == (False, True)
    assert ids(second) == ids(first), "another id alone would be a change at each look"
    answer.close()


def each_minute(params: dict[str, Any]) -> list[dict[str, Any]]:
    """The answer of job.fires, at most 500 of them, for a job with a fire time in each minute of a day."""
    times = [f"2026-10-03T{minute // 60:02}:{minute % 60:02}:00Z" for minute in range(1440)]
    inside = [at for at in times if params["from"][:10] <= at <= params.get("to", "9")]
    told: list[dict[str, Any]] = [
        {"fire_time": at, "decision": "launched", "state": "success", "run": "", "reason": ""} for at in inside[-500:]
    ]
    if len(inside) > 500:
        told[0]["earlier"] = True
    return told


def test_the_page_of_a_day_shows_all_its_fire_times_or_says_which(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages.enter()
    pages.daemon.answers["job.fires"] = each_minute
    _, text = pages.get("/jobs/j/2026-10-03")
    assert (text.count("<td>2026-10-03T"), "1440 fire times" in text, "Only the newest" in text) == (1440, True, False)
    monkeypatch.setattr(models, "DAY_MOST", 1000)
    pages.source.forget()
    _, text = pages.get("/jobs/j/2026-10-03")
    assert text.count("<td>2026-10-03T") == 1000
    assert "Only the newest 1000 fire times of this day. It has earlier ones" in text
    assert "coordctl job fires j --from 2026-10-03 --to 2026-10-03T07:20:00Z" in text


def test_the_page_of_a_job_says_where_its_grid_begins_only_if_it_is_cut(pages: Pages) -> None:
    pages.enter()
    assert "Only the newest" not in pages.get("/jobs/j")[1]
    pages.daemon.answers["job.fires"] = each_minute({"from": "2026-10-03"})
    pages.source.forget()
    _, text = pages.get("/jobs/j")
    assert "Only the newest 500 fire times are here, since 2026-10-03: <code>coordctl job fires j --from 30d" in text


def test_the_page_of_runs_says_how_far_back_it_searched(pages: Pages) -> None:
    pages.enter()
    assert "Searched" not in pages.get("/runs?node=b")[1]
    pages.daemon.answers["run.list"] = [{"searched": 10_000, "back_to": "2026-10-03T02:00:00Z"}]
    pages.source.forget()
    _, text = pages.get("/runs?node=b&job=j")
    assert "There is no such run." in text
    assert "Searched: the newest 10000 runs of the job, back to 2026-10-03T02:00:00Z. A job or a state" in text


def test_the_files_of_others_are_what_their_authors_published() -> None:
    vendor = Path(web.__file__).parent / "static" / "vendor"
    known = {
        name: digest for digest, name in (line.split() for line in (vendor / "SHA256SUMS").read_text().splitlines())
    }
    assert known == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in vendor.glob("*.js")}


# ---- clients that misbehave


def raw(pages: Pages, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", pages.port), timeout=30) as sock:
        sock.sendall(data)
        return sock.recv(65536)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 90_000 + b"\r\n\r\n", b"431"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n" + b"a" * (BODY_BYTES_MAX + 1), b"413"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 200\r\n\r\n" + b"&".join([b"a=1"] * 50) + b"&", b"400"),
    ],
    ids=["no HTTP", "a long header", "a long form", "many fields"],
)
def test_a_bad_request_is_answered_in_kind(pages: Pages, data: bytes, status: bytes) -> None:
    assert raw(pages, data).split()[1] == status


def test_clients_that_say_nothing_leave_room_for_the_person(pages: Pages) -> None:
    pages.enter()
    silent = [socket.create_connection(("127.0.0.1", pages.port)) for _ in range(CONNECTIONS_MAX + 5)]
    time.sleep(0.5)
    for sock in silent[: CONNECTIONS_MAX // 2]:
        sock.close()
    time.sleep(0.5)
    assert pages.get("/jobs")[0] == 200
    for sock in silent:
        sock.close()
