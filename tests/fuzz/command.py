"""`make fuzz`: a million spoilt inputs for everything that reads bytes of others.

make fuzz                                      every target
make fuzz INPUTS=50000 ARGS="--target control --jobs 1"
make fuzz ARGS="--replay artifacts/fuzz/bus/1.txt"     only the inputs that failed
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import signal
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from coordd.adapters.kernel.prctl import die_with_parent
from fuzz import run, trial

ARTIFACTS = Path(__file__).parents[2] / "artifacts"

# Limits of a process's memory: its growth from the first chunk to the last, and its maximum. A leak would pass both
# within a million inputs.
GROWN_BYTES_MAX = 64 * 2**20
PEAK_BYTES_MAX = 768 * 2**20

# An input is shown whole up to here; the file has all of it.
SHOWN_MAX = 2000
TOLD_MAX = 3000


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=1_000_000, help="for each target")
    parser.add_argument("--target", action="append", choices=sorted(run.TARGETS), help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count(), help="processes at a time")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="the inputs of a file, in a new world")
    chosen = parser.parse_args()
    console = Console()
    if chosen.replay:
        return replay(chosen.replay, chosen.target, console)
    results = {}
    # A shell's background job ignores ^C; and a stopped fuzzer must still remove its files.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with trial.scratch() as directory:
        for name in chosen.target or run.TARGETS:
            results[name] = fuzz(name, chosen.inputs, chosen.seed, chosen.jobs, directory, console)
    return report(results, chosen.seed, console)


def replay(path: Path, target: list[str] | None, console: Console) -> int:
    """What a file holds; its directory is named after the target."""
    name = target[0] if target else path.absolute().parent.name
    failure = run.replay(name, run.read_inputs(path))
    console.print(failure.told if failure else "nothing fails", markup=False, highlight=False, soft_wrap=True)
    return int(failure is not None)


def fuzz(name: str, count: int, seed: int, jobs: int, directory: str, console: Console) -> tuple[run.Result, float]:
    """The inputs for one target. Its processes do nothing else, so that their memory is the target's."""
    total, started = run.Result(), time.monotonic()
    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[failed]}"),
    )
    chunks = [(at, min(run.CHUNK, count - at * run.CHUNK)) for at in range(-(-count // run.CHUNK))]
    with (
        ProcessPoolExecutor(
            jobs, mp_context=multiprocessing.get_context("spawn"), initializer=prepare, initargs=(directory,)
        ) as pool,
        Progress(*columns, console=console) as progress,
    ):
        task = progress.add_task(name, total=count, failed="")
        running = {pool.submit(run.run_chunk, name, seed, *chunk): chunk for chunk in chunks}
        try:
            for done in as_completed(running):
                part = result_of(done, name, seed, running[done])
                total.add(part)
                for failure in part.failures:
                    keep(failure, console)
                failed = len(total.failures)
                progress.update(task, advance=part.inputs, failed=f"[red]{failed} failed[/red]" if failed else "")
                if failed >= 20:  # enough to look at
                    pool.shutdown(cancel_futures=True)
                    break
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # otherwise it would wait for the rest
            raise
    return total, time.monotonic() - started


def prepare(directory: str) -> None:
    """The start of each process: it ends with its parent, and its files are where the parent removes them."""
    die_with_parent()
    trial.place = directory
    resource.setrlimit(resource.RLIMIT_AS, (run.ADDRESS_SPACE_BYTES, run.ADDRESS_SPACE_BYTES))


def result_of(done: Future[run.Result], name: str, seed: int, chunk: tuple[int, int]) -> run.Result:
    """A chunk's result; the death of its process is a result, too."""
    try:
        return done.result()
    except BrokenProcessPool as exc:
        place = f"seed {seed}, chunk {chunk[0]} or another one that ran then"
        return run.Result(failures=[run.Failure(name, place, "the process died or hung", str(exc), [])])


def keep(failure: run.Failure, console: Console) -> None:
    """Print what failed, and save it."""
    directory = ARTIFACTS / "fuzz" / failure.target
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{len(list(directory.iterdir())) + 1}.txt"
    path.write_text(failure.text())
    console.rule(f"{failure.target}: {failure.what}", style="red")
    console.print(failure.told[-TOLD_MAX:], failure.place, markup=False, highlight=False, soft_wrap=True)
    for data in failure.inputs[-1:]:
        console.print(repr(data[:SHOWN_MAX]), markup=False, highlight=False, soft_wrap=True)
    console.print(failure.text()[-SHOWN_MAX:], markup=False, highlight=False, soft_wrap=True)
    console.print(f'make fuzz ARGS="--replay {path}"   ({len(failure.inputs)} inputs)', markup=False, soft_wrap=True)


def report(results: dict[str, tuple[run.Result, float]], seed: int, console: Console) -> int:
    """The table, and the JSON beside it."""
    table = Table(title=f"make fuzz, seed {seed}")
    for head in ("target", "inputs", "accepted", "refused", "slowest", "peak", "grown", "seconds", "failed"):
        table.add_column(head, justify="left" if head == "target" else "right")
    rows: dict[str, Any] = {}
    told: list[str] = []
    failed = 0
    for name, (result, seconds) in results.items():
        wrong = [failure.what for failure in result.failures]
        if result.peak_bytes > PEAK_BYTES_MAX or result.grown_bytes > GROWN_BYTES_MAX:
            wrong.append("memory without bound")
        failed += len(wrong)
        kinds = result.outcomes.most_common()
        accepted = sum(count for kind, count in kinds if is_accepted(kind))
        kinds_told = ", ".join(f"{kind} {count:,}" for kind, count in kinds)
        told.append(f"{name}: {kinds_told}")
        table.add_row(
            name,
            f"{result.inputs:,}",
            f"{accepted:,}",
            f"{result.inputs - accepted:,}",
            f"{result.slowest_s * 1000:.0f} ms",
            f"{result.peak_bytes / 2**20:.0f} MiB",
            f"{result.grown_bytes / 2**20:.1f} MiB",
            f"{seconds:.0f}",
            f"[red]{len(wrong)}[/red]" if wrong else "0",
        )
        rows[name] = {
            "what": run.TARGETS[name].what,
            "inputs": result.inputs,
            "outcomes": dict(kinds),
            "failures": wrong,
            "slowest_s": result.slowest_s,
            "slowest": repr(result.slowest)[:SHOWN_MAX],
            "seconds": seconds,
            "peak_bytes": result.peak_bytes,
            "grown_bytes": result.grown_bytes,
        }
    console.print(table)
    for line in told:
        console.print(line, highlight=False, markup=False)
    ARTIFACTS.mkdir(exist_ok=True)
    path = ARTIFACTS / f"fuzz-{'-'.join(results)}.json"
    path.write_text(json.dumps({"seed": seed, "targets": rows}, indent=1) + "\n")
    console.print(f"written to artifacts/{path.name}; {failed} failures", style="red" if failed else "green")
    return int(failed > 0)


def is_accepted(kind: str) -> bool:
    """The outcomes of targets that mean: accepted."""
    return kind.startswith(("accepted", "read", "told", "late"))
