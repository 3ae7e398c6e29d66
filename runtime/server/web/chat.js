// A conversation with the model.

import { stream } from "./api.js";
import { $, button, following, h, labelled, say } from "./dom.js";
import { Watch, samplingFields } from "./sampling.js";

export class Chat {
  constructor(model) {
    this.model = model;
    this.messages = [];
    this.running = null;
    this.sampling = samplingFields(0.7, 256);
    this.system = h("textarea", { rows: 2, "aria-label": "system prompt" }, "You are a helpful assistant.");
    this.log = h("div", { class: "log", role: "log" });
    this.input = h("textarea", { rows: 2, id: "say", placeholder: "Say something", "aria-label": "your message", onkeydown: (event) => this.key(event) });
    this.button = h("button", { id: "send" }, "Send");
    $("chat").append(
      h("details", { class: "settings" }, h("summary", {}, "System prompt and sampling"), labelled("system prompt", this.system), this.sampling.box),
      this.log,
      h("form", { class: "entry", onsubmit: (event) => this.submit(event) }, this.input, this.button, button("New", () => this.clear(), { title: "forget this conversation" })),
    );
  }

  key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    event.target.form.requestSubmit();
  }

  submit(event) {
    event.preventDefault();
    if (this.running) return this.running.abort();
    const text = this.input.value.trim();
    if (!text) return;
    this.input.value = "";
    this.add("user", text);
    this.answer();
  }

  clear() {
    this.running?.abort();
    this.messages = [];
    this.log.replaceChildren();
    this.input.focus();
  }

  add(role, content) {
    this.messages.push({ role, content });
    following(this.log, () => this.log.append(bubble(role, h("div", { class: "text" }, content))));
  }

  async answer() {
    const running = (this.running = new AbortController());
    const watch = new Watch();
    const place = new Answer(this.log);
    this.button.textContent = "Stop";
    try {
      for await (const event of stream("v1/chat/completions", this.body(), running.signal)) {
        watch.see(event);
        if (event.choices[0]) place.take(event.choices[0].delta);
      }
      place.end(watch.summary());
    } catch (error) {
      place.end(error.name === "AbortError" ? "stopped" : error.message, error.name !== "AbortError");
    }
    if (running !== this.running) return; // another conversation has begun
    this.messages.push({ role: "assistant", content: place.text.textContent });
    this.running = null;
    this.button.textContent = "Send";
    say("the answer is complete");
  }

  body() {
    const system = this.system.value.trim();
    const messages = [...(system ? [{ role: "system", content: system }] : []), ...this.messages];
    return { model: this.model, messages, ...this.sampling.values() };
  }
}

const bubble = (role, ...children) => h("article", { class: `message ${role}` }, h("h2", {}, role), ...children);

/** The place where an answer grows. */
class Answer {
  constructor(log) {
    this.log = log;
    this.thought = h("p", { class: "text" });
    this.thoughts = h("details", { class: "thought", hidden: true }, h("summary", {}, "thought"), this.thought);
    this.text = h("div", { class: "text" });
    this.note = h("p", { class: "muted" });
    following(log, () => log.append(bubble("assistant", this.thoughts, this.text, this.note)));
  }

  take(delta) {
    following(this.log, () => {
      if (delta.reasoning_content) {
        this.thoughts.hidden = false;
        this.thought.append(delta.reasoning_content);
      }
      if (delta.content) this.text.append(delta.content);
    });
  }

  end(note, failed = false) {
    following(this.log, () => {
      this.note.textContent = note;
      this.note.classList.toggle("error", failed);
    });
  }
}
