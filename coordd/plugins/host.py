"""The process of a plug-in: ``python -m coordd.plugins.host GROUP NAME CONTEXT``. CONTEXT is a JSON object.

It loads the plug-in and calls it once. Whatever the plug-in raises, prints or leaks stays in this process, which its
starter limits and kills. What the plug-in prints goes to standard error.
"""

from __future__ import annotations

import inspect
import json
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from coordd.plugins import (
    BOOT_STEPS,
    CHECKS,
    CODES,
    COULD_NOT_LOOK,
    PROBLEM,
    READY,
    SERVICES,
    SINKS,
    STRATEGIES,
    TOPICS,
    TRIGGERS,
    BootContext,
    CheckContext,
    ServiceContext,
    SinkContext,
    TopicContext,
    TriggerContext,
)
from coordd.plugins.installed import misfit, points

TEXT_MAX = 1000

# Bytes of data of a plug-in that a run calls; those that the daemon starts have limits from there.
DATA_BYTES_MAX = 2**30

# A plug-in that has a time limit ends itself this long (seconds) after it: its starter has died, or would have.
ORPHAN_S = 1.0


def loaded(group: str, name: str) -> Any:
    """The plug-in. Raises LookupError if no package brings it, or one that is not for this version of coordd; and
    whatever its module raises.
    """
    point = next(iter(points(group, name)), None)
    if point is None:
        raise LookupError(f"no installed package brings {name} (entry points, group {group})")
    if wrong := misfit(point):
        raise LookupError(wrong)
    found = point.load()
    if not callable(found):
        raise TypeError(f"{point.value} is not callable")
    return found


def of_check(name: str, context: dict[str, Any], say: Callable[[str], None]) -> int:
    """Look once; the exit code and one line say what was seen."""
    said = loaded(CHECKS, name)(CheckContext(**{**context, "argv": tuple(context["argv"])}))
    state, text, figures = (*((said,) if isinstance(said, str) else tuple(said)), "", "")[:3]
    if state not in CODES:
        say(f"it answered {state!r:.60}; expected one of {', '.join(CODES)}")
        return COULD_NOT_LOOK
    say(f"{_line(text)}|{_line(figures)}" if figures else _line(text))
    return CODES[state]


def of_service(name: str, context: dict[str, Any], say: Callable[[str], None]) -> int:
    """Serve until the process is ended; a service that returns or raises has ended."""
    threading.Thread(target=_end_with_starter, daemon=True).start()
    returned, said = _called(SERVICES, name, ServiceContext(**context, say=lambda text: say(_line(text))))
    say(f"{PROBLEM} {'it returned; a service serves until it is ended' if returned else said}")
    return 1


def of_boot_step(name: str, context: dict[str, Any], say: Callable[[str], None]) -> int:
    """Do it once; when it returns, it is done, and a text that it returns is for people."""
    return _finished(BOOT_STEPS, name, BootContext(**context, say=lambda text: say(_line(text))), say)


def _finished(group: str, name: str, context: object, say: Callable[[str], None]) -> int:
    """Call it once: it says READY with what it returned, or PROBLEM and why it failed."""
    threading.Thread(target=_end_with_starter, daemon=True).start()
    done, said = _called(group, name, context)
    say(f"{READY if done else PROBLEM} {said}")
    return 0 if done else 1


def of_topic(name: str, context: dict[str, Any], say: Callable[[str], None]) -> int:
    """Act on an election that is won; a text that it returns is for people."""
    return _finished(TOPICS, name, TopicContext(**context), say)


def of_sink(name: str, context: dict[str, Any], say: Callable[[str], None]) -> int:
    """Hand one outcome over, which is on standard input; when it returns, the sink has it."""
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, DATA_BYTES_MAX))
    taken, said = _called(SINKS, name, SinkContext(**context, outcome=json.load(sys.stdin)))
    say(str(said) or "taken")
    return 0 if taken else 1


def of_trigger(name: str, context: dict[str, Any], say: Callable[[str], None]) -> int:
    """Look once; each arrival is a JSON object with its key and its fields, and so is the reason why it failed."""
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, DATA_BYTES_MAX))

    def look(function: Callable[[TriggerContext], Any]) -> None:
        for one in function(TriggerContext(**{**context, "argv": tuple(context["argv"])})):
            key, fields = (one, {}) if isinstance(one, str) else one if _is_pair(one) else (None, None)
            if not isinstance(key, str) or not isinstance(fields, Mapping):
                raise TypeError(f"it said {one!r:.60}; expected a text, or a text and its fields")
            say(json.dumps({"key": key, "fields": dict(fields)}, default=str))

    looked, why = _called(TRIGGERS, name, look=look)
    if not looked:
        say(json.dumps({"problem": why}))
    return 0


def of_strategy(name: str, context: dict[str, Any], say: Callable[[str], None]) -> int:
    """Answer questions until standard input ends; each is a line, and so is its answer."""
    from coordd.core.node.room import Past, Room

    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, DATA_BYTES_MAX))
    kinds: dict[str, Callable[..., Any]] = {"room": Room, "past": Past}
    strategy = loaded(STRATEGIES, name)
    _limit(None)
    say(READY)
    for line in sys.stdin.buffer:
        [(kind, about)] = json.loads(line).items()
        _limit(context["asked_s"])
        answers = [_answer(strategy, kinds[kind](*one)) for one in about]
        _limit(None)
        say(json.dumps(answers))
    return 0


def _answer(strategy: Callable[[Any], Any], about: object) -> tuple[object, str]:
    """What it says, as far as JSON can say it; and why there is nothing."""
    try:
        said = strategy(about)
        plain = said is None or isinstance(said, bool | float) or (isinstance(said, int) and abs(said) < 10**100)
        return (said if plain else _line(repr(said))), ""
    except SystemExit as exc:
        return None, f"it called exit({exc.code!r:.40})"
    except Exception as exc:  # whatever a plug-in raises is told
        return None, f"failed: {type(exc).__name__}: {_line(exc)}"


def _is_pair(one: object) -> bool:
    return isinstance(one, tuple | list) and len(one) == 2


def _called(
    group: str, name: str, context: object = None, look: Callable[[Any], None] | None = None
) -> tuple[bool, str]:
    """True and what it returned, for people; or False and why it failed. A coroutine function runs under trio.
    ``look``: what calls it instead.
    """
    try:
        function = loaded(group, name)
        if look is not None:
            said: Any = look(function)
        elif inspect.iscoroutinefunction(function):
            import trio

            said = trio.run(function, context)
        else:
            said = function(context)
    except SystemExit as exc:
        return False, f"it called exit({exc.code!r:.40})"
    except BaseException as exc:  # whatever a plug-in raises is told
        traceback.print_exc()
        return False, _failed(exc)
    return True, "" if said is None else _line(said)


def _end_with_starter() -> None:
    """Standard input ends when the daemon is gone, however that ended."""
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


KINDS: dict[str, Callable[[str, dict[str, Any], Callable[[str], None]], int]] = {
    BOOT_STEPS: of_boot_step,
    CHECKS: of_check,
    SERVICES: of_service,
    SINKS: of_sink,
    STRATEGIES: of_strategy,
    TOPICS: of_topic,
    TRIGGERS: of_trigger,
}


def _limit(seconds: float | None) -> None:
    """The kernel ends this process a little later than that. None: there is no limit."""
    signal.setitimer(signal.ITIMER_REAL, 0.0 if seconds is None else seconds + ORPHAN_S)


def _failed(exc: BaseException) -> str:
    text = _line(exc)
    return f"it failed: {type(exc).__name__}" + (f": {text}" if text else "")


def _line(text: object) -> str:
    return " ".join(str(text)[:TEXT_MAX].replace("|", "/").split())


def main() -> NoReturn:
    """Call the plug-in."""
    group, name, context = sys.argv[1:4]
    out = os.dup(1)
    os.dup2(2, 1)

    def say(text: str) -> None:
        os.write(out, f"{text}\n".encode(errors="replace"))

    code, word = COULD_NOT_LOOK, "" if group == CHECKS else f"{PROBLEM} "
    try:
        said = json.loads(context)
        _limit(said.get("timeout_s"))
        code = KINDS[group](name, said, say)
    except SystemExit as exc:
        say(f"{word}it called exit({exc.code!r:.40})")
    except BaseException as exc:  # whatever a plug-in raises is told
        say(f"{word}{_failed(exc)}")
    os._exit(code)  # threads and exit handlers of the plug-in must not hold it up


if __name__ == "__main__":
    main()
