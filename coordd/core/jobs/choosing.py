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

_VALUED = {kind: {*code, *_OTHER_OPTIONS.get(kind, ())} for kind, code in _CODE_OPTIONS.items()}

# Programs that run another program: how many own arguments come before it, the short options (":" after one that takes
# a value, as for getopt), and the long ones that take a value.
_WRAPPERS = {
    "env": (0, "iv0u:C:S:a:", "unset chdir split-string argv0"), "nice": (0, "n:", "adjustment"), "nohup": (0, "", ""),
    "setsid": (0, "cfwVh", ""), "ionice": (0, "c:n:tp:P:u:hV", "class classdata pid pgid uid"), "exec": (0, "a:cl", ""),
    "stdbuf": (0, "i:o:e:", "input output error"), "timeout": (1, "k:s:vfp", "kill-after signal"),
    "sudo": (0, "ABbEeHhiKklnNPSsVvC:c:D:g:p:R:r:T:t:U:u:a:",
             "close-from chdir group host prompt chroot role command-timeout type other-user user login-class"),
    "doas": (0, "LnsC:u:a:", ""), "time": (0, "apvVho:f:", "output format"), "taskset": (1, "acphV", ""),
    "xargs": (0, "0oprtxieln:P:I:L:s:d:a:E:",
              "max-args max-procs max-lines max-chars delimiter arg-file process-slot-var"),
    "chrt": (1, "abdfiorRmpvhVT:P:D:", "sched-runtime sched-period sched-deadline"), "busybox": (0, "", ""),
    "flock": (1, "sxeunoFVhw:E:c:", "wait timeout conflict-exit-code command"),
    "runuser": (1, "flmpPThVu:c:g:G:s:w:", "user command session-command group supp-group shell whitelist-environment"),
    "su": (1, "flmpPThVc:g:G:s:w:", "command session-command group supp-group shell whitelist-environment"),
    "chroot": (1, "", "userspec groups"),
    "setpriv": (0, "dhV", "reuid regid ruid euid rgid egid groups inh-caps ambient-caps bounding-set pdeathsig"),
    "unshare": (0, "muinpUCTrcfhVR:w:S:G:l:", "root wd setuid setgid load-interp map-users map-groups"),
    "nsenter": (0, "amuinpUCTreZFhVt:S:G:", "target setuid setgid"), "prlimit": (0, "hVp:o:", "pid output"),
    "numactl": (0, "abHslhi:p:P:w:N:C:m:", "interleave preferred weighted-interleave cpunodebind physcpubind membind"),
    "gosu": (1, "", ""), "su-exec": (1, "", ""), "tini": (0, "svwgle:p:", ""), "dumb-init": (0, "cvhVr:", "rewrite"),
    "systemd-inhibit": (0, "h", "what who why mode"), "systemd-cat": (0, "ht:p:", "identifier priority"),
    "chronic": (0, "ve", ""), "strace": (0, "dfFkqyYtTvVhiCcrwzZnDe:o:E:a:s:p:u:b:I:O:S:P:X:U:", ""),
    "systemd-run": (0, "GPrqtdSvhu:p:H:M:E:C:",
                    "unit property description slice service-type uid gid nice working-directory setenv host machine"),
}  # fmt: skip
_USER = re.compile(r"-[A-Za-z]*u.*|--u(s(er?)?)?(=.*)?")  # with it, runuser takes no user before the program
_SPLIT = re.compile(r"-[iv0]*S.*|--s[a-z-]*(=.*)?")  # env makes words of the value


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
        found[at] = "it chooses the program"
        if _base(argv[at]) not in _WRAPPERS:
            break
        at = _wrapped(argv, at, found)
    else:
        return found
    kind = _reads(argv[at])
    if kind in _SHELLS:
        _shell(argv, at, found)
    elif kind:
        _script(argv, at, kind, found)
    return found


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _reads(word: str) -> str:
    """The shell or the interpreter that the word names, without its version; "" for any other word."""
    name = _base(word)
    kind = re.sub(r"[0-9.]+$", "", name)
    return name if name in _SHELLS else kind if kind in _CODE_OPTIONS else ""


def _wrapped(argv: Sequence[str], at: int, found: dict[int, str]) -> int:
    """The place of the program that a wrapper runs."""
    wrapper = _base(argv[at])
    own, short, long = _WRAPPERS[wrapper]
    why = f"it comes before the program that {argv[at]} runs"
    at += 1
    known = True
    while at < len(argv):
        word = argv[at]
        found[at] = why
        if word.startswith("-"):
            takes, sure = _option(word, short, long.split())
            known = known and sure
            own -= wrapper == "runuser" and bool(_USER.fullmatch(word))
            if wrapper == "env" and _SPLIT.fullmatch(word):
                found.update(dict.fromkeys(range(at, len(argv)), why))  # nobody knows where its program's code is
            found[at + takes] = why
            at += takes
        elif "=" not in word.partition("/")[0]:
            if own <= 0:
                break
            own -= 1
        at += 1
    if known:
        return at
    # A word after an option that is not known here may be its value, and no program.
    later = [place for place in range(at, len(argv)) if _reads(argv[place]) or _base(argv[place]) in _WRAPPERS]
    found.update(dict.fromkeys(range(at, later[0]) if later else (), why))
    return later[0] if later else at


def _option(word: str, short: str, long: Sequence[str]) -> tuple[bool, bool]:
    """True if the next word is the value of this option; and False if that is not known."""
    if word.startswith("--"):
        name = word[2:]
        takes = bool(name) and any(one.startswith(name) for one in long)
        return takes, takes or not name or "=" in name
    for place, letter in enumerate(word[1:], 2):
        if f"{letter}:" in short:
            return place == len(word), True
        if letter not in short and not letter.isdigit():
            return False, False
    return False, True


def _shell(argv: Sequence[str], at: int, found: dict[int, str]) -> None:
    """The places of a shell's options and of its script."""
    code = _code(argv[at])
    at += 1
    while at < len(argv):
        found[at] = code
        word = argv[at]
        if word in ("-", "--") or not word.startswith(("-", "+")):
            break
        # -o pipefail, -O extglob: a value for each of the letters
        values = len(re.findall("[oO]", word)) if word[1:2] != "-" else word in ("--rcfile", "--init-file")
        found.update(dict.fromkeys(range(at, at + values + 1), code))
        at += 1 + values
    if at < len(argv) and argv[at] in ("-", "--"):
        found[at + 1] = code


def _code(program: str) -> str:
    return f"its value would be read as code by {program}: give it as an argument of the script, there it stays text"


def _script(argv: Sequence[str], at: int, kind: str, found: dict[int, str]) -> None:
    """The places of an interpreter's script, up to the end of its options."""
    code = _code(argv[at])
    at += 1
    while at < len(argv):
        found[at] = code
        word = argv[at]
        if not word.startswith("-") or word == "-":
            return  # the script, or its file
        if kind != "java" and re.fullmatch("-[A-Za-z]+", word) and word[:2] not in _VALUED[kind]:
            word = f"-{word[-1]}"  # -Ic: the last letter has the value
        if word in _CODE_OPTIONS[kind]:
            found[at + 1] = code
            if kind in ("python", "pypy") or word == "-jar":
                return
            at += 1
        elif word in _OTHER_OPTIONS.get(kind, ()):
            at += 1
        at += 1
