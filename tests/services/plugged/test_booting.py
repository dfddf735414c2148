"""Boot steps of packages: real processes, whatever they do, and what the start makes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from plugins.written import hosting, written

from coordd.config.plugged.boot import BootStep
from coordd.errors import RefusedError
from coordd.services.control.callers import ADMIN, Caller, Method
from coordd.services.plugged import booting, process
from coordd.services.plugged.booting import DONE, FAILED, WAITING, Boot
from coordd.services.programs import child as program

STEPS = """
import os, sys, time

def good(of):
    of.status("busy")
    with open(of.args["file"], "a") as file:
        file.write(f"{of.name} {of.attempt} on {of.node} of {of.cluster}\\\\n")
    return "all is there"

async def trio_one(of):
    import trio
    await trio.sleep(0)

def third(of):
    if of.attempt < 3:
        raise OSError(f"attempt {of.attempt}")

def raises(of):
    raise ValueError("it is\\\\nFriday")

def ends(of):
    sys.exit(0)

def goes(of):
    os._exit(0)

def loops(of):
    of.status("round and round")
    while True:
        pass

def floods(of):
    print("password=geheim " + "x" * 10**6)
    for _ in range(10**4):
        print("y" * 200)
""".replace("\\\\", "\\")
NAMES = ["good", "trio_one", "third", "raises", "ends", "goes", "loops", "leaks", "floods"]
ABOUT = {"node": "edge-1", "cluster": "main", "socket": "/run/x.sock"}
LIMIT_S = 120.0
ROOT = Caller(0, frozenset(), ADMIN, 1, "root")


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "bad", "coordd.boot_steps", STEPS, *NAMES)
    monkeypatch.setattr(program, "HOST", hosting(tmp_path / "bad"))
    monkeypatch.setattr(booting, "PAUSE_MIN_S", 0.01)


def step(name: str, **more: Any) -> BootStep:
    return BootStep(name=name, **{"timeout_s": LIMIT_S, **more})


def prepared(*steps: BootStep) -> tuple[str, Boot, list[str]]:
    """Why the daemon cannot start, the steps, and what the start waited for."""
    waited: list[str] = []
    boot = Boot(steps, ABOUT, lambda sentence, _most_s: waited.append(sentence))

    async def main() -> str:
        with trio.fail_after(LIMIT_S):
            return await boot.prepare()

    return trio.run(main), boot, waited


def test_mandatory_steps_are_done_in_their_order_before_the_start(tmp_path: Path) -> None:
    file = tmp_path / "said"
    args = {"file": str(file)}
    one, two = step("one", step="good", args=args), step("two", step="good", args=args, requires=("one",))
    why, boot, waited = prepared(one, two, step("later", step="good", mandatory=False), step("trio_one"))
    assert why == ""
    assert file.read_text() == "one 1 on edge-1 of main\ntwo 1 on edge-1 of main\n"
    assert sorted(waited) == [f"starting · boot step {name}" for name in ("one", "trio_one", "two")]
    assert [one["state"] for one in boot.view()] == [DONE, DONE, WAITING, DONE]
    assert boot.checks()[0]["text"] == "done, tried 1 times: all is there"


@pytest.mark.parametrize(
    ("name", "more", "why"),
    [
        ("raises", {}, "it failed: ValueError: it is Friday"),
        ("ends", {}, "it called exit(0)"),
        ("goes", {}, "it ended with exit code 0"),
        ("loops", {"timeout_s": 1.0}, "it did not end within 1 s"),
        ("leaks", {"memory": 256 * 2**20}, "it failed: MemoryError"),
        (
            "gone",
            {},
            "it failed: LookupError: no installed package brings gone (entry points, group coordd.boot_steps)",
        ),
    ],
)
def test_a_mandatory_step_that_fails_ends_the_start_and_is_named(name: str, more: dict[str, Any], why: str) -> None:
    said, boot, _ = prepared(step(name, **more), step("after", step="trio_one", requires=(name,)))
    assert said == f'the boot step "{name}" failed: {why}'
    assert [one["state"] for one in boot.view()] == [FAILED, WAITING]
    assert boot.checks()[0]["state"] == "fail"


def test_the_log_takes_a_bounded_part_of_its_output_and_no_secret(capfd: pytest.CaptureFixture[str]) -> None:
    assert prepared(step("floods"))[0] == ""
    text = "".join(capfd.readouterr())
    assert 90 < text.count("boot.said") <= process.LINES_MAX
    assert "geheim" not in text


def in_the_background(wanted: Callable[[Boot], bool], *steps: BootStep) -> None:
    """Take the optional steps until it is as wanted."""

    async def main() -> None:
        boot = Boot(steps, ABOUT, lambda _sentence, _most_s: None)
        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(boot.run)
                while not wanted(boot):
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_an_optional_step_is_tried_again_until_it_is_done_and_then_those_that_require_it(tmp_path: Path) -> None:
    file = tmp_path / "said"
    after = step("after", step="good", mandatory=False, args={"file": str(file)}, requires=("third",))
    in_the_background(lambda boot: boot.steps["after"].state == DONE, step("third", mandatory=False), after)
    assert file.read_text() == "after 1 on edge-1 of main\n"


def test_optional_steps_that_raise_loop_or_leak_are_named_and_hold_nobody_up() -> None:
    seen: dict[str, set[str]] = {"raises": set(), "loops": set(), "leaks": set()}

    def wanted(boot: Boot) -> bool:
        for name, said in seen.items():
            said.add(boot.steps[name].text)
            assert boot.steps[name].check()["state"] != "fail"
        return all(any(text.startswith(("it failed", "it did not end")) for text in said) for said in seen.values())

    more: dict[str, dict[str, Any]] = {"raises": {}, "loops": {"timeout_s": 1.0}, "leaks": {"memory": 256 * 2**20}}
    in_the_background(wanted, *[step(name, mandatory=False, **of) for name, of in more.items()])
    assert "it failed: ValueError: it is Friday" in seen["raises"]
    assert {"round and round", "it did not end within 1 s"} <= seen["loops"]
    assert "it failed: MemoryError" in seen["leaks"]


def test_most_control_methods_wait_for_the_mandatory_steps() -> None:
    async def answer(_params: dict[str, Any], _caller: Caller) -> Any:
        return "answered"

    gated = Boot([step("one")], ABOUT, lambda _sentence, _most_s: None).gated(
        {"status": Method(answer), "run.trigger": Method(answer, changes=True)}
    )

    async def main() -> None:
        assert await gated["status"].call({}, ROOT) == "answered"
        assert gated["run.trigger"].changes
        with pytest.raises(RefusedError, match="it waits for the boot steps one") as refused:
            await gated["run.trigger"].call({}, ROOT)
        assert refused.value.kind == "try_later"

    trio.run(main)


def test_a_machine_without_a_free_thread_fails_the_step_and_not_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process is started in a thread."""

    async def refused(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(trio.to_thread, "run_sync", refused)
    why, _boot, _told = prepared(step("good"))
    assert why == 'the boot step "good" failed: no process for it: can\'t start new thread'
