"""Stands in for spark-submit where its submission is Hadoop RPC, or where a JVM takes too long.

It reads the same command line and properties file, and posts to the fake that the variable SUBMIT_TO names, or to the
REST server of a real Standalone master.
SUBMIT_TO_EXIT: it fails with this code, SUBMIT_TO_FAIL times ("": always). SUBMIT_STOPS: it stops for a test "before"
or "after" it has posted, until the file that SUBMIT_GO names is there; its pid is in a file beside that one.
SUBMIT_QUIET: it prints no id. (SUBMIT_REAL: the real spark-submit runs instead.)
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from coordd.adapters.cluster import properties
from coordd.adapters.cluster.http import request
from coordd.core.jobs import applications

LABEL = "spark.kubernetes.driver.label."
CREATE = "/v1/submissions/create"


def main() -> int:
    argv = sys.argv[1:]
    with open(argv[argv.index("--properties-file") + 1], encoding="utf-8") as file:
        conf = properties.parse(file.read())
    for at, word in enumerate(argv):
        if word == "--conf":
            key, _, value = argv[at + 1].partition("=")
            conf[key] = value
    name = argv[argv.index("--name") + 1]
    url = os.environ["SUBMIT_TO"]
    pause("before")
    on_yarn = not (conf.get("spark.kubernetes.driver.pod.name") or applications.MARK in conf)
    if on_yarn:
        ident = post(f"{url}/new", {})["id"]
        if not os.environ.get("SUBMIT_QUIET"):
            print(f"INFO Client: Submitting application {ident} to ResourceManager", flush=True)
    if (code := os.environ.get("SUBMIT_TO_EXIT")) and fails():
        print("Exception in thread main: no such queue")
        return int(code)
    if conf.get("spark.kubernetes.driver.pod.name"):
        labels = {key[len(LABEL) :]: value for key, value in conf.items() if key.startswith(LABEL)}
        pod = {"metadata": {"name": conf["spark.kubernetes.driver.pod.name"], "labels": labels}, "spec": {}}
        said = post(f"{url}/api/v1/namespaces/default/pods", pod)["metadata"]["name"]
    elif applications.MARK in conf:
        said = post(url + CREATE, create_request(argv, conf))["submissionId"]
    else:
        said = post(f"{url}/submit", {"name": name, "tags": conf["spark.yarn.tags"], "id": ident})["id"]
    pause("after")
    if not os.environ.get("SUBMIT_QUIET"):
        print(f"INFO Client: Submitted application {said}", flush=True)
    return 0


def create_request(argv: list[str], conf: dict[str, str]) -> dict[str, Any]:
    """What the real spark-submit sends to the REST server of a Standalone master."""
    jar = next(at for at, word in enumerate(argv) if word.endswith(".jar"))
    properties = {
        **conf,
        "spark.app.name": argv[argv.index("--name") + 1],
        "spark.jars": argv[jar],
        "spark.master": argv[argv.index("--master") + 1],
        "spark.submit.deployMode": "cluster",
    }
    return {
        "action": "CreateSubmissionRequest",
        "appArgs": argv[jar + 1 :],
        "appResource": argv[jar],
        "clientSparkVersion": "4.3.0",
        "environmentVariables": {},
        "mainClass": argv[argv.index("--class") + 1],
        "sparkProperties": properties,
    }


def post(url: str, content: object) -> Any:
    answer = request("POST", url, headers={"Content-Type": "application/json"}, body=json.dumps(content).encode())
    if answer.status not in (200, 201):
        sys.exit(f"Exception in thread main: {answer.status} {answer.content.decode()}")
    return json.loads(answer.content)


def fails() -> bool:
    """True until it has failed so often as the test says."""
    times = os.environ.get("SUBMIT_TO_FAIL")
    if not times:
        return True
    with open(os.environ["SUBMIT_GO"] + ".failed", "a+") as file:
        file.write(".")
        return file.tell() <= int(times)


def pause(where: str) -> None:
    if os.environ.get("SUBMIT_STOPS") != where:
        return
    stopped = os.environ["SUBMIT_GO"] + f".{where}"
    with open(stopped + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.replace(stopped + ".new", stopped)
    until = time.monotonic() + 60
    while not os.path.exists(os.environ["SUBMIT_GO"]) and time.monotonic() < until:
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
