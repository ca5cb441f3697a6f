// Keys on the lists (j, k, a, d), calls as they end, and a word when the gateway does not answer.
"use strict";
(() => {
  const connection = document.getElementById("connection");
  const setConnected = (is) => { if (connection) connection.hidden = is; };

  const items = () => [...document.querySelectorAll(".item")];
  const move = (step) => {
    const all = items();
    if (!all.length) return;
    const at = all.indexOf(document.activeElement?.closest(".item"));
    all[at < 0 ? 0 : Math.min(Math.max(at + step, 0), all.length - 1)].focus();
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    const item = document.activeElement?.closest(".item");
    if (event.key === "j" || event.key === "k") move(event.key === "j" ? 1 : -1);
    else if (event.key === "a" && !event.repeat) item?.querySelector("button.approve")?.click();
    else if (event.key === "d") item?.querySelector(".reason input")?.focus();
    else return;
    event.preventDefault();
  });
  document.addEventListener("keydown", (event) => {
    // In the field for the reason, Escape leaves it and Enter must not approve what one wants to deny.
    if (!event.target.matches(".answer .reason input")) return;
    if (event.key === "Escape") event.target.closest(".item").focus();
    else if (event.key === "Enter" && event.target.form.querySelector("button.deny")) {
      event.preventDefault();
      event.target.form.querySelector("button.deny").focus();
    }
  });

  // After a decision its card has no form any more: the keys go on from it, and it stays for a while. Who is elsewhere
  // by then stays there: a reason that is being typed must not become keys of another card.
  let keepUntil = 0;
  document.addEventListener("htmx:load", (event) => {
    setConnected(true);
    if (!event.detail.elt.matches?.(".item")) return;
    if (document.activeElement === document.body) event.detail.elt.focus();
    keepUntil = Date.now() + 10000;
  });
  for (const name of ["htmx:sendError", "htmx:responseError", "htmx:timeout"]) {
    document.addEventListener(name, () => setConnected(false));
  }

  // What waits is read again, unless somebody is in the middle of a decision.
  const waiting = () => document.getElementById("waiting");
  if (waiting()) {
    setInterval(() => {
      const isBusy = Date.now() < keepUntil || document.querySelector(".answer details[open]")
        || document.activeElement?.closest(".answer") || [...document.querySelectorAll(".reason input")].some((input) => input.value);
      if (!document.hidden && !isBusy && window.htmx) window.htmx.trigger(waiting(), "refresh");
    }, 3000);
  }

  const live = document.getElementById("live");
  const rows = document.querySelector("#calls tbody");
  if (live && rows && !new URLSearchParams(location.search).has("before")) {
    const source = new EventSource(live.dataset.stream);
    source.onopen = () => setConnected(true);
    source.onerror = () => setConnected(false);
    source.onmessage = (event) => {
      const made = document.createElement("template");
      made.innerHTML = event.data;
      const row = made.content.querySelector("tr");
      if (!row || rows.querySelector(`[data-ref="${CSS.escape(row.dataset.ref)}"]`)) return;
      row.classList.add("new");
      rows.prepend(row);
      document.querySelector("main > .empty")?.remove();
      while (rows.rows.length > 200) rows.lastElementChild.remove();
    };
    window.addEventListener("pagehide", () => source.close());
  }
})();
