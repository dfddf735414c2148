"""Applications on YARN by the command `yarn application`, where the ResourceManager's REST interface is out of reach.

The command filters by tag, and shows no tags. So attempt and token of an application are found by asking for the tokens
that the caller knows; an application of another one counts as unmarked. Each question starts a JVM.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Mapping
from typing import Any

from coordd.adapters.cluster.hadoop import SPARK_PREFIX
from coordd.adapters.cluster.http import shown
from coordd.adapters.cluster.yarn import CLOCKS_DIFFER_S, application_of, untagged
from coordd.core.jobs.applications import PREFIX, TOKEN, Application
from coordd.errors import UnavailableError

COMMAND_S = 60.0
OUTPUT_MAX = 16 * 1024 * 1024

# How many ended applications are looked at for one that is older than a submission.
OLDEST = 3

_ID = re.compile(r"application_\d{1,20}_\d{1,20}", re.ASCII)
_FIELD = re.compile(r"\t([A-Z][A-Za-z -]{1,60}) : ?(.*)")
_GONE = "doesn't exist in RM"


class YarnCommand:
    """The applications of one YARN cluster."""

    kind = "yarn"

    def __init__(self, command: str, conf: Mapping[str, str], env: Mapping[str, str]) -> None:
        """``conf``: Spark's settings; ``env``: of the program. Raises UnavailableError: the command would ask another
        cluster than Spark.
        """
        wrong = sorted(key for key in conf if key.startswith(f"{SPARK_PREFIX}yarn.resourcemanager."))
        if wrong:
            raise UnavailableError(
                f"{command} reads the Hadoop configuration alone, and not {wrong[0]}: put it into yarn-site.xml"
            )
        self.place = f"{command} application"
        self._command, self._env = command, dict(env)
        self._tokens: dict[str, int] = {}  # by id
        self._details: dict[str, dict[str, str]] = {}  # by id; of one that has ended they stay

    def find(self, mark: str, known: Collection[str] = (), tokens: Collection[int] = ()) -> list[Application]:
        """All applications of a run, also ended ones. Raises UnavailableError: nobody can tell."""
        listed = self._listed(mark)
        for token in sorted(tokens, reverse=True):
            if listed.keys() <= self._tokens.keys():
                break
            for ident in self._listed(f"{PREFIX}{TOKEN}-{token}"):
                self._tokens.setdefault(ident, token)
        return [self._application(mark, app) for _, app in sorted(listed.items())]

    def of_cluster(self, mark: str) -> list[Application]:
        """Raises UnavailableError: the command does not say of which run an application is."""
        raise UnavailableError(
            f"{self.place} shows no tags: whose applications are alive is told by the REST interface"
        )

    def end(self, ident: str) -> None:
        """Ask for the end of an application; it may take a while. Raises UnavailableError when that is refused."""
        try:
            done = self._run("-kill", ident)
        except subprocess.TimeoutExpired:
            return  # it was asked for; the command waits for the end
        self._checked(done, "-kill")

    def hidden(self, known: Collection[str] = (), *, ended: bool = False, named: str = "") -> dict[str, str]:
        """As by REST: the id that spark-submit has printed is asked for. Raises UnavailableError."""
        if not named or self._status(named) is None:
            return {}
        return untagged(self.place, named)

    def keeps_since(self, since: float) -> str:
        """As by REST; but the command does not say how many applications are kept. Raises UnavailableError."""
        ended = sorted(self._listed("", states="FINISHED,FAILED,KILLED"), key=_number)
        for ident in ended[:OLDEST]:
            detail = self._status(ident) or {}
            if 0 < _milliseconds(detail, "Finish-Time") <= (since - CLOCKS_DIFFER_S) * 1000:
                return ""
        return f"{self.place} shows no application that ended before the submission"

    # ---- steps

    def _application(self, mark: str, app: dict[str, Any]) -> Application:
        ident = str(app["id"])
        detail = self._details.get(ident)
        if detail is None or detail.get("State") != app["state"]:
            detail = self._status(ident) or {}
            self._details[ident] = detail
        token = self._tokens.get(ident)
        tags = [mark] + ([f"{PREFIX}{TOKEN}-{token}"] if token is not None else [])
        return application_of(
            {
                **app,
                "applicationTags": ",".join(tags),
                "diagnostics": detail.get("Diagnostics", ""),
                "startedTime": _milliseconds(detail, "Start-Time"),
                "finishedTime": _milliseconds(detail, "Finish-Time"),
            }
        )

    def _listed(self, tag: str, states: str = "ALL") -> dict[str, dict[str, Any]]:
        """The applications with that tag ("": all), by id."""
        text = self._checked(self._ask("-list", "-appStates", states, *(("-appTags", tag) if tag else ())), "-list")
        if "Total number of applications" not in text:
            raise UnavailableError(f"{self.place} -list: expected a table, found {shown(text.encode())}")
        found = {}
        for line in text.splitlines():
            words = [word.strip() for word in line.split("\t")]
            if len(words) >= 9 and _ID.fullmatch(words[0]):  # a name may have tabs
                state, final, _, url = words[-4:]
                name = "\t".join(words[1:-7])
                found[words[0]] = {
                    "id": words[0],
                    "name": name,
                    "state": state,
                    "finalStatus": final,
                    "trackingUrl": url,
                }
        return found

    def _status(self, ident: str) -> dict[str, str] | None:
        """The fields of one application; None if there is no such one."""
        done = self._ask("-status", ident)
        if done.returncode and _GONE in done.stdout + done.stderr:
            return None
        text = self._checked(done, "-status")
        fields: dict[str, str] = {}
        last = ""
        for line in text.splitlines():
            match = _FIELD.fullmatch(line)
            if match is not None:
                last = match[1].strip()
                fields.setdefault(last, match[2])
            elif last == "Diagnostics":
                fields[last] += f"\n{line}"
        if fields.get("Application-Id") != ident:
            raise UnavailableError(f"{self.place} -status: expected {ident}, found {shown(text.encode())}")
        return fields

    def _ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        try:
            return self._run(*words)
        except subprocess.TimeoutExpired as exc:
            said = exc.stderr or b""  # bytes, although text was asked for
            raise UnavailableError(
                f"{self.place} {words[0]}: expected an answer within {COMMAND_S:g} s; Hadoop tries for minutes without"
                f" a valid ticket (klist) or a ResourceManager; it says {shown(said[-1000:])}"
            ) from exc

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [self._command, "application", *words]
        try:
            return subprocess.run(
                argv,
                env=self._env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMMAND_S,
                check=False,
            )
        except OSError as exc:
            raise UnavailableError(f"{self.place}: {exc}") from exc

    def _checked(self, done: subprocess.CompletedProcess[str], word: str) -> str:
        """What it printed. Raises UnavailableError."""
        if done.returncode or len(done.stdout) > OUTPUT_MAX:
            said = done.stderr.strip() or done.stdout.strip()
            raise UnavailableError(
                f"{self.place} {word} ended with {done.returncode}, and says {shown(said[-1000:].encode())}"
            )
        return done.stdout


def _milliseconds(fields: Mapping[str, str], name: str) -> int:
    text = fields.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0


def _number(ident: str) -> tuple[int, int]:
    """Applications in the order of their submission."""
    _, cluster, number = ident.split("_")
    return int(cluster), int(number)
