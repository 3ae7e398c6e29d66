// Output that must keep to a schema, a pattern or a grammar, each token coloured by how sure the model was.

import { stream } from "./api.js";
import { $, button, h, labelled, say } from "./dom.js";
import { Watch, samplingFields } from "./sampling.js";

const BOOKING = {
  type: "object",
  properties: {
    name: { type: "string" },
    city: { type: "string" },
    date: { type: "string", description: "as the text says it" },
    guests: { type: "integer" },
  },
  required: ["name", "city"],
  additionalProperties: false,
};
const TASK = "Extract these fields from the text as JSON. Leave out what the text does not say.";
const MAIL = "Hello, my name is Anna Weber. We would like a room in Lisbon on March 3rd for 2 guests. Thank you!";

const KINDS = {
  json_schema: {
    label: "JSON Schema", source: JSON.stringify(BOOKING, null, 2), text: MAIL,
    constraint: (source) => ({ response_format: { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(source) } } }),
    system: (source) => [TASK, ...fieldLines(JSON.parse(source))].join("\n"),
  },
  regex: {
    label: "regex", source: "(January|February|March|April|May|June) \\d{1,2}", text: MAIL,
    constraint: (source) => ({ regex: source }), system: () => "When shall the guests arrive?",
  },
  ebnf: {
    label: "EBNF", source: 'root ::= place " for " [1-9] (" guest" | " guests")\nplace ::= "Lisbon" | "Rome" | "Oslo"', text: MAIL,
    constraint: (source) => ({ ebnf: source }), system: () => "Where do they want to stay, and how many are they?",
  },
};

/** The fields of a schema as the bundled model was taught to read them; any other model understands them too. */
export function fieldLines(schema, indent = "") {
  return Object.entries(schema.properties ?? {}).flatMap(([name, about]) => {
    const kind = about.enum ? ` (${about.enum.join(" | ")})` : about.format === "date" ? " (date)" : kindNote(about.type);
    const line = `${indent}- ${name}${kind}${about.description ? `: ${about.description}` : ""}`;
    return [line, ...fieldLines(about, `${indent}  `)];
  });
}

const kindNote = (type) => (!type || type === "string" ? "" : ` (${type === "array" ? "list" : type})`);

export class Form {
  constructor(model) {
    this.model = model;
    this.running = null;
    this.kind = h("select", { id: "kind", onchange: () => this.example() }, ...Object.entries(KINDS).map(([kind, { label }]) => h("option", { value: kind }, label)));
    this.source = h("textarea", { id: "source", rows: 14, spellcheck: "false", class: "code", "aria-label": "schema, pattern or grammar" });
    this.text = h("textarea", { id: "text", rows: 4, "aria-label": "text" });
    this.sampling = samplingFields(0, 200);
    this.output = h("pre", { id: "output", class: "tokens", tabindex: 0, "aria-label": "output" });
    this.verdict = h("p", { id: "verdict", class: "muted" });
    this.alternatives = h("p", { class: "muted alternatives" }, "Coloured tokens are those of which the model was less sure; point at one to see what else it considered.");
    this.button = button("Generate", () => this.generate(), { id: "generate" });
    $("form").append(
      h("div", { class: "columns" },
        h("div", {}, labelled("constraint", this.kind), this.source),
        h("div", {}, labelled("text", this.text), this.sampling.box, this.button, this.output, this.verdict, this.alternatives)),
    );
    this.example();
  }

  example() {
    const { source, text } = KINDS[this.kind.value];
    this.source.value = source;
    this.text.value ||= text;
  }

  body() {
    const { constraint, system } = KINDS[this.kind.value];
    const messages = [{ role: "system", content: system(this.source.value) }, { role: "user", content: this.text.value }];
    return { model: this.model, messages, logprobs: true, top_logprobs: 5, ...constraint(this.source.value), ...this.sampling.values() };
  }

  async generate() {
    if (this.running) return this.running.abort();
    let body;
    try {
      body = this.body();
    } catch (error) {
      return this.judge(`this is no JSON: ${error.message}`, true);
    }
    this.output.replaceChildren();
    this.judge("");
    const running = (this.running = new AbortController());
    this.button.textContent = "Stop";
    const watch = new Watch();
    try {
      for await (const event of stream("v1/chat/completions", body, running.signal)) {
        watch.see(event);
        if (event.choices[0]) this.show(event.choices[0]);
      }
      this.judge([this.valid(watch.ending), watch.summary()].filter(Boolean).join(" · "));
    } catch (error) {
      this.judge(error.name === "AbortError" ? "stopped" : error.message, error.name !== "AbortError");
    }
    this.running = null;
    this.button.textContent = "Generate";
  }

  show({ delta, logprobs }) {
    const rows = logprobs?.content ?? [];
    for (const row of rows) this.output.append(this.token(row));
    if (!rows.length && delta.content) this.output.append(delta.content);
  }

  token(row) {
    const sure = Math.exp(row.logprob);
    const level = sure > 0.9 ? 0 : sure > 0.6 ? 1 : sure > 0.3 ? 2 : 3;
    const tell = () => (this.alternatives.textContent = considered(row));
    return h("span", { class: `token sure${level}`, onmouseenter: tell, onclick: tell, title: percent(sure) }, row.token);
  }

  valid(ending) {
    if (this.kind.value !== "json_schema") return ending === "stop" ? "complete" : null;
    try {
      JSON.parse(this.output.textContent);
      return "valid JSON";
    } catch {
      return null;
    }
  }

  judge(text, failed = false) {
    this.verdict.textContent = text;
    this.verdict.classList.toggle("error", failed);
    if (text) say(text);
  }
}

const percent = (share) => (share >= 0.9995 ? "100 %" : share < 0.0005 ? "< 0.1 %" : `${(share * 100).toFixed(1)} %`);

const considered = (row) =>
  `Unconstrained, the model would have said: ${row.top_logprobs.map(({ token, logprob }) => `${JSON.stringify(token)} ${percent(Math.exp(logprob))}`).join(", ")}`;
