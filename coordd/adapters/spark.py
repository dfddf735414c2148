"""From a job to a command: finds spark-submit and Java, builds the argv and a clean environment."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from coordd.adapters.cluster import properties
from coordd.adapters.cluster.opening import STANDALONE, YARN, has_lookup
from coordd.adapters.faststart import connect
from coordd.adapters.faststart.archive import archive_of, java_option
from coordd.adapters.onhost import absent_program
from coordd.config import ownership
from coordd.config.sections import SparkConfig
from coordd.core import lineage
from coordd.core.jobs.applications import MARK, labels, property_mark, yarn_tags
from coordd.core.jobs.job import Command, Job, SparkSubmit, iso
from coordd.core.jobs.owner import guard_command
from coordd.core.redaction import HIDDEN, is_secret_name
from coordd.errors import UnavailableError

# No setting is in an argv, which every user of the machine can read: nobody can list all secret ones (as in
# fs.azure.account.key.NAME, es.net.http.auth.pass). ``redacted`` only hides secrets that people have put into an argv
# themselves.
SECRETS_FILE = "secrets.properties"

# The variables of the daemon's own environment that a program gets; all others come from the configuration.
PASSED_ON = ("PATH", "HOME", "LANG", "USER", "JAVA_HOME", "SPARK_HOME")
OF_USER = ("HOME", "USER")  # except these, under run_as
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# What ``fast_start`` says where nobody else does: it stands before every other setting.
FAST_CONF = "spark.ui.enabled=false\n"

# Spark puts these options before those of the job (spark.driver.extraJavaOptions); of two for one thing Java takes the
# later. The first compiler alone: code is compiled sooner, and stays slower.
DEFAULT_OPTIONS = "spark.driver.defaultJavaOptions"
FAST_COMPILER = "-XX:TieredStopAtLevel=1"

# With one compiler Java keeps 48 MB for compiled code, of 240 MB otherwise. Queries of Spark fill it: a driver then
# becomes slow, or ends with "Out of space in CodeCache".
CODE_CACHE = "-XX:ReservedCodeCacheSize=240m"

# The variables that add options to a driver's Java machine.
JAVA_VARIABLES = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")

# Where spark-submit learns that it is not to wait for the application, by the scheme of the master.
WAITS = {YARN: "yarn.submit", "k8s": "kubernetes.submission", "spark": "standalone.submit"}

# What counts where a properties file names a master, too.
MASTERS = "write master and deploy_mode in the job, or master under [spark]: coordd passes its own to spark-submit"

ENV_FILE_BYTES_MAX = 1024 * 1024
PROPERTIES_BYTES_MAX = 1024 * 1024


class SparkDefaults(NamedTuple):
    """The [spark] section: the defaults for jobs."""

    submit: str = ""
    master: str = "local[*]"
    env: Mapping[str, str] = {}
    env_file: str = ""
    properties_file: str = ""
    archives: str = ""  # the directory of class archives; "": none are used

    @classmethod
    def of(cls, spark: SparkConfig) -> SparkDefaults:
        """What the site says."""
        return cls(spark.submit, spark.master, spark.env, spark.env_file, spark.properties_file)


class AttemptInfo(NamedTuple):
    """The identity of the attempt that the program belongs to, and where its files are."""

    run: str
    attempt: int
    token: int
    nonce: str
    node: str
    fire_at: float
    socket: str = ""
    directory: str = ""
    traceparent: str = ""
    parent: Mapping[str, str] = {}  # OpenLineage's properties, for a Spark job that wants them
    cluster: str = ""
    guard: Mapping[str, str] = {}  # where a driver on a cluster asks whether it owns its run


class ProgramSpec(NamedTuple):
    """The command that a runner executes, and the text of a file, mode 0600, that must exist before that."""

    argv: list[str]
    env: dict[str, str]
    cwd: str = ""
    secrets: str = ""
    secrets_path: str = ""
    client: Sequence[str] = ()  # of a client of Spark Connect: its argv; then ``argv`` starts its server


def build(
    job: Job,
    launch: SparkSubmit | Command,
    defaults: SparkDefaults,
    attempt_info: AttemptInfo,
    environ: Mapping[str, str] = os.environ,
) -> ProgramSpec:
    """The command for one attempt of a job. Nothing is written here.

    ``launch`` is the job's, with filled placeholders.

    Raises:
        UnavailableError: spark-submit, Java or a configured file is missing.
    """
    env = _environment(defaults, launch, environ, job.run_as)
    secrets = secrets_path = cwd = ""
    client: Sequence[str] = ()
    if isinstance(launch, Command):
        argv, cwd = list(launch.argv), launch.cwd
    else:
        argv, secrets, secrets_path = _spark_argv(job, launch, defaults, attempt_info, env)
        client = connect.client_argv(launch, env) if connect.is_client(launch) else ()
    env.update(
        {
            "COORDD_RUN": attempt_info.run,
            "COORDD_JOB": job.name,
            "COORDD_ATTEMPT": str(attempt_info.attempt),
            "COORDD_TOKEN": str(attempt_info.token),
            "COORDD_NONCE": attempt_info.nonce,
            "COORDD_NODE": attempt_info.node,
            "COORDD_FIRE_TIME": iso(attempt_info.fire_at),
            "COORDD_SOCKET": attempt_info.socket,
            **guard_command(sys.executable, os.path.dirname(os.path.dirname(__file__))),
        }
    )
    if attempt_info.traceparent:
        env["TRACEPARENT"] = attempt_info.traceparent
    return ProgramSpec(argv, env, cwd, secrets, secrets_path, client)


def command_problem(
    launch: Command, run_as: str, defaults: SparkDefaults, environ: Mapping[str, str] = os.environ
) -> str:
    """Why this machine cannot start a command that is named without a directory; "" if it can."""
    program = launch.argv[0]
    if "/" in program or "{" in program:
        return ""
    try:
        directories = _environment(defaults, launch, environ, run_as).get("PATH", os.defpath)
    except UnavailableError as exc:
        return str(exc)
    return "" if "{" in directories else absent_program(program, directories, run_as)


def redacted(argv: list[str]) -> list[str]:
    """An argv without the values of secret settings and of the nonce, safe to show."""
    shown = []
    for word in argv:
        key, equals, _ = word.partition("=")
        hidden = equals and key.startswith("spark.") and is_secret_name(key)
        shown.append(f"{key}={HIDDEN}" if hidden else word)
    return shown


def find_submit(submit: str, environ: Mapping[str, str]) -> str:
    """The spark-submit to use: the configured one, $SPARK_HOME's, the PATH's, or that of this Python's pyspark.

    Raises:
        UnavailableError: there is none, or the configured one cannot be executed.
    """
    if submit:
        return _executable(submit, "spark.submit")
    if environ.get("SPARK_HOME"):
        return _executable(f"{environ['SPARK_HOME']}/bin/spark-submit", "SPARK_HOME")
    found = shutil.which("spark-submit", path=environ.get("PATH", DEFAULT_PATH))
    if found:
        return _executable(found, "the PATH")
    home = pip_spark_home()
    if home:
        return _executable(f"{home}/bin/spark-submit", f"the pyspark of {sys.executable}")
    raise UnavailableError(
        "no spark-submit: set spark.submit or SPARK_HOME, put it on the PATH, or install coordd[spark]"
        f" (looked on {environ.get('PATH', DEFAULT_PATH)})"
    )


def find_java(environ: Mapping[str, str]) -> str:
    """The java for spark-submit. Raises UnavailableError when there is none."""
    if environ.get("JAVA_HOME"):
        return _executable(f"{environ['JAVA_HOME']}/bin/java", "JAVA_HOME")
    found = shutil.which("java", path=environ.get("PATH", DEFAULT_PATH))
    if not found:
        raise UnavailableError("no Java: set JAVA_HOME (in [spark] env, or for the daemon), or put java on the PATH")
    return found


def pip_spark_home() -> str:
    """The Spark inside this Python's pyspark package, which is not imported; "" without one."""
    spec = importlib.util.find_spec("pyspark")
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    return places[0] if places and os.path.exists(f"{places[0]}/bin/spark-submit") else ""


def _executable(path: str, source: str) -> str:
    if not os.path.isfile(path):
        raise UnavailableError(f"{source}: {path} is not there")
    if not os.access(path, os.X_OK):
        raise UnavailableError(f"{source}: {path} may not be executed")
    _only_ours(path, source)
    return path


def _only_ours(path: str, source: str, opened: os.stat_result | None = None) -> None:
    """Raise UnavailableError when others than root and this user could change it, because it decides what is run."""
    why = ownership.fault(path, opened)
    if why:
        raise UnavailableError(f"{source}: {why}")


def _environment(
    defaults: SparkDefaults, launch: SparkSubmit | Command, environ: Mapping[str, str], run_as: str
) -> dict[str, str]:
    """A clean environment: a few variables of the daemon, then the site's file, its table, the job's."""
    home, user = _home_and_user(run_as)
    env = {"PATH": DEFAULT_PATH, "HOME": home, "USER": user, "LANG": "C.UTF-8"}
    env.update({name: environ[name] for name in PASSED_ON if environ.get(name) and not (run_as and name in OF_USER)})
    if defaults.env_file:
        env.update(read_env_file(defaults.env_file))
    env.update(defaults.env)
    env.update(launch.env)
    return env


def _home_and_user(run_as: str) -> tuple[str, str]:
    """The values of HOME and USER. In a container the daemon's own uid often has no entry in the list of users."""
    try:
        user = pwd.getpwnam(run_as) if run_as else pwd.getpwuid(os.getuid())
    except KeyError:
        if run_as:
            raise UnavailableError(f'run_as: there is no user "{run_as}" on this machine') from None
        return "/", str(os.getuid())
    return user.pw_dir, user.pw_name


def read_env_file(path: str) -> dict[str, str]:
    """NAME=value lines; comments, blank lines, a leading ``export`` and quotes around a value are understood.

    Raises:
        UnavailableError: it cannot be read, or a line is invalid.
    """
    try:
        with open(path, encoding="utf-8") as file:
            _only_ours(path, "spark.env_file", os.fstat(file.fileno()))
            text = file.read(ENV_FILE_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as exc:
        raise UnavailableError(f"spark.env_file: {path}: {exc}") from exc
    if len(text) > ENV_FILE_BYTES_MAX:
        raise UnavailableError(f"spark.env_file: {path}: more than {ENV_FILE_BYTES_MAX} characters")
    env = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip().removeprefix("export ")
        if not words or words.startswith("#"):
            continue
        name, equals, value = words.partition("=")
        if not equals or not name.strip().isidentifier():
            raise UnavailableError(f"spark.env_file: {path}, line {number}: expected NAME=value")
        if "\0" in value:
            raise UnavailableError(
                f"spark.env_file: {path}, line {number}: {name.strip()} has a NUL character: remove it"
            )
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        env[name.strip()] = value
    return env


def _spark_argv(
    job: Job, launch: SparkSubmit, defaults: SparkDefaults, attempt_info: AttemptInfo, env: dict[str, str]
) -> tuple[list[str], str, str]:
    """The argv, the text of a properties file with every setting, and the path of that file."""
    submit = find_submit(defaults.submit, env)
    java = find_java(env)
    home = os.path.dirname(os.path.dirname(os.path.realpath(submit)))
    if os.path.isdir(f"{home}/jars"):
        env["SPARK_HOME"] = home  # the one of this spark-submit
    master = launch.master or defaults.master
    if os.path.realpath(home) == os.path.realpath(pip_spark_home() or "/"):
        _name_python(master, launch.deploy_mode, env)
    conf = dict(launch.conf)
    if connect.is_client(launch):
        conf.update(connect.SERVER_CONF)
    if attempt_info.run:  # a server that is prepared does not know its run yet
        conf.update(_identity(master, launch.deploy_mode, attempt_info))
    if attempt_info.guard:
        conf.update({"spark.coordd.job": job.name, **attempt_info.guard})
        conf["spark.yarn.maxAppAttempts"] = "1"  # two drivers with one token could not be told apart
    if attempt_info.traceparent:  # a driver on another machine has not our environment
        conf["spark.coordd.traceparent"] = attempt_info.traceparent
    if not any(key.startswith(lineage.PREFIXES) for key in conf):  # else the job names a parent of its own
        conf.update(attempt_info.parent)
    base = _base_text(_base_path(launch, defaults, env))
    if launch.fast_start:
        base = FAST_CONF + base
        archive = "" if job.run_as else _archive(defaults.archives, submit, java, env)
        conf[DEFAULT_OPTIONS] = _fast_options({**properties.parse(base), **conf}, env, archive)
    text, path = base + _properties_text(conf), f"{attempt_info.directory}/{SECRETS_FILE}"
    argv = [submit, "--master", master, "--deploy-mode", launch.deploy_mode, "--name", launch.name or job.name]
    options = (
        ("--properties-file", path),
        ("--class", launch.class_name),
        ("--py-files", ",".join(launch.py_files)),
        ("--files", ",".join(launch.files)),
        ("--jars", ",".join(launch.jars)),
        ("--keytab", launch.keytab),
        ("--principal", launch.principal),
        ("--proxy-user", launch.proxy_user),
    )
    for option, value in options:
        if value:
            argv += [option, value]
    if connect.is_client(launch):
        return [*argv, "--class", connect.SERVER_CLASS, connect.NO_PROGRAM], text, path
    return [*argv, launch.application, *launch.args], text, path


def _name_python(master: str, deploy_mode: str, env: dict[str, str]) -> None:
    """This Python, for programs with the pyspark of this Python. Other machines may not have it: spark-submit hands
    PYSPARK_PYTHON on to executors, and to drivers elsewhere.
    """
    if master.startswith("local"):
        env.setdefault("PYSPARK_PYTHON", sys.executable)
    elif deploy_mode == "client" and "PYSPARK_PYTHON" not in env:
        env.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _identity(master: str, deploy_mode: str, of: AttemptInfo) -> dict[str, str]:
    """What the driver is told of its run, and what the run's application is found by."""
    conf = {
        **_marks(master, deploy_mode, of),
        "spark.coordd.run": of.run,
        "spark.coordd.attempt": str(of.attempt),
        "spark.coordd.token": str(of.token),
        "spark.coordd.token.nonce": of.nonce,  # Spark shows no value of a name with "token" in it
    }
    if master.startswith(STANDALONE) and deploy_mode == "cluster":
        del conf["spark.coordd.token.nonce"]  # it would be in the driver's command line, for every user of its machine
    return conf


def _marks(master: str, deploy_mode: str, of: AttemptInfo) -> dict[str, str]:
    """What the run's application is found by, and how spark-submit hands it over."""
    identity = (of.cluster, of.run, of.attempt, of.token)
    conf = {"spark.yarn.tags": ",".join(yarn_tags(*identity))}
    if master.startswith("k8s://"):
        conf.update({f"spark.kubernetes.driver.label.{key}": value for key, value in labels(*identity).items()})
        conf["spark.kubernetes.driver.annotation.coordd-run"] = of.run
    if deploy_mode == "cluster" and master.startswith(STANDALONE):
        conf[MARK] = property_mark(*identity)
        conf["spark.driver.supervise"] = "false"  # also if the site's file says true: only coordd starts it again
    if deploy_mode == "cluster" and has_lookup(master):  # the tracker follows it from then on
        conf[f"spark.{WAITS.get(master.partition('://')[0], WAITS[YARN])}.waitAppCompletion"] = "false"
    return conf


def build_sample(job: Job, defaults: SparkDefaults) -> ProgramSpec:
    """The command of a job beside any attempt: it shows what this machine makes of the job. Raises as ``build``."""
    return build(job, job.launch, defaults, AttemptInfo(job.name, 0, 0, "", "", 0.0))


def remarks(launch: SparkSubmit, defaults: SparkDefaults, program: ProgramSpec) -> list[tuple[str, str]]:
    """For `doctor`: (which settings of the site a job does not have, what to do)."""
    env, submit = program.env, program.argv[0]
    base = _base_path(launch, defaults, env)
    if not base and not (env.get("SPARK_HOME") or env.get("SPARK_CONF_DIR")):
        text = f"{submit} is outside its Spark, and no SPARK_HOME is set: its spark-defaults.conf is not read"
        return [(text, "set SPARK_HOME in [spark] env; or name that file as [spark] properties_file")]
    if launch.master or defaults.master != SparkDefaults().master:
        return []
    ours = {"spark.master": defaults.master, "spark.submit.deployMode": launch.deploy_mode}
    theirs = properties.parse(program.secrets)  # a job's conf has neither key
    return [
        (f"{base} says {key} = {theirs[key]}, and the job runs with {value}", f"{MASTERS}, or remove {key} there")
        for key, value in ours.items()
        if theirs.get(key, value) != value
    ]


def _base_path(launch: SparkSubmit, defaults: SparkDefaults, env: Mapping[str, str]) -> str:
    """The properties file below ours; "" if there is none."""
    return launch.properties_file or defaults.properties_file or _default_properties(env)


def _default_properties(env: Mapping[str, str]) -> str:
    """The file that spark-submit reads by default, and would skip when it is given ours."""
    if not (env.get("SPARK_HOME") or env.get("SPARK_CONF_DIR")):
        return ""
    conf_dir = env.get("SPARK_CONF_DIR") or f"{env.get('SPARK_HOME', '')}/conf"
    path = f"{conf_dir}/spark-defaults.conf"
    return path if os.path.exists(path) else ""


def _base_text(base: str) -> str:
    """The text that spark-submit would have read by default. Of two lines for one setting the later counts, like --conf
    over --properties-file; ours follow.
    """
    if not base:
        return ""
    try:
        with open(base, encoding="utf-8") as file:
            _only_ours(base, "properties file", os.fstat(file.fileno()))
            text = file.read(PROPERTIES_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as exc:
        raise UnavailableError(f"properties file {base}: {exc}") from exc
    if len(text) > PROPERTIES_BYTES_MAX:
        raise UnavailableError(f"properties file {base}: more than {PROPERTIES_BYTES_MAX} characters")
    return text + "\n\n"  # a final backslash would join its last line with our first


def _properties_text(conf: Mapping[str, str]) -> str:
    return "".join([f"{_escape(key, ' :=#!')}={_escape(conf[key], '')}\n" for key in sorted(conf)])


def _archive(directory: str, submit: str, java: str, env: Mapping[str, str]) -> str:
    """The path of the class archive for this Spark and this Java; "" if there is none that may be used."""
    if not directory:
        return ""
    try:
        archive = archive_of(directory, submit, java, env)
    except UnavailableError:
        return ""
    return "" if archive.usable() else archive.path


def _fast_options(conf: Mapping[str, str], env: Mapping[str, str], archive: str) -> str:
    """The options of the driver's Java machine that make it start sooner; then the job's and the site's, which win.

    What the environment says about the same options wins too, so ours are left out.
    """
    elsewhere = " ".join([env.get(name, "") for name in JAVA_VARIABLES])
    options = [] if "TieredStopAtLevel" in elsewhere else [FAST_COMPILER]
    if options and "ReservedCodeCacheSize" not in elsewhere:
        options.append(CODE_CACHE)
    if archive and "SharedArchiveFile" not in elsewhere:
        options.append(java_option(f"-XX:SharedArchiveFile={archive}"))
    return " ".join([*options, conf.get(DEFAULT_OPTIONS, "")]).strip()


def _escape(text: str, special: str) -> str:
    """Escaped for java.util.Properties: a leading blank and a backslash would be lost."""
    for character, written in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"), ("\f", "\\f")):
        text = text.replace(character, written)
    for character in special:
        text = text.replace(character, f"\\{character}")
    return f"\\{text}" if text.startswith(" ") else text
