"""Class archives: for which Spark and Java, who may have written them, and what of them reaches a driver."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coordd.adapters.cluster.properties import parse
from coordd.adapters.faststart.archive import Archive, archive_of, java_option, make_directory
from coordd.adapters.spark import AttemptInfo, SparkDefaults, build
from coordd.core.jobs.job import Job, SparkSubmit
from coordd.errors import UnavailableError

ATTEMPT = AttemptInfo("j#1", 0, 1, "nonce", "edge-1", 0.0, "", "/run/x")
OPTIONS = "spark.driver.defaultJavaOptions"
COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A Spark and a Java."""
    for path in ("spark/bin/spark-submit", "java/bin/java", "spark/jars/a.jar", "java/release", "java/lib/modules"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x")
        (tmp_path / path).chmod(0o755)
    (tmp_path / "archives").mkdir(mode=0o700)
    return {"SPARK_HOME": str(tmp_path / "spark"), "JAVA_HOME": str(tmp_path / "java"), "PATH": "/usr/bin:/bin"}


def archive_in(tmp_path: Path, environ: dict[str, str]) -> Archive:
    submit, java = f"{environ['SPARK_HOME']}/bin/spark-submit", f"{environ['JAVA_HOME']}/bin/java"
    return archive_of(str(tmp_path / "archives"), submit, java, environ)


def there(archive: Archive) -> Archive:
    Path(archive.path).write_text("classes")
    os.chmod(archive.path, 0o400)
    return archive


def settings(tmp_path: Path, environ: dict[str, str], run_as: str = "", **fields: object) -> dict[str, str]:
    """The settings of a driver with fast_start."""
    launch = SparkSubmit("/a.py", fast_start=True, **fields)  # type: ignore[arg-type]  # as in a job file
    job = Job(name="j", digest="d", launch=launch, run_as=run_as)
    defaults = SparkDefaults(archives=str(tmp_path / "archives"))
    return parse(build(job, launch, defaults, ATTEMPT, environ).secrets)


@pytest.mark.parametrize("changed", ["spark/jars/a.jar", "java/lib/modules", "java/release"])
def test_another_spark_or_java_has_another_archive(tmp_path: Path, environ: dict[str, str], changed: str) -> None:
    before = archive_in(tmp_path, environ)
    assert archive_in(tmp_path, environ) == before
    (tmp_path / changed).write_text("another")
    assert archive_in(tmp_path, environ).path != before.path


def test_a_new_jar_and_another_conf_directory_have_another_archive(tmp_path: Path, environ: dict[str, str]) -> None:
    paths = [archive_in(tmp_path, environ).path]
    (tmp_path / "spark/jars/b.jar").touch()
    paths.append(archive_in(tmp_path, environ).path)
    paths.append(archive_in(tmp_path, {**environ, "SPARK_CONF_DIR": "/etc/spark"}).path)
    assert len(set(paths)) == 3


def test_a_spark_without_jars_has_none(tmp_path: Path, environ: dict[str, str]) -> None:
    with pytest.raises(UnavailableError, match="/nowhere/jars: No such file"):
        archive_in(tmp_path, {**environ, "SPARK_HOME": "/nowhere"})


def test_the_archive_is_used_and_the_options_of_others_win(tmp_path: Path, environ: dict[str, str]) -> None:
    archive = there(archive_in(tmp_path, environ))
    conf = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4", OPTIONS: "-Dx=1"}
    found = settings(tmp_path, environ, conf=conf)
    assert found[OPTIONS] == f'{COMPILER} "-XX:SharedArchiveFile={archive.path}" -Dx=1'
    assert found["spark.driver.extraJavaOptions"] == "-XX:TieredStopAtLevel=4"
    assert found["spark.ui.enabled"] == "false"


def test_what_a_properties_file_says_is_kept(tmp_path: Path, environ: dict[str, str]) -> None:
    base = tmp_path / "site.conf"
    base.write_text(f"spark.ui.enabled true\n{OPTIONS} -Dsite=1\n")
    found = settings(tmp_path, environ, properties_file=str(base))
    assert found["spark.ui.enabled"] == "true"
    assert found[OPTIONS] == f"{COMPILER} -Dsite=1"


def test_what_the_environment_says_about_the_same_options_wins(tmp_path: Path, environ: dict[str, str]) -> None:
    there(archive_in(tmp_path, environ))
    said = "-XX:TieredStopAtLevel=4 -XX:SharedArchiveFile=/theirs"
    assert settings(tmp_path, environ, env={"SPARK_SUBMIT_OPTS": said})[OPTIONS] == ""
    said = "-XX:ReservedCodeCacheSize=64m -XX:SharedArchiveFile=/theirs"
    assert settings(tmp_path, environ, env={"SPARK_SUBMIT_OPTS": said})[OPTIONS] == "-XX:TieredStopAtLevel=1"


@pytest.mark.parametrize("spoil", ["absent", "empty", "writable by others", "a link", "a directory others can write"])
def test_an_archive_that_may_not_be_used_is_left_out(tmp_path: Path, environ: dict[str, str], spoil: str) -> None:
    archive = there(archive_in(tmp_path, environ))
    path = Path(archive.path)
    if spoil == "absent":
        path.unlink()
    elif spoil == "empty":
        path.chmod(0o600)
        path.write_text("")
    elif spoil == "writable by others":
        path.chmod(0o666)
    elif spoil == "a link":
        path.rename(tmp_path / "other")
        path.symlink_to(tmp_path / "other")
    else:
        path.parent.chmod(0o777)
    assert archive.usable()
    assert settings(tmp_path, environ)[OPTIONS] == COMPILER


def test_another_user_cannot_read_it(tmp_path: Path, environ: dict[str, str]) -> None:
    there(archive_in(tmp_path, environ))
    assert settings(tmp_path, environ, run_as="nobody")[OPTIONS] == COMPILER


def test_a_job_without_fast_start_is_as_before(tmp_path: Path, environ: dict[str, str]) -> None:
    there(archive_in(tmp_path, environ))
    launch = SparkSubmit("/a.py")
    defaults = SparkDefaults(archives=str(tmp_path / "archives"))
    found = parse(build(Job(name="j", digest="d", launch=launch), launch, defaults, ATTEMPT, environ).secrets)
    assert not {OPTIONS, "spark.ui.enabled"} & set(found)


def test_a_conf_directory_with_files_is_an_obstacle(tmp_path: Path, environ: dict[str, str]) -> None:
    archive = archive_in(tmp_path, environ)
    assert archive.obstacle() == ""
    (tmp_path / "spark/conf").mkdir()
    assert archive.obstacle() == ""
    (tmp_path / "spark/conf/spark-env.sh").touch()
    assert f"{tmp_path}/spark/conf has files" in archive.obstacle()


def test_the_training_has_no_paths_of_the_site_behind_sparks_own(tmp_path: Path, environ: dict[str, str]) -> None:
    archive = archive_in(tmp_path, {**environ, "HADOOP_CONF_DIR": "/etc/hadoop", "A": "1"})
    _, env = archive.training(str(tmp_path), 9.5)
    assert env == {**environ, "A": "1"}
    _, env = archive.trial()
    assert "HADOOP_CONF_DIR" not in env


def test_only_a_few_archives_are_kept(tmp_path: Path, environ: dict[str, str]) -> None:
    for number in range(6):
        old = tmp_path / f"archives/{number}.jsa"
        old.touch()
        os.utime(old, (number, number))
    archive = archive_in(tmp_path, environ)
    Path(archive.part).write_text("classes")
    archive.accept()
    assert sorted(os.listdir(tmp_path / "archives")) == sorted(["3.jsa", "4.jsa", "5.jsa", Path(archive.path).name])
    assert archive.usable() == ""


def test_a_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    make_directory(str(tmp_path / "a"))
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    (tmp_path / "a").chmod(0o775)
    with pytest.raises(UnavailableError, match="chmod go-w"):
        make_directory(str(tmp_path / "a"))


def test_a_path_with_blanks_and_quotes_stays_one_option() -> None:
    assert java_option('-X=/a "b"\\c') == '"-X=/a \\"b\\"\\\\c"'
