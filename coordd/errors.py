"""Every exception of coordd; the class says whose fault it is.

CoorddError
├── ConfigError              you: the configuration is wrong, nothing was started
│   └── JobFileError         you: one job file is wrong, that job alone is disabled
├── ProtocolError
│   ├── LocalProtocolError   us: a bug
│   └── RemoteProtocolError  them: drop the message, count it, stay up
├── UnavailableError         the world: something did not answer, try again
│   ├── ForeignLedgerError   another ledger answers than the one that was used before: its answers must not be used
│   ├── LedgerClosedError    the ledger was moved elsewhere, and refuses every request
│   └── BadRowError          one row of the ledger is damaged, and is not used
├── RefusedError             the caller: a request that cannot be granted, with the reason
├── NotElectedError          nobody's fault: another machine has the run, or had it
└── LeaseLostError           stop now: the lease of the run is lost, or the run was cancelled

Library exceptions never cross a port: adapters translate them.
"""

# No imports: the runner loads this file before it starts a job.


class CoorddError(Exception):
    """The base of all exceptions that coordd raises on purpose."""


class ConfigError(CoorddError):
    """The configuration cannot be used.

    The message names the file, the key, the expected and the found value.
    """


class JobFileError(ConfigError):
    """One job file cannot be used; other jobs are not affected."""


class ProtocolError(CoorddError):
    """Bytes or messages that break the protocol."""


class LocalProtocolError(ProtocolError):
    """Our own fault: a bug in coordd."""


class RemoteProtocolError(ProtocolError):
    """The fault of a peer or a client: drop its message and stay up."""


class UnavailableError(CoorddError):
    """A dependency (ledger, bus, disk) did not answer; the caller may try again."""


class FullError(UnavailableError):
    """A ledger that has no room for another row. It answers everything that needs none."""


class ForeignLedgerError(UnavailableError):
    """A ledger that this caller has not used before: its answers would be about other runs."""


class LedgerClosedError(UnavailableError):
    """The ledger was closed permanently, because its rows live on in another one."""


class BadRowError(UnavailableError):
    """A row of the ledger is invalid; the message names row, column and value.

    Nothing was changed. Other rows are not affected.
    """


class RefusedError(CoorddError):
    """A request was understood and refused.

    ``kind`` is a stable word for scripts, ``hint`` says what to do.
    """

    def __init__(self, message: str, *, kind: str = "refused", hint: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.hint = hint


class NotElectedError(CoorddError):
    """The code is not run here: another machine has its run, or had it."""


class LeaseLostError(CoorddError):
    """The lease of the run is lost, or the run was cancelled: what the code did since may have to be done again."""
