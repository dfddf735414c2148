// Keeps the part of the page that changes up to date, while the page is seen.
// A browser opens only six connections to one host, so a page in the background has none.
"use strict";
(() => {
  const root = document.documentElement.dataset.root; // the path of all pages
  const part = () => document.getElementById("live");
  const word = document.getElementById("connection");
  let source = null;
  let forms = null; // as the server drew them last, until they are here
  let sent = false; // a form was: its answer is another page

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

  // A person is at a form: it has the focus, or something was typed or chosen in it.
  function atForm(below) {
    const fields = [...below.querySelectorAll("input:not([type=hidden])")];
    return below.contains(document.activeElement) || fields.some((field) => field.value !== field.defaultValue);
  }

  function drawForms() {
    const below = document.getElementById("below");
    if (forms === null || sent || !below || atForm(below)) return;
    Idiomorph.morph(below, forms, { morphStyle: "innerHTML" });
    forms = null;
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
      drawForms();
      say("live");
    });
    source.addEventListener("forms", (event) => {
      forms = JSON.parse(event.data);
      drawForms();
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
  document.addEventListener("submit", () => (sent = true));
  document.addEventListener("focusout", () => setTimeout(drawForms)); // the focus is at its next place then
  window.addEventListener("pageshow", (event) => event.persisted && location.reload()); // its forms were sent
  document.body.addEventListener("htmx:pushedIntoHistory", open);
  const log = document.getElementById("log");
  if (log) log.scrollTop = log.scrollHeight;
  open();
})();
