"""`python -m coordd.outcomes.message`: send a message of another process to the first address that takes it.

The message is in COORDD_EVENT, the addresses in COORDD_HOOK_SECRET. The daemon's connections take it to RabbitMQ; when
no daemon answers, this process connects itself. If the last call fails, or nobody took the message within its time, the
fallback gets it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from datetime import datetime
from itertools import groupby
from typing import Any

from coordd.config.hooks.delivery import (
    LINE_BYTES_MAX,
    Delivered,
    Delivery,
    Question,
    read_delivered,
    read_told,
    written,
)
from coordd.config.hooks.publisher import EVENTS, EXPIRED, TIME_S
from coordd.core.jobs.schedule import parse_duration
from coordd.outcomes.sending import JSON, offer
from coordd.services.hooks.call import REFUSED, run

# How much longer (seconds) than the call itself the daemon may take.
ANSWER_S = 5.0


def main(environ: dict[str, str]) -> int:
    """Send it; returns the exit code."""
    publisher, message = json.loads(environ.pop("COORDD_HOOK_SECRET")), json.loads(environ.pop("COORDD_EVENT"))
    ident, attempt = environ["COORDD_RUN"], int(environ["COORDD_ATTEMPT"])
    wanted_s = message["expires_s"] or (parse_duration(publisher["expires"]) if publisher["expires"] else 0.0)
    left_s = _left_s(environ["COORDD_FIRE_TIME"], wanted_s or TIME_S)
    if left_s <= 0 and not (attempt and _sent_again(publisher.get("socket", ""), ident)):
        print(f"error: it has expired: nobody took it within {wanted_s or TIME_S:g} s", file=sys.stderr)
        code = EXPIRED
    else:
        code = _sent(publisher, ident, message, max(0.0, left_s) if wanted_s else 0.0, repeated=attempt > 0)
    last = attempt + 1 >= publisher["attempts"]
    if code == 0 or not publisher["fallback"] or not (last or code == EXPIRED):
        return code
    print(f"the fallback gets it: {publisher['fallback'][0]}", file=sys.stderr)
    return run(publisher["fallback"], message["body"], publisher["timeout_s"], environ)


def _left_s(recorded: str, wanted_s: float) -> float:
    """How much longer (seconds) the message is wanted."""
    return datetime.fromisoformat(recorded).timestamp() + wanted_s - time.time()


def _sent_again(path: str, run: str) -> bool:
    """True if a person has sent it again: it is wanted, however old it is. False also if no daemon says so."""
    line, _ = _asked(path, Question(run), ANSWER_S)
    try:
        return line is not None and read_told(line).again
    except ValueError:
        print("the daemon does not say whether a person has sent it again", file=sys.stderr)
        return False


def _sent(publisher: dict[str, Any], ident: str, message: dict[str, Any], left_s: float, repeated: bool) -> int:
    """Offer it to each address in turn; returns 0, or the exit code of the last one."""
    code, body, share_s = REFUSED, message["body"], publisher["timeout_s"] / len(publisher["to"])
    kind = message.get("kind", JSON)
    for is_amqp, found in groupby(publisher["to"], lambda to: to.startswith("amqp")):
        group = tuple(found)
        if group == (EVENTS,):
            print("the record of the message is what listeners to events see")
            return 0
        if is_amqp:
            secrets = {"password_file": publisher["password_file"], "tls_ca": publisher["tls_ca"]}
            delivery = Delivery(group, ident, body, kind, share_s * len(group), left_s, repeated, **secrets)
            answer, asked = _handed_over(publisher.get("socket", ""), delivery)
            if answer is not None:
                code, repeated = answer.code, answer.repeated
                print("\n".join(answer.said), file=sys.stderr if code else sys.stdout)
                if code == 0:
                    return 0
                continue
            repeated = repeated or asked  # the daemon was killed meanwhile
        for to in group:
            said = json.dumps({"id": ident, "body": body}) if to.startswith("file:") else body  # one line
            code = offer(publisher, to, ident, said, share_s, kind=kind, until_s=left_s, repeated=repeated)
            if code == 0:
                return 0
            repeated = repeated or is_amqp
    return code


def _handed_over(path: str, delivery: Delivery) -> tuple[Delivered | None, bool]:
    """What the daemon says; None if none answers. And whether it was asked."""
    line, asked = _asked(path, delivery, delivery.timeout_s + ANSWER_S)
    try:
        return (read_delivered(line) if line is not None else None), asked
    except ValueError as exc:
        print(f"no daemon answers ({exc}): this call connects itself", file=sys.stderr)
        return None, asked


def _asked(path: str, what: Delivery | Question, timeout_s: float) -> tuple[bytes | None, bool]:
    """The daemon's line; None if there is none. And whether it was asked."""
    asked = False
    if not path:
        return None, asked
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(timeout_s)
            link.connect(path)
            asked = True
            link.sendall(written(what))
            with link.makefile("rb") as file:
                return file.readline(LINE_BYTES_MAX), asked
    except OSError as exc:
        print(f"no daemon answers ({exc}): this call does without", file=sys.stderr)
        return None, asked


if __name__ == "__main__":
    sys.exit(main(dict(os.environ)))
