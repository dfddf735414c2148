"""The program: a child that waits for its leave and for its instant."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator

import pytest

from coordd.once.foreground import ForegroundProgram
from coordd.runner import kernel
from coordd.runner.program import GO, NOT_EXECUTABLE, Program, has_leave

ENV = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    made: list[Program] = []
    yield made
    for program in made:
        program.discard()
        os.waitpid(program.pid, 0)
        for fd in (program.status_fd, program.output_fd):
            os.close(fd)


def start(programs: list[Program], *argv: str) -> Program:
    programs.append(Program(list(argv), ENV, "", "", kernel.label_of("nonce")))
    return programs[-1]


def outcome(program: Program) -> str:
    """Why it could not be executed; "" once it has been."""
    poll = select.poll()
    poll.register(program.status_fd, select.POLLIN)
    while (failure := program.failure()) is None:
        poll.poll(10_000)
    return failure


def test_it_is_executed_at_its_instant_and_says_when(programs: list[Program]) -> None:
    program = start(programs, "true")
    after_s = 0.05
    wall = time.time() + after_s  # first: time may pass between two looks at clocks
    at = kernel.boottime() + after_s

    assert program.release(at)

    assert outcome(program) == ""
    assert kernel.boottime() >= at
    assert program.called_at() >= wall - 0.001


def test_an_instant_in_the_past_is_now(programs: list[Program]) -> None:
    program = start(programs, "true")

    assert program.release(kernel.boottime() - 100.0)

    assert outcome(program) == ""


def test_what_cannot_be_executed_says_why(programs: list[Program]) -> None:
    program = start(programs, "/no/such/program")
    program.release(0.0)

    assert outcome(program) == "cannot execute /no/such/program: No such file or directory"


@pytest.mark.parametrize("said", [b"", b"x1.0"])
def test_without_leave_nothing_is_executed(said: bytes) -> None:
    held, leave = os.pipe()
    os.write(leave, said)
    os.close(leave)

    assert not has_leave(held)
    os.close(held)


def test_leave_is_one_write_with_the_instant() -> None:
    held, leave = os.pipe()
    at = kernel.boottime() + 0.02
    os.write(leave, GO + repr(at).encode())

    assert has_leave(held)

    assert kernel.boottime() >= at
    os.close(held)
    os.close(leave)


@pytest.mark.parametrize("env", [{**ENV, "A": "x\0y"}, {**ENV, "A=B": "x"}])
def test_a_variable_that_no_program_can_have_is_a_reason(env: dict[str, str]) -> None:
    made: list[Program] = [
        Program(["/bin/true"], env, "", "", kernel.label_of("nonce")),
        ForegroundProgram(["/bin/true"], env, kernel.label_of("nonce"), ()),
    ]
    for program in made:
        assert program.release(0.0)
        assert outcome(program).startswith("cannot execute /bin/true: ")
        _, status = os.waitpid(program.pid, 0)
        assert os.waitstatus_to_exitcode(status) == NOT_EXECUTABLE
        os.close(program.status_fd)
    os.close(made[0].output_fd)
    made[0].called_at()
