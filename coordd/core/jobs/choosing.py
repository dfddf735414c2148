"""Finds the texts of a job's definition that choose the code that runs. They must not contain parameters. Pure.

A person who may trigger a job chooses its arguments. A value inside a class path, a library path or a shell script
would also choose the program, and with it everything that the job's user may do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# Spark's keys: jars, packages and shipped files, JVM options, class paths, classes that Spark loads by name,
# interpreters, images, scripts. Environment variables of the cluster are checked as variables (CONF_ENV).
CONF = re.compile(
    r"""spark\.(
        jars(\..*)? | files | archives | plugins(\..*)? | submit\.pyFiles | extraListeners | yarn\.dist\..* | yarn\.jars
      | yarn\.archive | yarn\.user\..* | metrics\.conf(\..*)? | serializer | sql\.catalog\.[^.]+ | r\..*command
      | hadoop\.(fs|io)\..*(impl|codecs?|serializations) | kubernetes\..*upload\.path | repl\..*
      | .*(java|jvm)options | .*classpath | .*classpath(first|path) | .*librarypath | .*\.jars(\.path)? | .*listeners?
      | .*extensions | .*python | .*script | .*image | .*podtemplatefile | .*[.-]impl | .*\.class(es)? | .*registrator
      | .*registrators | .*classestoregister | .*\.manager | .*codec | .*provider(s|classes)? | .*plugins? | .*factory
      | .*command | .*filters | .*submissioncommand
    )""",
    re.VERBOSE | re.IGNORECASE,
)
CONF_ENV = re.compile(
    r"spark\.(executorEnv|yarn\.appMasterEnv|kubernetes\.driverEnv|mesos\.driverEnv)\.(.+)", re.IGNORECASE
)

# Variables that tell the loader, shells, interpreters, Java, Spark and Hadoop which code to run, or where to find it.
ENV = re.compile(
    r"""PATH | HOME | ENV | BASH_ENV | BASH_FUNC_.* | SHELLOPTS | BASHOPTS | PS4 | IFS | PROMPT_COMMAND | SHELL
      | (LD|DYLD|GCONV|GLIBC|MALLOC)_.* | LOCPATH | NLSPATH
      | PYTHON.* | VIRTUAL_ENV | CONDA_.* | PERL.* | RUBY.* | GEM_.* | NODE_.* | R_.* | LUA_.* | PHP.*
      | .*JAVA.* | JDK_.* | JRE_.* | .*CLASSPATH | .*_OPTS | .*_OPTIONS | .*LIBRARY_PATH
      | PYSPARK_.* | SPARK_.* | HADOOP_.* | YARN_.* | HIVE_.* | HBASE_.* | MAPRED_.* | SCALA_.*
      | EDITOR | VISUAL | PAGER | GIT_.* | SSH_.*""",
    re.VERBOSE,
)

# Programs that read a script: the options with code as their value, and those with another value.
_SHELLS = frozenset(("sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "fish"))
_CODE_OPTIONS = {
    "python": ("-c", "-m"), "pypy": ("-c", "-m"), "perl": ("-e", "-E", "-M", "-I"), "ruby": ("-e", "-r", "-I"),
    "node": ("-e", "-p", "--eval", "--print", "-r", "--require", "--import"), "php": ("-r", "-B", "-R", "-E"),
    "lua": ("-e", "-l"), "Rscript": ("-e",), "R": ("-e", "-f"), "awk": ("-f",), "gawk": ("-f", "-e"), "mawk": ("-f",),
    "sed": ("-e", "-f"), "java": ("-jar", "-cp", "-classpath", "--class-path", "-m", "--module", "-p"),
}  # fmt: skip
_OTHER_OPTIONS = {
    "python": ("-W", "-X"),
    "pypy": ("-W", "-X"),
    "java": (),
    "awk": ("-F", "-v"),
    "gawk": ("-F", "-v"),
    "mawk": ("-F", "-v"),
}

# Programs that run another program, and how many own arguments come before it.
_WRAPPERS = {
    "env": 0, "nice": 0, "nohup": 0, "setsid": 0, "ionice": 0, "stdbuf": 0, "sudo": 0, "doas": 0, "time": 0, "xargs": 0,
    "exec": 0, "timeout": 1, "taskset": 1, "chrt": 1, "flock": 1, "runuser": 0, "busybox": 0, "systemd-run": 0,
}  # fmt: skip


def conf_chooses(key: str) -> bool:
    """True for a Spark property whose value chooses code."""
    inner = CONF_ENV.fullmatch(key)
    return env_chooses(inner.group(2)) if inner else bool(CONF.fullmatch(key))


def env_chooses(name: str) -> bool:
    """True for an environment variable whose value chooses code."""
    return bool(ENV.fullmatch(name))


def choosing_places(argv: Sequence[str]) -> dict[int, str]:
    """place in argv -> why the text there chooses code."""
    found = {0: "it chooses the program"}
    at = 0
    while at < len(argv):
        name = argv[at].rpartition("/")[2]
        found[at] = "it chooses the program"
        if name not in _WRAPPERS:
            break
        at = _wrapped(argv, at, found)
    else:
        return found
    kind = re.sub(r"[0-9.]+$", "", name)
    if name in _SHELLS or kind in _CODE_OPTIONS:
        _script(argv, at, name if name in _SHELLS else kind, found)
    return found


def _wrapped(argv: Sequence[str], at: int, found: dict[int, str]) -> int:
    """The place of the program that a wrapper runs."""
    own = _WRAPPERS[argv[at].rpartition("/")[2]]
    at += 1
    while at < len(argv) and (argv[at].startswith("-") or "=" in argv[at].partition("/")[0] or own):
        own -= not argv[at].startswith("-") and "=" not in argv[at]
        found[at] = f"it comes before the program that {argv[0]} runs"
        at += 1
    return at


def _script(argv: Sequence[str], at: int, kind: str, found: dict[int, str]) -> None:
    """The places of an interpreter's script, up to the end of its options."""
    program = argv[at]
    code = f"its value would be read as code by {program}: give it as an argument of the script, there it stays text"
    at += 1
    while at < len(argv):
        found[at] = code
        word = argv[at]
        if kind in _SHELLS and re.fullmatch(r"[-+][A-Za-z]*c[A-Za-z]*", word):
            at += 1
            while at < len(argv) and argv[at].startswith("-"):  # bash -c -e SCRIPT
                found[at] = code
                at += 1
            found[at] = code
            return
        if not word.startswith(("-", "+")) or word == "-":
            return  # the script, or its file
        if word in _CODE_OPTIONS.get(kind, ()):
            found[at + 1] = code
            if kind in ("python", "pypy") or word == "-jar":
                return
            at += 1
        elif word in _OTHER_OPTIONS.get(kind, ()):
            at += 1
        at += 1
