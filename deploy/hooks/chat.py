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
import urllib.error
import urllib.parse
import urllib.request

MARKS = {"run.success": "\N{WHITE HEAVY CHECK MARK}", "cluster.ready": "\N{WHITE HEAVY CHECK MARK}"}


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A webhook that has moved is a failure. The page behind the redirect, such as a login, would answer 200."""

    def redirect_request(self, *_: object) -> None:
        """Follow none."""


event = json.load(sys.stdin)
url = pathlib.Path(sys.argv[1]).read_text().strip()
where = urllib.parse.urlsplit(url)
if where.scheme != "https" and (where.scheme, where.hostname) not in (("http", "127.0.0.1"), ("http", "localhost")):
    sys.exit(f"{sys.argv[1]}: expected an address that begins with https:// (or http://, on this machine)")
mark = MARKS.get(event["event"], "\N{WARNING SIGN}")
text = f"{mark} [{event['cluster']}] {event['sentence']}"
for sign, written in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):  # else a quoted "<!channel>" calls everybody
    text = text.replace(sign, written)
body = json.dumps({"text": text}).encode()
request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 - checked above
try:
    with urllib.request.build_opener(NoRedirect).open(request, timeout=20) as answer:
        print(answer.status, answer.reason)
except urllib.error.HTTPError as exc:
    sys.exit(f"the chat answered {exc.code} {exc.reason}")
