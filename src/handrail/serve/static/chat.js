// The chat with the agent: sends a message, shows its text and its calls as they come, then the turns as they are saved.
"use strict";
(() => {
  const chat = document.getElementById("chat");
  const turns = document.getElementById("turns");
  if (!chat || !turns) return;
  const message = chat.querySelector("textarea[name=message]");
  const stop = chat.querySelector("button.stop");
  let isBusy = false;
  const setBusy = (is) => {
    isBusy = is;
    stop.hidden = !is;
    for (const button of chat.querySelectorAll("button:not(.stop)")) button.disabled = is;
  };
  setBusy(false);

  const add = (parent, tag, name, text = "") => {
    const made = document.createElement(tag);
    made.className = name;
    made.textContent = text;
    parent.append(made);
    return made;
  };
  const show = (html) => { turns.innerHTML = html; };
  const fail = (text) => {
    turns.querySelector(".notice.problem")?.remove();
    const notice = add(turns, "p", "notice problem", text);
    notice.setAttribute("role", "alert");
  };

  // What is said now, until the server sends the turns.
  const addLive = (text) => {
    turns.querySelector(".empty")?.remove();
    const section = add(turns, "section", "turn live");
    const said = add(section, "div", "said");
    if (text) {
      const bubble = add(said, "p", "bubble customer");
      add(bubble, "span", "hint", "Customer");
      bubble.append(text);
    }
    const reply = add(said, "p", "bubble agent");
    add(reply, "span", "hint", "Agent");
    return { reply: reply.appendChild(document.createTextNode("")), trace: add(section, "div", "trace") };
  };

  const read = async (answer, live) => {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "", isShown = false;
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return isShown;
      rest += value;
      const blocks = rest.split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const lines = block.split("\n");
        const name = lines.find((line) => line.startsWith("event: "))?.slice(7);
        const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
        if (name === "text") live.reply.data += JSON.parse(data);
        else if (name === "trace") live.trace.insertAdjacentHTML("beforeend", data);
        else if (name === "turns") { show(data); isShown = true; }
      }
    }
  };

  const send = async (address, body, text) => {
    setBusy(true);
    try {
      const answer = await fetch(address, { method: "POST", body, headers: { Accept: "text/event-stream" } });
      if (!(answer.headers.get("content-type") || "").startsWith("text/event-stream")) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        fail(page.querySelector(".notice.problem[role=alert]:not([hidden])")?.textContent || `The server answered ${answer.status}.`);
        return;
      }
      if (text) message.value = "";
      if (!(await read(answer, addLive(text)))) fail("The connection broke off. The turn goes on: reload the page.");
    } catch {
      fail("The server does not answer. If the turn began, it goes on: reload the page.");
    } finally {
      setBusy(false);
      message.focus();
    }
  };

  chat.addEventListener("submit", (event) => {
    event.preventDefault();
    const button = event.submitter;
    const body = new URLSearchParams(new FormData(event.target, button));
    const address = button?.getAttribute("formaction") || event.target.getAttribute("action");
    if (button === stop) fetch(address, { method: "POST", body }).catch(() => fail("The server does not answer."));
    else if (!isBusy) send(address, body, event.target.contains(message) ? message.value.trim() : "");
  });
  message.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!isBusy && message.value.trim()) message.form.requestSubmit();
  });
})();
