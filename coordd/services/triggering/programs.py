"""What a poller finds: the ids that a command prints, the rows that a query of a database has, what a package finds."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import trio

from coordd.core.jobs.arguments import control_character
from coordd.core.jobs.trigger import Trigger
from coordd.core.redaction import redact_text
from coordd.core.triggers.arrivals import Arrival
from coordd.core.triggers.bodies import values_of
from coordd.core.visible import visible
from coordd.errors import UnavailableError
from coordd.plugins import TRIGGERS
from coordd.services.programs.child import environment, host, killed, limit
from coordd.services.triggering.sources import Look, Room, Source

# What a program may print: bytes, ids, and bytes of one id.
OUTPUT_BYTES_MAX = 4 * 1024 * 1024
IDS_MAX = 20_000
ID_BYTES_MAX = 1024

# How much of a program's standard error is shown (bytes).
ERROR_BYTES_MAX = 300


class _TooMuchError(UnavailableError):
    """A program printed too much. ``output``: the first part."""

    def __init__(self, name: str, output: bytes) -> None:
        super().__init__(f"{name} printed more than {OUTPUT_BYTES_MAX} bytes: nothing was taken")
        self.output = output


class CommandSource(Source):
    """A command that prints one id a line; each id is one arrival."""

    def __init__(self, trigger: Trigger) -> None:
        self._trigger = trigger

    async def look(self, _room: Room | None = None) -> Look:
        with trio.move_on_after(self._trigger.timeout_s):
            output = await printed(self._trigger.argv[0], self._trigger.argv, self._trigger.timeout_s)
            texts = dict.fromkeys(line.strip().decode(errors="surrogateescape") for line in output.splitlines())
            return found_of((Arrival(text, {"key": text}) for text in texts if text), "it printed")
        raise UnavailableError(f"{self._trigger.argv[0]} did not end within {self._trigger.timeout_s:g} s")


class SqlSource(Source):
    """A query; the first column of each row is the id of an arrival. A program of its own asks the database."""

    def __init__(self, trigger: Trigger, program: Callable[[Trigger, int], tuple[Sequence[str], bytes]]) -> None:
        """``program``: what is executed, and what it reads; blocks, and raises UnavailableError. The number: rows."""
        self._trigger = trigger
        self._program = program

    async def look(self, _room: Room | None = None) -> Look:
        with trio.move_on_after(self._trigger.timeout_s):
            argv, asked = await trio.to_thread.run_sync(self._program, self._trigger, IDS_MAX, abandon_on_cancel=True)
            try:
                output, problem = await printed("the query", argv, self._trigger.timeout_s, asked), ""
            except _TooMuchError as exc:  # nothing would ever get by it
                output = exc.output[: exc.output.rfind(b"\n") + 1]
                problem = f"its rows have more than {OUTPUT_BYTES_MAX} bytes: the others wait"
            rows = [json.loads(line) for line in output.splitlines()]
            found = found_of((_arrival(row) for row in rows if row["key"] is not None), "it has")
            if any(row["key"] is None for row in rows):
                found.refused.append(("NULL", "expected an id in the first column of each row, found NULL"))
            return found._replace(problem=found.problem or problem)
        raise UnavailableError(f"the database did not answer within {self._trigger.timeout_s:g} s")


class PluggedSource(Source):
    """What a package brings: a function, called in a process of its own, that says all arrivals that are there."""

    def __init__(self, job: str, trigger: Trigger, node: str) -> None:
        self._trigger = trigger
        said = {name: getattr(trigger, name) for name in ("name", "timeout_s", "url", "path", "query", "argv")}
        context = {"job": job, "node": node, **said, "password_file": trigger.password_file}
        self._argv = host(TRIGGERS, trigger.kind, json.dumps(context))

    async def look(self, _room: Room | None = None) -> Look:
        kind = self._trigger.kind
        with trio.move_on_after(self._trigger.timeout_s):
            environ = environment(finds_packages=True)
            output = await printed(f"the plug-in {kind}", self._argv, self._trigger.timeout_s, environ=environ)
            try:
                said = [json.loads(line) for line in output.splitlines()]
                if said and (why := said[-1].get("problem")):
                    raise UnavailableError(f"the plug-in {kind}: {visible(redact_text(str(why)))}")
                return found_of(map(_arrival, said), "it has")
            except (ValueError, LookupError, TypeError, AttributeError) as exc:
                raise UnavailableError(f"the plug-in {kind} answered what nobody can read: {exc!r:.100}") from exc
        raise UnavailableError(f"the plug-in {kind} did not end within {self._trigger.timeout_s:g} s")


def _arrival(said: dict[str, Any]) -> Arrival:
    return Arrival(said["key"], {**values_of(said["fields"]), "key": said["key"]})


def found_of(arrivals: Iterable[Arrival], what: str) -> Look:
    """The arrivals with sound ids, each once. ``what``: who brought them."""
    found: dict[str, Arrival] = {}
    refused: list[tuple[str, str]] = []
    more = ""
    for arrival in arrivals:
        text = arrival.key
        if len(found) + len(refused) >= IDS_MAX:
            more = f"{what} more than {IDS_MAX} ids: the others wait"
            break
        bad = control_character(text)
        if len(text.encode(errors="surrogateescape")) > ID_BYTES_MAX:
            refused.append((visible(text)[:60], f"an id has at most {ID_BYTES_MAX} bytes"))
        elif bad or not text:
            why = f"an id must not have the character {bad!r}" if bad else "an id must not be empty"
            refused.append((visible(text)[:60], why))
        else:
            found.setdefault(text, arrival)
    return Look(list(found.values()), refused, problem=more)


async def printed(
    name: str, argv: Sequence[str], timeout_s: float, asked: bytes = b"", environ: Mapping[str, str] | None = None
) -> bytes:
    """What a program prints. ``name``: of it, for people. ``asked``: what it reads on its standard input. ``environ``:
    its environment, if it needs more than a path. ``timeout_s``: the caller's; a program that works on, because
    the daemon has died, is ended by the kernel when all processors have worked for it for that long.

    Raises UnavailableError: it cannot be executed, printed too much, or failed.
    """
    given = os.memfd_create("asked", os.MFD_CLOEXEC)  # no file has what may be a password
    try:
        os.write(given, asked)
        os.lseek(given, 0, os.SEEK_SET)
        process = await trio.lowlevel.open_process(
            argv,
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ or {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
            start_new_session=True,
        )
    except OSError as exc:
        raise UnavailableError(f"{name} cannot be executed: {exc.strerror or exc}") from exc
    finally:
        os.close(given)
    try:
        limit(process.pid, {resource.RLIMIT_CPU: (int(timeout_s) + 1) * (os.cpu_count() or 1)})
        assert process.stdout is not None
        assert process.stderr is not None
        said: list[bytes] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_read_into, process.stderr, ERROR_BYTES_MAX, said)
            output: list[bytes] = []
            await _read_into(process.stdout, OUTPUT_BYTES_MAX + 1, output)
            if sum(map(len, output)) > OUTPUT_BYTES_MAX:
                raise _TooMuchError(name, b"".join(output)[:OUTPUT_BYTES_MAX])
            await process.wait()
    except* UnavailableError as group:
        raise group.exceptions[0] from None
    finally:
        await killed(process)
    if process.returncode:
        why = visible(redact_text(b"".join(said).decode(errors="replace").strip()))
        raise UnavailableError(f"{name} ended with {process.returncode}: {why or 'it said nothing'}")
    return b"".join(output)


async def _read_into(stream: trio.abc.ReceiveStream, most: int, said: list[bytes]) -> None:
    """Read to the end; what is above ``most`` bytes is dropped."""
    left = most
    async for data in stream:
        said.append(bytes(data[:left]))
        left -= len(said[-1])
