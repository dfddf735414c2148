"""The sink `ends-table`: a table of SQLite, with each end of a run once. To: plugin://ends-table/srv/ends.db"""

import sqlite3
from contextlib import closing

from coordd.plugins import SinkContext

TABLE = "CREATE TABLE IF NOT EXISTS ends (id TEXT, attempt INT, job TEXT, state TEXT, PRIMARY KEY (id, attempt, state))"


def keep(of: SinkContext) -> str:
    """The same end may come twice: the key makes it one row."""
    row = {key: of.outcome[key] for key in ("id", "attempt", "job", "state")}
    with closing(sqlite3.connect(of.path, timeout=of.timeout_s / 2)) as database, database:
        database.execute(TABLE)
        new = database.execute("INSERT OR IGNORE INTO ends VALUES (:id, :attempt, :job, :state)", row).rowcount
    return f"{of.path} has {row['id']}" + ("" if new else " already")
