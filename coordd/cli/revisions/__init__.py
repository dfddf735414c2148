"""`coordctl config`: publish the job definitions of the whole cluster, list what was published, and go back.

Here belong the commands of published revisions. `coordd check-config` and `coordctl reload` do not: they are about one
node's files.
"""
