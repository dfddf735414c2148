"""Where the ResourceManager is: read from the Hadoop configuration, as spark-submit reads it."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping

from coordd.errors import UnavailableError

FILE_BYTES_MAX = 4 * 1024 * 1024

# A value may name other settings, which may do so again.
DEPTH_MAX = 20

HTTP_PORT, HTTPS_PORT = "8088", "8090"

# spark.hadoop.NAME overrides NAME.
SPARK_PREFIX = "spark.hadoop."

RM = "yarn.resourcemanager."

_REFERENCE = re.compile(r"\$\{([^${}]+)\}")


def resource_managers(conf: Mapping[str, str], env: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The web addresses of the ResourceManager (of a pair: of both), and the settings that they were read from.

    Raises UnavailableError when there is no configuration, or it names none.
    """
    settings = read_settings(env)
    settings.update({key[len(SPARK_PREFIX) :]: conf[key] for key in conf if key.startswith(SPARK_PREFIX)})
    secure = value_of(settings, "yarn.http.policy").upper() == "HTTPS_ONLY"
    ids = [""]
    if value_of(settings, f"{RM}ha.enabled").lower() == "true":
        ids = [f".{one.strip()}" for one in value_of(settings, f"{RM}ha.rm-ids").split(",") if one.strip()] or ids
    found = []
    for ident in ids:
        kind, port = ("webapp.https.address", HTTPS_PORT) if secure else ("webapp.address", HTTP_PORT)
        address = value_of(settings, f"{RM}{kind}{ident}")
        host = value_of(settings, f"{RM}hostname{ident}") or value_of(settings, f"{RM}address{ident}").partition(":")[0]
        if not address and host:
            address = f"{host}:{port}"
        if address:
            found.append(f"{'https' if secure else 'http'}://{address}")
    if not found:
        raise UnavailableError(
            f"the Hadoop configuration in {' and '.join(directories(env))} names no ResourceManager: expected"
            f" {RM}webapp.address, {RM}hostname, or a pair in {RM}ha.rm-ids"
        )
    return found, settings


def directories(env: Mapping[str, str]) -> list[str]:
    """The directories of the configuration. Raises UnavailableError when the environment names none."""
    found = [env[name] for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR") if env.get(name)]
    if not found:
        raise UnavailableError(
            "HADOOP_CONF_DIR and YARN_CONF_DIR are not set, so nobody knows where the ResourceManager is: set one of"
            " them in [spark] env of coordd.toml, or in the job's env"
        )
    return found


def read_settings(env: Mapping[str, str]) -> dict[str, str]:
    """All settings of core-site.xml and yarn-site.xml; of both files the later counts. Raises UnavailableError.

    Of several directories the first that has a file counts for it, in the order of Spark's class path.
    """
    named = directories(env)
    home = env.get("SPARK_HOME", "")
    of_spark = env.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else "")
    settings: dict[str, str] = {}
    for name in ("core-site.xml", "yarn-site.xml"):
        paths = [os.path.join(directory, name) for directory in ([of_spark] if of_spark else []) + named]
        if path := next(filter(os.path.exists, paths), ""):
            settings.update(_read(path))
    return settings


def value_of(settings: Mapping[str, str], name: str, default: str = "") -> str:
    """A setting, with the settings that it names filled in."""
    value = settings.get(name, default)
    for _ in range(DEPTH_MAX):
        match = _REFERENCE.search(value)
        if match is None:
            break
        value = value[: match.start()] + settings.get(match[1], "") + value[match.end() :]
    return value.strip()


def _read(path: str) -> dict[str, str]:
    try:
        with open(path, "rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise UnavailableError(f"{path}: more than {FILE_BYTES_MAX} bytes")
        root = ET.fromstring(content)  # noqa: S314  # a file of the site's administrators
    except (OSError, ET.ParseError, ValueError) as exc:
        raise UnavailableError(f"{path}: {exc}") from exc
    settings = {}
    for entry in root.iter("property"):
        name, value = entry.findtext("name"), entry.findtext("value")
        if name and value is not None:
            settings[name.strip()] = value
    return settings
