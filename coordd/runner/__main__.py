"""The start of a runner: reads its spec, forks the runner itself and stays as its watcher."""

import gc
import marshal
import os
import sys

from coordd.runner import kernel
from coordd.runner.asker import load_ledger
from coordd.runner.holder import Runner
from coordd.runner.tree import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Above every open descriptor (closing is one system call, however many there are).
FDS_MAX = 1 << 30

SPEC_BYTES_MAX = 16 * 1024 * 1024


def main() -> None:
    """The whole life of both processes; never returns. The spec comes on stdin, as marshal (json costs 8 ms)."""
    code = 1
    try:
        live(read_spec())
        code = 0
    except BaseException:  # after any exception, the watcher must see this process end
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def boot(root: str) -> str:
    """The Python text that starts a runner from the package under ``root``."""
    return f"import sys; sys.path.insert(0, {root!r}); from coordd.runner.__main__ import main; main()"


def read_spec() -> "dict[str, Any]":
    """The spec, from stdin, which is /dev/null then."""
    text = b""
    while part := os.read(0, 65536):
        text += part
        if len(text) > SPEC_BYTES_MAX:
            raise ValueError("the spec is too long")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    spec: dict[str, Any] = marshal.loads(text)  # noqa: S302 - from the process that started us
    return spec


def live(spec: "dict[str, Any]") -> None:
    """Watch the attempt, and fork its runner, until it is over."""
    os.chdir("/")
    _close_all_but(spec["watch"]["fds"] if "watch" in spec else (spec.get("launcher_fd", 0),))
    kernel.become_subreaper()
    if "watch" in spec:
        _watch_again(spec)
        return
    import_ledger(spec["ledger"])
    gc.freeze()  # both processes share what is loaded so far
    life_fd, its_life = os.pipe()
    its_pet, pet_fd = os.pipe()
    watcher = os.getpid()
    runner = os.fork()
    if runner == 0:
        os.close(its_life)
        os.close(its_pet)
        os.setsid()  # a signal to one process group must not reach the other
        kernel.take_name(kernel.RUNNER_NAME)
        kernel.become_subreaper()  # a child does not inherit this
        _kind(spec)(spec, boot(sys.path[0]), watcher, life_fd, pet_fd).run()
        return
    kernel.take_name(kernel.WATCHER_NAME)
    os.close(life_fd)
    os.close(pet_fd)
    if spec.get("launcher_port"):
        os.close(spec["launcher_fd"])
    from coordd.runner.watcher import Watcher  # imported here, while the runner works already

    tree = Tree(spec["nonce"], spec.get("cgroup", ""), {watcher, runner}, spec["born_ticks"])
    Watcher(spec, tree, runner, its_pet, kernel.start_ticks(runner)).run()


def _kind(spec: "dict[str, Any]") -> "type[Runner]":
    if spec.get("connect"):
        from coordd.runner.connect.holder import ConnectRunner

        return ConnectRunner
    if not spec.get("tracked"):
        return Runner
    from coordd.runner.cluster.holder import ClusterRunner

    return ClusterRunner


def _close_all_but(fds: "tuple[int, ...] | None") -> None:
    """Close descriptors that the daemon may have left open (systemd passes inherited sockets to it)."""
    begin = 3
    for fd in sorted(fds or ()):
        os.closerange(begin, fd)
        begin = max(begin, fd + 1)
    os.closerange(begin, FDS_MAX)


def import_ledger(url: str) -> None:
    """Before the fork, so that both processes share it."""
    if url.startswith("sqlite:"):
        # The package sqlite3 is this module plus converters of dates that are not used here, for 2.5 ms.
        sys.modules["sqlite3"] = _sqlite_alone()
    load_ledger(url)


def _sqlite_alone() -> "Any":
    """The module _sqlite3. It takes only ``lru_cache`` from functools, which would load collections too, for 2 ms.

    So it is given the interpreter's own cache; where that is missing, it loads functools itself.
    """
    import _functools  # type: ignore[import-not-found]  # no stub; a module of the interpreter

    cache = getattr(_functools, "_lru_cache_wrapper", None)
    if cache is None or "functools" in sys.modules:
        import _sqlite3

        return _sqlite3
    stand_in: Any = type(sys)("functools")
    stand_in.lru_cache = lambda size: lambda function: cache(function, size, False, tuple)
    sys.modules["functools"] = stand_in
    try:
        import _sqlite3
    finally:
        del sys.modules["functools"]
    return _sqlite3


def _watch_again(spec: "dict[str, Any]") -> None:
    """Started by a runner whose watcher has died, or by a daemon because both are gone (no ``fds``)."""
    from coordd.runner.watcher import Watcher

    kernel.take_name(kernel.WATCHER_NAME)
    watch = spec["watch"]
    if watch["fds"]:
        pet_fd, life_fd = watch["fds"]
        os.set_inheritable(pet_fd, False)
        os.set_inheritable(life_fd, False)  # open while we live: its end tells of our death
    else:
        pet_fd, closed = os.pipe()
        os.close(closed)
    spare = {os.getpid()}
    if watch["runner"]:
        spare.add(watch["runner"])
    tree = Tree(spec["nonce"], watch["cgroup"], spare, spec["born_ticks"])
    tree.session = watch["session"]
    watcher = Watcher(spec, tree, watch["runner"], pet_fd, watch["runner_start_ticks"])
    watcher.gone = not watch["runner"]
    watcher.guarded = False  # orphans of the time before may have another parent
    watcher.introduced = watch.get("introduced", True)
    watcher.deadline = watch["deadline"]
    watcher.petted = watch["petted"]
    watcher.run()
