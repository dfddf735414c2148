"""Why the identity of a Spark job cannot work on this machine: its keytab, its principal, the ticket of its user."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import stat
from collections.abc import Mapping
from datetime import UTC, datetime

from coordd.adapters.kerberos import files
from coordd.core.jobs.job import SparkSubmit
from coordd.errors import UnavailableError

# Hadoop's configuration is read up to this size (bytes).
SITE_BYTES_MAX = 4 * 1024 * 1024

_PROPERTY = re.compile(r"<property>(.*?)</property>", re.DOTALL)
_NAME = re.compile(r"<name>\s*([^<]*?)\s*</name>")
_VALUE = re.compile(r"<value>\s*([^<]*?)\s*</value>")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)

# Keys of Hadoop's configuration that ask for Kerberos: for its services, and for their web interfaces.
SERVICES, WEB = "hadoop.security.authentication", "hadoop.http.authentication.type"

# Keys of Spark's conf for the same.
KEYTABS = ("spark.kerberos.keytab", "spark.yarn.keytab")

# Kerberos' own configuration: files that it includes, and where it says that tickets are. Java does not look there.
KRB5 = "/etc/krb5.conf"
_INCLUDES = re.compile(r"^\s*include(dir)?\s+(\S.*?)\s*$", re.MULTILINE)
_CACHE_NAME = re.compile(r"^\s*default_ccache_name\s*=", re.MULTILINE)

# At most this many principals of a keytab are named.
NAMED_MAX = 3


def problem(launch: SparkSubmit, master: str, env: Mapping[str, str], run_as: str, now: float) -> str:
    """Why it cannot work here; "" if it can, or if that cannot be told. ``env``: what spark-submit gets.

    What only the user of ``run_as`` may read is not judged. Without a ticket Hadoop's client goes on as nobody in
    particular; a driver that needs no Hadoop service works then, so only YARN and impersonation count as impossible.
    """
    if launch.keytab and (why := keytab_problem(launch.keytab, launch.principal)):
        return why
    if launch.keytab or any(key in launch.conf for key in KEYTABS):
        return no_ticket_for_look_up(launch, master, env, run_as, now)
    needed = launch.proxy_user or master.startswith("yarn")
    return no_ticket(launch, env, run_as, now) if needed else ""


def no_ticket_for_look_up(launch: SparkSubmit, master: str, env: Mapping[str, str], run_as: str, now: float) -> str:
    """Why the application of a job with a keytab cannot be looked up: Spark logs in by itself, and curl does not. Only
    where Hadoop's configuration says that web interfaces want Kerberos: else a ResourceManager lets everybody look.
    """
    conf_dir = conf_dir_of(env)
    if master != "yarn" or launch.deploy_mode != "cluster" or not wants_kerberos(conf_dir, WEB):
        return ""
    why = ticket_problem(env, run_as, now, instead="")
    return why and f"the look-up of its application needs a ticket too, beside the keytab: {why}"


def no_ticket(launch: SparkSubmit, env: Mapping[str, str], run_as: str, now: float) -> str:
    """Why a job without a keytab has no ticket, if Hadoop's configuration asks for one; else ""."""
    known = launch.keytab or launch.properties_file or any(key in launch.conf for key in KEYTABS)
    if known or not wants_kerberos(conf_dir_of(env)):
        return ""
    return ticket_problem(env, run_as, now)


def keytab_problem(path: str, principal: str) -> str:
    """Why the keytab is of no use for that principal; "" if it is, or cannot be read by us."""
    try:
        found = files.principals(path)
    except UnavailableError as exc:
        return f"spark.keytab: {exc}"
    except OSError:
        return ""  # that it is not there, or cannot be read, is said elsewhere
    wanted = [name for name in found if principal in (name, name.partition("@")[0])]
    if wanted or not principal:
        return ""
    more = ", …" if len(found) > NAMED_MAX else ""
    return (
        f"spark.principal: {path} has no key of {principal}; it has keys of "
        f"{', '.join(found[:NAMED_MAX]) or 'nobody'}{more}"
    )


def conf_dir_of(env: Mapping[str, str]) -> str:
    """Where Hadoop's configuration is; "" if nothing says so."""
    return env.get("HADOOP_CONF_DIR", "") or env.get("YARN_CONF_DIR", "")


def wants_kerberos(conf_dir: str, key: str = SERVICES) -> bool:
    """True if Hadoop's configuration there asks everyone for Kerberos, by this key."""
    if not conf_dir:
        return False
    try:
        with open(f"{conf_dir}/core-site.xml", encoding="utf-8") as file:
            text = _COMMENT.sub("", file.read(SITE_BYTES_MAX))
    except (OSError, UnicodeDecodeError):
        return False
    for inside in _PROPERTY.findall(text):
        name, value = _NAME.search(inside), _VALUE.search(inside)
        if name and value and name[1] == key:
            return value[1].lower() == "kerberos"
    return False


def ticket_problem(env: Mapping[str, str], run_as: str, now: float, instead: str = "; or give the job a keytab") -> str:
    """Why there is no valid ticket for programs with this environment; "" if there is one, or nobody can tell.
    ``instead``: what would do in its place.
    """
    try:
        user = pwd.getpwnam(run_as) if run_as else pwd.getpwuid(os.getuid())
    except KeyError:
        return ""
    path = cache(env, user.pw_uid)
    if not instead and (not path or (not env.get("KRB5CCNAME") and names_a_cache(env))):
        return ""  # curl reads other caches than files
    if not path:
        return f"Java reads tickets of files only, and KRB5CCNAME is {env['KRB5CCNAME']:.100}: name a file, or a keytab"
    advice = f"kinit -c {path} as {user.pw_name}, and something that renews it (k5start, cron){instead}"
    try:
        found = [ticket for ticket in files.tickets(path) if ticket.granting]
    except FileNotFoundError:
        return f"Hadoop asks for Kerberos, and {user.pw_name} has no ticket: {path} is not there; {advice}"
    except PermissionError:
        return ""  # the user's own
    except (OSError, UnavailableError) as exc:
        return f"Hadoop asks for Kerberos, and the tickets of {user.pw_name} cannot be read: {exc}"
    if not found:
        return f"Hadoop asks for Kerberos, and {path} has no ticket-granting ticket; {advice}"
    newest = max(found, key=lambda ticket: ticket.ends_at)
    if newest.ends_at > now:
        return ""
    ended = datetime.fromtimestamp(newest.ends_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"Hadoop asks for Kerberos, and the ticket of {newest.client} in {path} expired at {ended}; {advice}"


def cache(env: Mapping[str, str], uid: int) -> str:
    """The file of the ticket cache that Java uses; "" if KRB5CCNAME names none."""
    named = env.get("KRB5CCNAME", "")
    if not named:
        return f"/tmp/krb5cc_{uid}"  # noqa: S108 - Java's own default
    kind, colon, path = named.partition(":")
    if not colon:
        return named
    return path if kind == "FILE" else ""


def names_a_cache(env: Mapping[str, str]) -> bool:
    """True if Kerberos' own configuration says where tickets are, as that of Fedora and RHEL does."""
    for path in (env.get("KRB5_CONFIG") or KRB5).split(":"):
        text = _text(path)
        for is_directory, name in _INCLUDES.findall(text):
            with contextlib.suppress(OSError):
                names = [f"{name}/{each}" for each in os.listdir(name)] if is_directory else [name]
                text += "\n".join(["", *map(_text, names)])
        if _CACHE_NAME.search(text):
            return True
    return False


def _text(path: str) -> str:
    """A file of the configuration; "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(SITE_BYTES_MAX)
    except OSError:
        return ""


def remarks(launch: SparkSubmit, env: Mapping[str, str], run_as: str, now: float) -> list[tuple[str, str]]:
    """For `doctor`: (what is weak about a job's identity, what to do)."""
    said = []
    if launch.keytab:
        try:
            mode = stat.S_IMODE(os.stat(launch.keytab).st_mode)
        except OSError:
            return []
        if mode & 0o007:
            told = f"{launch.keytab} has mode {mode:04o}: every user of this machine can become {launch.principal}"
            said.append((told, f"chmod 600 {launch.keytab}, or 640 and the group of the daemon"))
    elif missing := no_ticket(launch, env, run_as, now):
        said.append((missing, "without a ticket HDFS, Hive and the like refuse the job"))
        if shutil.which("kinit") is None:
            said.append(("kinit is not on this machine", "apt-get install krb5-user, or give the job a keytab"))
    return said
