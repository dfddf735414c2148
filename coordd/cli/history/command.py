"""coordd history: what the journals of the nodes prove, without a daemon and without Spark."""

from __future__ import annotations

import json

import click

from coordd.cli.options import EXIT_BAD_JOB, EXIT_FAILED, JSON, JSONL, TABLE, Failed, Finite, say
from coordd.errors import UnavailableError


@click.group("history")
def history() -> None:
    """Read the journals of the nodes, or their copies in a sink."""


@history.command("verify")
@click.argument("directories", metavar="DIR...", nargs=-1, required=True)
@click.option(
    "--clock-skew",
    "clock_skew_s",
    metavar="SECONDS",
    type=Finite(0, 3600),
    default=0.5,
    show_default=True,
    help="A shorter overlap may be the difference of two machines' clocks, and is a notice.",
)
@click.option("--output", "-o", type=click.Choice([TABLE, JSON, JSONL]), default=TABLE, show_default=True)
@click.pass_context
def verify(context: click.Context, directories: tuple[str, ...], clock_skew_s: float, output: str) -> None:
    """Prove that no run was launched twice and no attempts overlapped, or list each breach with file and line.

    DIR is a node's journal (STATE_DIR/journal), or a directory with several below it, such as a journal_sink. The hash
    chains of the audit are checked too. A notice says what the journals given do not cover.

    Exit codes: 0 no breach; 1 breaches; 65 a journal cannot be read.
    """
    from coordd.history.proof.verify import verify as prove

    try:
        proof = prove(directories, clock_skew_s)
    except UnavailableError as exc:
        raise Failed(str(exc), EXIT_BAD_JOB) from exc
    found = [finding.as_dict() for finding in proof.findings]
    if output == JSON:
        counts = {name: value for name, value in proof._asdict().items() if name != "findings"}
        click.echo(json.dumps({**counts, "breaches": proof.breaches, "findings": found}, indent=2))
    elif output == JSONL:
        for finding in found:
            click.echo(json.dumps(finding))
    else:
        for finding in found:
            click.echo(_told(finding))
        for sentence in proof.sentences():
            click.echo(sentence)
    if output == JSONL:
        say(proof.sentences()[-1])
    if proof.breaches:
        context.exit(EXIT_FAILED)


@history.command("replay")
@click.argument("run", metavar="RUN")
@click.argument("directories", metavar="DIR...", nargs=-1)
@click.option(
    "--journals", "more", metavar="DIR", multiple=True, help="Another way to give a DIR. May be given several times."
)
@click.option(
    "--clock-skew",
    "clock_skew_s",
    metavar="SECONDS",
    type=Finite(0, 3600),
    default=0.5,
    show_default=True,
    help="By how much the clocks of two nodes, and of the ledger, may differ.",
)
@click.option("--output", "-o", type=click.Choice([TABLE, JSON, JSONL]), default=TABLE, show_default=True)
@click.pass_context
def replay(
    context: click.Context,
    run: str,
    directories: tuple[str, ...],
    more: tuple[str, ...],
    clock_skew_s: float,
    output: str,
) -> None:
    """Replay what happened to RUN through the real rules: what each node heard, decided and did, and what differs.

    DIR is a node's journal (STATE_DIR/journal), or a directory with several below it, such as a journal_sink. Give the
    journals of all nodes.

    Each record of the run is asked of the rules of elections and of the ledger again, in the order of the logical
    clocks. Where the record says something else than the rules decide, the difference is named. The end says what no
    journal records, and the replay therefore does not judge.

    Exit codes: 0 no difference; 1 differences; 65 a journal cannot be read, or none has the run.
    """
    from coordd.history.replay.replay import replay as play, step_dict

    if not directories and not more:
        raise click.UsageError("Missing argument 'DIR...'.", context)  # as click says it: --journals may have them
    try:
        replayed = play([*directories, *more], run, clock_skew_s)
    except UnavailableError as exc:
        raise Failed(str(exc), EXIT_BAD_JOB) from exc
    if output == JSON:
        click.echo(json.dumps(replayed.as_dict(), indent=2))
    elif output == JSONL:
        for step in replayed.steps:
            click.echo(json.dumps(step_dict(step)))
        for difference in replayed.differences:
            say(f"difference {difference}")
    else:
        from coordd.cli.history.replayed import show

        show(replayed)
    if replayed.differences:
        context.exit(EXIT_FAILED)


def _told(finding: dict[str, object]) -> str:
    """One finding: its kind and sentence, then its lines."""
    from coordd.core.visible import visible

    lines = finding["lines"]
    assert isinstance(lines, list)
    run = f"{finding['run']}: " if finding["run"] else ""
    places = "".join([f"\n    {file}:{line}" if line else f"\n    {file}" for file, line in lines])
    return visible(f"{finding['severity']} {finding['kind']}: {run}{finding['detail']}") + places
