#!/usr/bin/python3
"""A hook that sends a mail through the machine's sendmail.

    [[hook]]
    name = "mail"
    on = ["run.failure", "run.missed", "run.unknown", "job.late", "node.lost", "alarm.raised"]
    argv = ["/usr/local/lib/coordd/mail.py", "oncall@example.org"]

A program that ends with another code than 0 is tried again, and is a dead letter then: `coordctl deadletter list`.
"""

import json
import os
import subprocess
import sys
from email.message import EmailMessage

SENDMAIL = os.environ.get("SENDMAIL", "/usr/sbin/sendmail")

event = json.load(sys.stdin)
message = EmailMessage()
message["To"] = ", ".join(sys.argv[1:])
message["Subject"] = f"[{event['cluster']}] {event['sentence']}"
lines = [f"{key}: {value}" for key, value in event.items() if value is not None]
if event["run"]:
    lines += ["", f"coordctl why '{event['run']}'", f"coordctl run logs '{event['run']}'"]
message.set_content("\n".join(lines) + "\n")
done = subprocess.run([SENDMAIL, "-t", "-oi"], input=message.as_bytes(), check=False)
sys.exit(done.returncode)
