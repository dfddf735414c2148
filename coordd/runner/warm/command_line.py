"""The command line of a forked process, as /proc and ps show it."""

import _ctypes

from coordd.runner import kernel

_memmove = _ctypes.dlsym(_ctypes.dlopen(None, 0), "memmove")  # type: ignore[arg-type]  # None is this process itself


class _Pointer(_ctypes._SimpleCData):  # type: ignore[type-arg]  # ctypes.c_void_p, less 3 ms
    _type_ = "P"


class CommandLine:
    """The memory that /proc/PID/cmdline shows. People and tools find a run's processes by it."""

    def __init__(self) -> None:
        """Raises OSError or ValueError when /proc does not tell where it is."""
        stat = kernel.read_proc("/proc/self/stat") or b""
        fields = stat[stat.rfind(b")") + 2 :].split()  # the first is number 3 in proc(5)
        self._start, self.size = int(fields[45]), int(fields[46]) - int(fields[45])
        if self.size <= 0:
            raise ValueError("/proc/self/stat does not say where the command line is")

    def show(self, words: "list[str]") -> None:
        """Replace it, and fill the rest with NUL bytes. A longer text is cut off: no attempt may fail by it."""
        text = b"".join([word.encode(errors="replace") + b"\0" for word in words])[: self.size - 1]
        text += bytes(self.size - len(text))
        _ctypes.call_cdeclfunction(_memmove, (_Pointer(self._start), text, len(text)))
