"""No parameter chooses the code that runs: not through Spark's properties, nor the
environment, nor a script's arguments.
"""

from __future__ import annotations

import pytest

from coordd.core.jobs.arguments import check_launch
from coordd.core.jobs.choosing import conf_chooses, env_chooses
from coordd.core.jobs.job import Command, SparkSubmit

CONF = (
    "spark.jars", "spark.jars.packages", "spark.jars.repositories", "spark.jars.ivySettings", "spark.files",
    "spark.archives", "spark.submit.pyFiles", "spark.plugins", "spark.extraListeners", "spark.sql.extensions",
    "spark.sql.queryExecutionListeners", "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions",
    "spark.driver.defaultJavaOptions", "spark.yarn.am.extraJavaOptions", "spark.driver.extraClassPath",
    "spark.executor.extraClassPath", "spark.driver.extraLibraryPath", "spark.yarn.dist.files", "spark.yarn.dist.jars",
    "spark.yarn.dist.archives", "spark.yarn.jars", "spark.yarn.archive", "spark.pyspark.python",
    "spark.pyspark.driver.python", "spark.serializer", "spark.kryo.registrator", "spark.metrics.conf",
    "spark.kubernetes.container.image", "spark.kubernetes.driver.container.image",
    "spark.kubernetes.driver.podTemplateFile", "spark.executor.resource.gpu.discoveryScript",
    "spark.sql.catalog.prod", "spark.sql.catalog.prod.catalog-impl", "spark.sql.catalog.prod.io-impl",
    "spark.hadoop.fs.s3a.impl", "spark.hadoop.io.compression.codecs", "spark.sql.hive.metastore.jars",
    "spark.shuffle.manager", "spark.io.compression.codec", "spark.executorEnv.PYTHONPATH",
    "spark.yarn.appMasterEnv.LD_PRELOAD", "spark.executorEnv.JAVA_TOOL_OPTIONS", "spark.r.command", "spark.ui.filters",
)  # fmt: skip
CONF_FREE = (
    "spark.app.name",
    "spark.executor.memory",
    "spark.executor.instances",
    "spark.sql.shuffle.partitions",
    "spark.yarn.queue",
    "spark.dynamicAllocation.maxExecutors",
    "spark.sql.session.timeZone",
    "spark.executorEnv.DAY",
    "spark.hadoop.fs.s3a.endpoint",
    "spark.sql.catalog.prod.warehouse",
    "spark.driver.maxResultSize",
)
ENV = (
    "PATH", "PYTHONPATH", "PYTHONSTARTUP", "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "JAVA_HOME",
    "JAVA_TOOL_OPTIONS",
       "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH", "HADOOP_CLASSPATH", "PYSPARK_PYTHON", "PYSPARK_SUBMIT_ARGS",
    "SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS", "SPARK_HOME", "SPARK_CONF_DIR", "HADOOP_CONF_DIR", "BASH_ENV", "ENV",
    "NODE_OPTIONS", "PERL5OPT", "RUBYOPT", "HOME", "GLIBC_TUNABLES", "IFS",
)  # fmt: skip
ENV_FREE = ("DAY", "REGION", "CUSTOMER", "LANG", "TZ", "TMPDIR", "AWS_REGION", "KRB5CCNAME", "LOG_LEVEL")

REFUSED_ARGV = (
    ("/bin/sh", "-c", "echo {who}"),
    ("sh", "-ec", "echo {who}"),
    ("/bin/bash", "--norc", "-x", "-c", "echo {who}"),
    ("/bin/bash", "-c", "-e", "echo {who}"),
    ("/usr/bin/env", "/bin/sh", "-c", "echo {who}"),
    ("/usr/bin/env", "-i", "A={who}", "/bin/sh"),
    ("env", "-i", "A=1", "nice", "-n5", "bash", "-c", "{who}"),
    ("timeout", "60", "/bin/sh", "-c", "echo {who}"),
    ("timeout", "60", "{who}"),
    ("nice", "{who}"),
    ("/usr/bin/python3", "-c", "print('{who}')"),
    ("/usr/bin/python3.11", "-I", "-W", "ignore", "-c", "print('{who}')"),
    ("python3", "-m", "{who}"),
    ("python3", "-c{who}"),
    ("python3", "/opt/{who}.py"),
    ("perl", "-w", "-e", "print '{who}'"),
    ("ruby", "-e", "puts '{who}'"),
    ("node", "--eval", "console.log('{who}')"),
    ("awk", "-F", ":", "/{who}/"),
    ("java", "-cp", "{who}", "Main"),
    ("java", "-jar", "/opt/{who}.jar"),
    ("bash", "/opt/{who}.sh"),
    ("bash", "-o", "pipefail", "-c", "echo {who}"),
    ("bash", "-euo", "pipefail", "-c", "echo {who}"),
    ("bash", "-c", "-o", "pipefail", "echo {who}"),
    ("bash", "--rcfile", "/dev/null", "-c", "echo {who}"),
    ("sh", "--", "/opt/{who}.sh"),
    ("python3", "-IW", "ignore", "-c", "print('{who}')"),
    ("perl", "-we", "1", "-e", "print '{who}'"),
    ("env", "-S", "sh -c", "echo {who}"),
    ("flock", "/l", "-c", "echo {who}"),
    ("runuser", "-l", "app", "-c", "echo {who}"),
    ("su", "-", "app", "-c", "echo {who}"),
    ("sudo", "--unheard-of", "x", "sh", "-c", "echo {who}"),
    ("sudo", "-7Z", "x", "sh", "-c", "echo {who}"),
    ("/opt/{who}",),
)
# With options, whose values are not the program.
WRAPPED = (
    ("/usr/bin/nice", "-n", "5"), ("nice", "--adjustment", "5"), ("nice", "-n5"), ("nice", "-5"), ("ionice", "-c", "3"),
    ("ionice", "-c2", "-n", "7"), ("timeout", "-s", "KILL", "60"), ("timeout", "-k", "5", "60"),
    ("timeout", "--signal", "KILL", "--kill-after=5", "60"), ("timeout", "--preserve-status", "60"),
    ("sudo", "-u", "app"), ("sudo", "-nHu", "app", "--"), ("sudo", "--user", "app", "A=1"), ("doas", "-u", "app"),
    ("runuser", "-u", "app"), ("runuser", "-u", "app", "--"), ("runuser", "--user", "app"), ("env", "-u", "X"),
    ("env", "-C", "/d", "A=1"), ("env", "--chdir", "/d"), ("flock", "-w", "5", "/l"), ("flock", "-nE", "9", "/l"),
    ("stdbuf", "-o", "L"), ("stdbuf", "-oL", "-e", "0"), ("time", "-o", "f"), ("time", "-f", "%e", "-ao", "f"),
    ("xargs", "-n", "1"), ("xargs", "-0", "-P", "4", "-I", "X"), ("taskset", "-c", "0,1"), ("chrt", "-b", "0"),
    ("systemd-run", "-p", "Nice=5", "--unit", "x", "--wait"), ("nice", "-n", "5", "ionice", "-c", "3"),
    ("setsid", "-w"), ("chroot", "--userspec", "a:b", "/r"), ("setpriv", "--reuid", "app", "--clear-groups"),
    ("unshare", "-n"), ("nsenter", "-t", "1", "-n"), ("numactl", "-N", "0", "--localalloc"), ("prlimit", "--nofile=9"),
    ("gosu", "app"), ("tini", "-g", "--"), ("dumb-init", "--single-child"), ("systemd-inhibit", "--who", "x"),
    ("systemd-cat", "-t", "x"), ("chronic",), ("strace", "-f", "-o", "f"),
)  # fmt: skip
FREE_ARGV = (
    ("/bin/sh", "-c", "echo $0", "{who}"),
    ("/bin/sh", "-ec", 'echo "$1"', "sh", "{who}"),
    ("/usr/bin/env", "-i", "A=1", "/bin/echo", "{who}"),
    ("timeout", "60", "/bin/echo", "{who}"),
    ("python3", "-c", "import sys; print(sys.argv)", "{who}"),
    ("python3", "-m", "http.server", "{who}"),
    ("python3", "/opt/report.py", "--day", "{who}"),
    ("java", "-jar", "/opt/report.jar", "{who}"),
    ("awk", "-v", "who=1", "{{print}}", "{who}"),
    ("/opt/report", "-c", "{who}"),
    ("bash", "-euo", "pipefail", "-c", 'echo "$1"', "sh", "{who}"),
    ("bash", "-o", "pipefail", "/opt/report.sh", "{who}"),
    ("python3", "-Ic", "import sys", "{who}"),
    ("perl", "-MFile", "/opt/report.pl", "{who}"),
    ("nice", "-n", "5", "/opt/report", "--shell", "bash", "{who}"),
    ("su", "app", "/opt/report.sh", "{who}"),
    ("runuser", "app", "/opt/report.sh", "{who}"),
    ("/bin/sh", "-c", "echo {run} {date}"),
)


def wrong(launch: SparkSubmit | Command) -> list[tuple[str, str]]:
    return check_launch(launch, ["who"])


@pytest.mark.parametrize("key", CONF)
def test_conf_that_chooses_code_takes_no_param(key: str) -> None:
    assert conf_chooses(key)
    ((named, why),) = wrong(SparkSubmit("/a.py", conf={key: "x{who}"}))
    assert named == f"conf.{key}"
    assert "must not choose what is run" in why
    assert wrong(SparkSubmit("/a.py", conf={key: "/opt/fixed-{date}"})) == []


@pytest.mark.parametrize("key", CONF_FREE)
def test_other_conf_does(key: str) -> None:
    assert wrong(SparkSubmit("/a.py", conf={key: "x{who}"})) == []


@pytest.mark.parametrize("name", ENV)
@pytest.mark.parametrize("launch", [SparkSubmit("/a.py"), Command(("/bin/true",))], ids=["spark", "command"])
def test_environment_that_chooses_code_takes_no_param(name: str, launch: SparkSubmit | Command) -> None:
    assert env_chooses(name)
    made = (
        SparkSubmit("/a.py", env={name: "{who}"})
        if isinstance(launch, SparkSubmit)
        else Command(("/bin/true",), env={name: "{who}"})
    )
    assert [key for key, _ in wrong(made)] == [f"env.{name}"]


@pytest.mark.parametrize("name", ENV_FREE)
def test_other_environment_does(name: str) -> None:
    assert wrong(Command(("/bin/true",), env={name: "{who}"})) == []


@pytest.mark.parametrize("argv", REFUSED_ARGV, ids=" ".join)
def test_a_script_takes_no_param(argv: tuple[str, ...]) -> None:
    assert [key for key, _ in wrong(Command(argv))] == ["argv"]


@pytest.mark.parametrize("wrapper", WRAPPED, ids=" ".join)
def test_a_wrapper_with_options_hides_no_script(wrapper: tuple[str, ...]) -> None:
    for refused in (("/bin/sh", "-c", "echo {who}"), ("python3", "-c", "{who}"), ("{who}",), ("/opt/{who}", "x")):
        assert [key for key, _ in wrong(Command((*wrapper, *refused)))] == ["argv"], refused
    for free in (("/opt/report", "{who}"), ("/bin/sh", "/opt/report.sh", "{who}"), ("sh", "-c", "echo $0", "{who}")):
        assert wrong(Command((*wrapper, *free))) == [], free


@pytest.mark.parametrize("argv", FREE_ARGV, ids=" ".join)
def test_arguments_of_a_script_are_free(argv: tuple[str, ...]) -> None:
    assert wrong(Command(argv)) == []


def test_the_refusal_says_what_to_do() -> None:
    ((_, why),) = wrong(Command(("/bin/sh", "-c", "echo {who}")))
    assert why.startswith('"{who}" may not stand here: its value would be read as code by /bin/sh')
    assert "as an argument" in why
