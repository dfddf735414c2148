#!/usr/bin/python3
"""A hook that writes into a chat: Slack, Mattermost, Rocket.Chat and others take {"text": ...} at an incoming webhook.

    [[hook]]
    name = "chat"
    on = ["run.*", "takeover", "cluster.ready"]
    argv = ["/usr/local/lib/coordd/chat.py", "/etc/coordd/chat.url"]

The address is a secret, so it stands in a file that only the daemon's user can read (mode 0600). A hook with
url = "https://..." instead posts the event itself, as JSON.
"""

import json
import pathlib
import sys
import urllib.request

MARKS = {"run.success": "\N{WHITE HEAVY CHECK MARK}", "cluster.ready": "\N{WHITE HEAVY CHECK MARK}"}

event = json.load(sys.stdin)
url = pathlib.Path(sys.argv[1]).read_text().strip()
if not url.startswith(("https://", "http://")):
    sys.exit(f"{sys.argv[1]}: expected an address that begins with https://")
mark = MARKS.get(event["event"], "\N{WARNING SIGN}")
body = json.dumps({"text": f"{mark} [{event['cluster']}] {event['sentence']}"}).encode()
request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 - checked above
with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310 - the same
    print(answer.status, answer.reason)
