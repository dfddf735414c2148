// Keeps the part of the page that changes up to date, while the page is seen.
// A browser opens only six connections to one host, so a page in the background has none.
"use strict";
(() => {
  const root = document.documentElement.dataset.root; // the path of all pages
  const part = () => document.getElementById("live");
  const word = document.getElementById("connection");
  let source = null;

  function say(text) {
    if (word) word.textContent = text;
  }

  function close() {
    if (source) source.close();
    source = null;
  }

  function atEnd(log) {
    return log && log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  }

  function open() {
    close();
    if (document.hidden || !part()) return;
    source = new EventSource(root + "/live?page=" + encodeURIComponent(location.pathname.slice(root.length) + location.search));
    source.addEventListener("page", (event) => {
      const before = document.getElementById("log");
      const follows = atEnd(before);
      Idiomorph.morph(part(), JSON.parse(event.data), { morphStyle: "innerHTML", ignoreActiveValue: true });
      const log = document.getElementById("log");
      if (log && follows) log.scrollTop = log.scrollHeight;
      say("live");
    });
    source.addEventListener("trouble", (event) => say(JSON.parse(event.data)));
    source.onerror = () => {
      say("not connected: what is shown may be old");
      if (source && source.readyState === EventSource.CLOSED) {
        close();
        setTimeout(open, 5000);
      }
    };
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  document.body.addEventListener("htmx:pushedIntoHistory", open);
  const log = document.getElementById("log");
  if (log) log.scrollTop = log.scrollHeight;
  open();
})();
