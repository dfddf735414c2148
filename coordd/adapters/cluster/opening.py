"""Which cluster manager has an application, and the way to it."""

from __future__ import annotations

from collections.abc import Mapping

from coordd.adapters.cluster.http import ANSWER_S
from coordd.errors import UnavailableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.ports import Applications

YARN, KUBERNETES, STANDALONE = "yarn", "k8s://", "spark://"

# The settings of Spark, and the variables, that say which cluster manager is asked, and as whom.
LOOKED_UP_BY = (
    "spark.hadoop.",
    "spark.kubernetes.authenticate.submission.",
    "spark.kubernetes.context",
    "spark.kubernetes.namespace",
    "spark.master.",
)
LOOKED_UP_WITH = ("HADOOP_CONF_DIR", "HADOOP_USER_NAME", "HOME", "KRB5CCNAME", "KUBECONFIG", "USER", "YARN_CONF_DIR")


def has_lookup(master: str) -> bool:
    """True if applications can be found again on this master."""
    return master == YARN or master.startswith((KUBERNETES, STANDALONE))


def open_manager(
    master: str,
    conf: Mapping[str, str],
    env: Mapping[str, str],
    *,
    answer_s: float = ANSWER_S,
    kept_s: float = 0.0,
    yarn_command: str = "",
) -> Applications:
    """The way to the applications of a master. ``conf``: Spark's settings, ``env``: of the program. ``yarn_command``:
    Hadoop's `yarn`, which is asked in place of the REST interface.

    Raises UnavailableError: there is none, or its configuration cannot be read.
    """
    if master == YARN and yarn_command:
        from coordd.adapters.cluster.yarn_command import YarnCommand

        return YarnCommand(yarn_command, conf, env)
    if master == YARN:
        from coordd.adapters.cluster.yarn import Yarn

        return Yarn(conf, env, answer_s=answer_s)
    if master.startswith(KUBERNETES):
        from coordd.adapters.cluster.kube_access import Access
        from coordd.adapters.cluster.kubernetes import Kubernetes

        return Kubernetes(Access(master, conf, env), answer_s=answer_s, kept_s=kept_s)
    if master.startswith(STANDALONE):
        from coordd.adapters.cluster.standalone import Standalone

        return Standalone(master, conf, answer_s=answer_s)
    raise UnavailableError(
        f"applications on {master} cannot be looked up: only YARN, Kubernetes and Standalone show our marks"
    )
