"""Every exception of coordd; the class says whose fault it is.

CoorddError
├── ConfigError              you: the configuration is wrong, nothing was started
│   └── JobFileError         you: one job file is wrong, that job alone is disabled
├── ProtocolError
│   ├── LocalProtocolError   us: a bug
│   └── RemoteProtocolError  them: drop the message, count it, stay up
├── UnavailableError         the world: something did not answer, try again
│   ├── ForeignLedgerError   the ledger that answers is not the one that was used before: nothing may come of it
│   ├── LedgerClosedError    the ledger was moved elsewhere, and answers nobody any more
│   └── BadRowError          one row of the ledger is damaged: nothing is done with that one
└── RefusedError             the caller: a request that cannot be granted, with the reason

An exception of a library never crosses a port: adapters translate.
"""

# No imports: the runner loads this file before it starts a job.


class CoorddError(Exception):
    """The root of everything that coordd raises on purpose."""


class ConfigError(CoorddError):
    """The configuration cannot be used.

    The message names the file, the key, what was expected and what was found.
    """


class JobFileError(ConfigError):
    """One job file cannot be used; the other jobs go on."""


class ProtocolError(CoorddError):
    """Bytes or messages that break the protocol."""


class LocalProtocolError(ProtocolError):
    """We broke it: a bug in coordd."""


class RemoteProtocolError(ProtocolError):
    """A peer or a client broke it: drop what it sent and stay up."""


class UnavailableError(CoorddError):
    """A dependency (ledger, bus, disk) did not answer; the caller may try again."""


class ForeignLedgerError(UnavailableError):
    """Another ledger than the one that this caller has used: whatever it would answer is about other runs."""


class LedgerClosedError(UnavailableError):
    """The ledger was closed for good, because its rows live on in another one."""


class BadRowError(UnavailableError):
    """A row of the ledger holds what no node writes; the message names row, column and value.

    Nothing was changed. All other rows are as good as they were.
    """


class RefusedError(CoorddError):
    """A request was understood and refused.

    ``kind`` is a stable word for scripts, ``hint`` says what to do.
    """

    def __init__(self, message: str, *, kind: str = "refused", hint: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.hint = hint
