"""coordctl wire: prints what is on the bus."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator
from typing import IO, TYPE_CHECKING, Any

import click

from coordd.cli.options import EXIT_FAILED, JSON, Command, Finite, asked, json_document, say
from coordd.cli.show.phrases import some

if TYPE_CHECKING:
    from coordd.cli.wire.reading import Raw
    from coordd.config.sections import Config

COUNT, COUNT_MAX = 1000, 100_000
SECONDS = 10.0
LOOK_S = 0.5

# A document is written whole, so it is held whole.
DOCUMENT_MAX = 10_000


@click.command("wire", cls=Command)
@click.argument("capture", metavar="[FILE|-]", required=False)
@click.option("--config", metavar="FILE", help="coordd.toml (or COORDD_CONFIG) [default: /etc/coordd/coordd.toml].")
@click.option("--follow", "-f", is_flag=True, help="Until ^C, whatever --count and --for say.")
@click.option("--count", "-n", type=click.IntRange(1, COUNT_MAX), default=COUNT, show_default=True, help="Messages.")
@click.option(
    "--for", "seconds", type=Finite(0.1, 86_400), default=SECONDS, show_default=True, help="Seconds to listen."
)
@click.option("--type", "types", metavar="TYPE", multiple=True, help="Only messages with such an event; repeatable.")
@click.option("--save", metavar="FILE", help="Also write the messages, as they came, to a new file.")
@click.pass_context
def wire(context: click.Context, /, **given: Any) -> None:
    """The messages on the bus, verified with the keyring and decoded by the msgpack package instead of coordd's code.

    It listens beside the nodes, and needs what they need: configuration, keyring, password (so: root, or the daemon's
    user), and no daemon. FILE is a capture of --save, read instead of the bus. What cannot be verified is named with
    the reason, and not decoded. Exit 1 if there was such a message.
    """
    from coordd.adapters import onhost
    from coordd.cli.wire.reading import Reader
    from coordd.config import keyring
    from coordd.config.settings import load

    output = asked().output
    if given["follow"] and (output == JSON or given["capture"]):
        raise click.UsageError("--follow goes on until ^C: it needs a bus, and --output table or jsonl")
    onhost.trust_service()
    config = load(given["config"], os.environ)
    cluster = config.cluster
    reader = Reader(cluster.name, keyring.load(cluster.keyring, os.environ) if cluster.is_signed else None)
    wanted, counts, document = set(given["types"]), Counter[str](), list[dict[str, Any]]()
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(_messages(config, given)) as messages:
        for raw in messages:
            said = reader.read(raw)
            counts[said["why"] or ("verified" if said["verified"] else "not signed here")] += 1
            if wanted and not wanted & {event.get("type") for event in (said["packet"] or {}).get("events", ())}:
                continue
            if output == JSON:
                document.append(said)
                if len(document) == DOCUMENT_MAX:
                    say(f"coordctl: a document has at most {DOCUMENT_MAX} messages; --output jsonl has no limit")
                    break
            else:
                asked().item(said, _lines(said))
    if output == JSON:
        click.echo(json_document(document))
    bad = sum(count for why, count in counts.items() if why not in ("verified", "not signed here"))
    told = "; ".join([f"{count} {why}" for why, count in counts.most_common()])
    say(f"{some(counts.total(), 'message')}" + (f": {told}" if told else ""))
    if bad:
        context.exit(EXIT_FAILED)


def _messages(config: Config, given: dict[str, Any]) -> Generator[Raw, None, None]:
    """The messages of the bus or of the capture, within the limits."""
    from coordd.cli.wire import taps

    limit = COUNT_MAX * 1000 if given["follow"] else given["count"]
    with contextlib.ExitStack() as stack:
        if given["capture"]:
            source = taps.captured(stack.enter_context(_opened(given["capture"])), given["capture"])
        else:
            ended = None if given["follow"] else time.monotonic() + given["seconds"]
            source = _heard(stack.enter_context(contextlib.closing(taps.tap(config.cluster))), ended)
        save = stack.enter_context(_new(given["save"])) if given["save"] else None
        for number, raw in enumerate(source, 1):
            if save is not None:
                save.write(taps.capture_line(raw))
                save.flush()
            yield raw
            if number >= limit:
                return


def _heard(tap: Any, until: float | None) -> Iterator[Raw]:
    while until is None or time.monotonic() < until:
        left_s = LOOK_S if until is None else min(LOOK_S, max(0.01, until - time.monotonic()))
        raw = tap.read(left_s)
        if raw is not None:
            yield raw


def _opened(path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    if path == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    try:
        return open(path, "rb")
    except OSError as exc:
        raise click.FileError(path, exc.strerror or str(exc)) from exc


def _new(path: str) -> IO[bytes]:
    """A capture holds arguments and logs of runs, so only its owner may read it."""
    try:
        return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
    except OSError as exc:
        raise click.FileError(path, exc.strerror or str(exc)) from exc


def _lines(said: dict[str, Any]) -> str:
    """One line for each event; one for a message that is not decoded."""
    from coordd.cli.show.brief import event_text
    from coordd.cli.show.phrases import plain, safe

    to = "" if said["channel"] == "all" else f" to={plain(said['channel'])}"
    key = f" key={plain(said['key'])}" if said["key"] else ""
    if said["packet"] is None:
        word = "not verified" if said["verified"] is False else "not decoded"
        return f"{said['at'][11:23]} {word}: {safe(said['why'])}{key}{to} size={said['size']} head={said['head']}"
    packet = said["packet"]
    head = {name: packet.get(name, "") for name in ("hostname", "pid")}
    notes = f" ({safe('; '.join(said['notes']))})" if said["notes"] else ""
    lines = [f"{event_text({**_fit(event), **head})}{to}{key}{notes}" for event in packet["events"]]
    return "\n".join(lines) or f"{said['at'][11:23]} {plain(head['hostname'])}: a packet without events{key}{notes}"


def _fit(event: dict[str, Any]) -> dict[str, Any]:
    """``event_text`` needs an instant that has a date."""
    stamped = event.get("timestamp")
    fits = isinstance(stamped, int | float) and 0 <= stamped < 1e11
    return event if fits else {**event, "timestamp": 0.0, "stamped": stamped}
