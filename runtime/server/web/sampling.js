// The settings that both forms share, and what an answer cost.

import { count, h, labelled, seconds } from "./dom.js";

const number = (about) => h("input", { type: "number", ...about });

/** Fields for temperature, length and seed; `values()` gives them as the API's. */
export function samplingFields(temperature, maxTokens) {
  const heat = number({ min: 0, max: 2, step: 0.1, value: temperature, "aria-label": "temperature" });
  const most = number({ min: 1, step: 1, value: maxTokens, "aria-label": "most tokens" });
  const seed = number({ step: 1, placeholder: "any", "aria-label": "seed" });
  const box = h("div", { class: "fields" }, labelled("temperature", heat), labelled("most tokens", most), labelled("seed", seed));
  const values = () => ({
    temperature: Number(heat.value || 0),
    max_tokens: Number(most.value || 1),
    ...(seed.value === "" ? {} : { seed: Number(seed.value) }),
    stream_options: { include_usage: true },
  });
  return { box, values };
}

/** Watches one stream: when its first piece came, and what it took in all. */
export class Watch {
  constructor() {
    this.started = performance.now();
    this.first = null;
    this.usage = null;
    this.ending = null;
  }

  see(event) {
    const choice = event.choices[0];
    if (this.first === null && (choice?.delta?.content || choice?.delta?.reasoning_content)) this.first = performance.now();
    this.ending = choice?.finish_reason ?? this.ending;
    this.usage = event.usage ?? this.usage;
  }

  summary() {
    if (!this.usage || this.first === null) return "";
    const { prompt_tokens: prompt, completion_tokens: made, prompt_tokens_details: details } = this.usage;
    const took = (performance.now() - this.first) / 1000;
    return [
      `${count(made)} tokens`,
      `first after ${seconds((this.first - this.started) / 1000)}`,
      made > 1 && took > 0 ? `${count((made - 1) / took)} tokens/s` : null,
      `${count(details.cached_tokens)} of ${count(prompt)} prompt tokens from the cache`,
      this.ending === "length" ? "cut at the most tokens" : null,
    ].filter(Boolean).join(" · ");
  }
}
