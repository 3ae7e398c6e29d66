// What the engine is doing, from /metrics, once a second while the page is seen.

import { getText } from "./api.js";
import { $, count, h, seconds, svg } from "./dom.js";

const KEPT = 90; // points of a curve
const PERIOD = 1000; // milliseconds

/** Prometheus' text as {name: [{labels, value}]}. */
export function parse(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const match = line.match(/^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/);
    if (match) (found[match[1]] ??= []).push({ labels: match[2] ?? "", value: Number(match[3].replace("Inf", "Infinity")) });
  }
  return found;
}

/** The quantile of what a histogram has seen between two readings, by linear interpolation in its bucket; null for nothing. */
export function quantile(now, before, name, share) {
  const bounds = (reading) => sums(reading[`${name}_bucket`] ?? []);
  const [late, early] = [bounds(now), bounds(before)];
  const steps = [...late].map(([bound, value]) => [bound, value - (early.get(bound) ?? 0)]).sort(([a], [b]) => a - b);
  const total = steps.at(-1)?.[1] ?? 0;
  if (!total) return null;
  let [low, below] = [0, 0];
  for (const [bound, upTo] of steps) {
    if (upTo >= share * total) return bound === Infinity ? low : low + ((bound - low) * (share * total - below)) / (upTo - below);
    [low, below] = [bound, upTo];
  }
  return low;
}

/** Buckets by their upper bound, whatever their other labels. */
function sums(rows) {
  const found = new Map();
  for (const { labels, value } of rows) {
    const bound = Number(labels.match(/le="([^"]+)"/)[1].replace("+Inf", "Infinity"));
    found.set(bound, (found.get(bound) ?? 0) + value);
  }
  return found;
}

const value = (reading, name) => (reading[name] ?? []).reduce((sum, row) => sum + row.value, 0);
const rate = (name) => (now, before, span) => (value(now, name) - value(before, name)) / span;
const gauge = (name) => (now) => value(now, name);
const percent = (share) => `${(share * 100).toFixed(0)} %`;

const CURVES = [
  ["tokens generated a second", rate("sgl_generated_tokens_total"), count],
  ["tokens computed a second", rate("sgl_computed_tokens_total"), count],
  ["sequences running", gauge("sgl_running_sequences"), count],
  ["sequences waiting", gauge("sgl_waiting_sequences"), count],
  ["KV pool in use", gauge("sgl_kv_usage_ratio"), percent, 1],
];

export class Live {
  constructor() {
    this.curves = CURVES.map(([label, read, show, top]) => new Curve(label, read, show, top));
    this.figures = h("dl", { class: "figures" });
    this.note = h("p", { class: "muted" });
    $("live").append(h("h2", {}, "Live"), ...this.curves.map((curve) => curve.box), this.figures, this.note);
    this.first = null;
    this.before = null;
    this.poll();
  }

  async poll() {
    if (!document.hidden) {
      try {
        this.take(parse(await getText("metrics")), performance.now());
        this.note.textContent = "";
      } catch (error) {
        this.note.textContent = error.status === 404 ? "This server tells no metrics (--no-metrics)." : error.message;
      }
    }
    setTimeout(() => this.poll(), PERIOD);
  }

  take(now, at) {
    this.first ??= now;
    if (this.before) {
      const span = (at - this.before.at) / 1000;
      for (const curve of this.curves) curve.take(now, this.before.reading, span);
    }
    this.before = { reading: now, at };
    this.figures.replaceChildren(...figures(now, this.first).flatMap(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]));
  }
}

/** Latencies since this page was opened, totals since the engine was. */
function figures(now, first) {
  const wait = (name, share) => {
    const found = quantile(now, first, name, share);
    return found === null ? "-" : seconds(found);
  };
  return [
    ["first token, median, p99", `${wait("sgl_time_to_first_token_seconds", 0.5)}, ${wait("sgl_time_to_first_token_seconds", 0.99)}`],
    ["between tokens, median, p99", `${wait("sgl_inter_token_seconds", 0.5)}, ${wait("sgl_inter_token_seconds", 0.99)}`],
    ["prompt tokens from the cache", percent(value(now, "sgl_cache_hit_ratio"))],
    ["forced by grammars", `${count(value(now, "sgl_forced_tokens_total"))} of ${count(value(now, "sgl_generated_tokens_total"))} tokens`],
    ["guessed ahead and kept", `${count(value(now, "sgl_accepted_tokens_total"))} of ${count(value(now, "sgl_drafted_tokens_total"))} guesses`],
    ["preempted, aborted", `${count(value(now, "sgl_preemptions_total"))}, ${count(value(now, "sgl_aborts_total"))}`],
    ["idle in the last minute", percent(value(now, "sgl_idle_ratio"))],
  ];
}

/** One line over time, with its newest value beside its name. */
class Curve {
  constructor(label, read, show, top) {
    Object.assign(this, { read, show, top, points: [] });
    this.now = h("b", {}, "-");
    this.line = svg("polyline", { fill: "none" });
    this.picture = svg("svg", { viewBox: `0 0 ${KEPT - 1} 30`, preserveAspectRatio: "none", "aria-hidden": "true" }, this.line);
    this.box = h("div", { class: "curve" }, h("p", {}, `${label} `, this.now), this.picture);
  }

  take(now, before, span) {
    const point = this.read(now, before, span);
    this.points = [...this.points, point].slice(-KEPT);
    this.now.textContent = this.show(point);
    const top = this.top ?? Math.max(1, ...this.points);
    const start = KEPT - this.points.length;
    this.line.setAttribute("points", this.points.map((each, i) => `${start + i},${(29 - (28 * each) / top).toFixed(1)}`).join(" "));
  }
}
