// Generated text as its tokens, each coloured by how likely it was.

const LEVELS = [0.9, 0.6, 0.3, 0.1, 0.02];
const level = (logprob) => LEVELS.filter((bound) => Math.exp(logprob) < bound).length;

/** [text, index of the first token, number of tokens] of each visible part, null if text and tokens do not match. */
function partsOf(sample) {
  if (!sample.tokens || sample.spans === null) return null;
  if (!sample.spans) return sample.tokens.map((token, i) => [data.vocabulary[token][1], i, 1]);
  let at = 0;
  return sample.spans.map(([text, size]) => [text, (at += size) - size, size]);
}

function tokenText(sample) {
  const parts = partsOf(sample);
  if (!parts) return [h("span", { class: "plain" }, seen(sample.text))];
  return [h("span", {
    class: "tokens", tabindex: "0", role: "group", onkeydown: walkTokens, onblur: leaveTokens,
    "aria-label": `${plural(sample.tokens.length, "token")}; left and right arrows go through them`,
  }, parts.map(([text, first, size]) => tokenSpan(sample, text, first, size)))];
}

function tokenSpan(sample, text, first, size) {
  const made = h("span", { class: tokenClass(sample, text, first, size) }, text ? seen(text) : endMark(sample, first));
  made.about = { sample, first, size };
  return made;
}

function tokenClass(sample, text, first, size) {
  const values = (sample.logprobs || []).slice(first, first + size).filter((value) => value !== null);
  return `t${values.length ? ` p${level(Math.min(...values))}` : ""}${text ? "" : " end"}`;
}

const endMark = (sample, first) => seen(data.vocabulary[sample.tokens[first]][1]) || "\u25aa";

function tokenTip({ sample, first, size }) {
  const rows = [];
  for (let i = first; i < first + size; i++) {
    rows.push(h("div", { class: "tiptoken" }, tokenName(sample.tokens[i]), logprobText((sample.logprobs || [])[i])));
    const others = (sample.top || [])[i] || [];
    if (others.length) rows.push(alternatives(others, sample.tokens[i]));
  }
  if (!sample.logprobs) rows.push(h("div", { class: "muted" }, "no log-probabilities: they are there with return_logprob=True"));
  return rows;
}

/** A token's text where blanks count. */
const tokenWord = (text) => seen(text).replace(/ /g, "\u2423").replace(/\n/g, "\\n").replace(/\t/g, "\\t") || "\u25aa";

function tokenName(number) {
  const [id, text] = data.vocabulary[number];
  return [h("code", {}, tokenWord(text)), h("span", { class: "muted" }, id === null ? "" : ` id ${id} `)];
}

const logprobText = (value) =>
  value === undefined || value === null ? "" : h("span", { class: "figure" }, value <= -1e6 ? "p 0" : `p ${percent(Math.exp(value))}  logprob ${value}`);

function alternatives(others, chosen) {
  return h("div", { class: "others" }, others.map(([number, value]) =>
    h("div", { class: number === chosen ? "other chosen" : "other" },
      meter(Math.exp(value)), tokenName(number), h("span", { class: "figure" }, value <= -1e6 ? "0" : percent(Math.exp(value))))));
}

const meter = (share, kind = "") =>
  h("span", { class: `meter ${kind}`, "aria-hidden": "true" }, h("span", { style: { width: `${Math.max(0, Math.min(1, share)) * 100}%` } }));

// --- going through tokens by keyboard and pointer

function walkTokens(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (event.key === "Escape") leaveTokens(event);
  if (!step) return;
  event.preventDefault();
  const spans = [...event.currentTarget.children];
  const at = spans.findIndex((span) => span.classList.contains("here"));
  const next = spans[Math.max(0, Math.min(spans.length - 1, at + step))];
  spans.forEach((span) => span.classList.toggle("here", span === next));
  showTip(next, tokenTip(next.about));
  say($("tip").textContent);
}

function leaveTokens(event) {
  [...event.currentTarget.children].forEach((span) => span.classList.remove("here"));
  hideTip();
}

document.addEventListener("mouseover", (event) => {
  const target = event.target.closest && event.target.closest(".t, .bar");
  if (target && target.about) showTip(target, target.about.node ? barTip(target.about.node) : tokenTip(target.about));
  else if (!event.target.closest("#tip")) hideTip();
});
