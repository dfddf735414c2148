"""The topic `page-one`: of all nodes that hear of something, one tells the people on call.

coordctl call election.open '{"id": "disk-full-7", "topic": "page-one"}'
"""

import syslog

from coordd.plugins import TopicContext


def page(of: TopicContext) -> str:
    """Only the node that is first in the election calls this."""
    syslog.syslog(syslog.LOG_ALERT, f"{of.node} of {of.cluster} tells: {of.id}")
    return f"told of {of.id}"
