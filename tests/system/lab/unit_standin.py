"""A stand-in for the daemon in a unit: it notifies, logs, and starts programs that outlive it, as runners do.

USR1 starts the program whose argv is in /run/coordd/command; HUP reloads; USR2 stops the watchdog messages.
"""

import json
import os
import signal
import subprocess
import sys
import time

import structlog

from coordd.adapters import logs
from coordd.adapters.systemd import SystemdNotifier, machine_is_stopping

if os.path.exists("/var/lib/coordd/bad-configuration"):
    sys.exit(78)

todo: list[int] = []
for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, lambda received, _frame: todo.append(received))

logs.configure()
log = structlog.get_logger()
notifier = SystemdNotifier()
reloads = 0
petting = True
log.info("node.started", node="edge-1", bus="amqp://guest:hunter2@mq/")
notifier.notify("READY=1", "STATUS=ready · 0 reloads")

while signal.SIGTERM not in todo:
    received = todo.pop(0) if todo else None
    if received == signal.SIGHUP:
        notifier.notify("RELOADING=1")
        reloads += 1
        notifier.notify("READY=1", f"STATUS=ready · {reloads} reloads")
    elif received == signal.SIGUSR1:
        with open("/run/coordd/command", encoding="utf-8") as file:
            argv = json.load(file)
        started = subprocess.Popen(argv, start_new_session=True, stdin=subprocess.DEVNULL)
        with open("/run/coordd/started", "w", encoding="utf-8") as file:
            file.write(str(started.pid))
        os.unlink("/run/coordd/command")
    elif received == signal.SIGUSR2:
        petting = False
    if petting:
        notifier.notify("WATCHDOG=1")
    time.sleep(0.02)
notifier.notify("STOPPING=1", "STATUS=stopping")
with open("/var/lib/coordd/machine-is-stopping", "w", encoding="utf-8") as file:
    file.write(str(machine_is_stopping()))
