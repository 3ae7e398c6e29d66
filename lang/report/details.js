// All that is known about one node.

function details(node) {
  const about = { class: "panel details", id: "details", "aria-label": "Details", tabindex: "-1" };
  if (!node) return h("section", about, h("h2", {}, "Details"), h("p", { class: "muted" }, "Select a bar, a node of the text or a variable."));
  const { piece } = node;
  const run = data.runs[node.run];
  if (!isOp(piece)) return h("section", about, h("div", { class: "bar-of-tools" }, h("h2", {}, "Text of the program"), copyButton(() => piece.text)), program(piece.at));
  return h("section", about,
    h("div", { class: "bar-of-tools" },
      h("h2", {}, h("span", { class: `dot ${piece.kind} ${piece.state}` }), nameOf(piece)),
      h("span", { class: `badge ${piece.state}` }, kindWord(piece)),
      copyButton(() => piece.text), h("a", { href: address(node), class: "small", title: "link to this node" }, "link")),
    piece.error && errorBox(piece.error), program(piece.at), timing(piece, run), countsOf(piece),
    choicesOf(piece), samplesOf(piece), optionsOf(piece.options, "Options"), tokenTable(piece));
}

const facts = (rows) => h("dl", { class: "facts" }, rows.filter(Boolean).map(([name, ...value]) => [h("dt", {}, name), h("dd", {}, value)]));

function errorBox(error) {
  return h("div", { class: "error-box", role: "note" }, h("strong", {}, error.type), h("div", {}, seen(error.message)),
    (error.causes || []).filter((cause) => !error.message.includes(cause)).map((cause) => h("div", { class: "cause" }, `caused by ${seen(cause)}`)),
    error.at && h("div", { class: "muted" }, `at ${placeText(error.at)}`));
}

function program(at) {
  if (!at) return null;
  const file = data.files[at[0]];
  const lines = Object.entries(file.lines).filter(([number]) => Math.abs(number - at[1]) <= 3);
  while (lines.length && !lines.at(-1)[1].trim()) lines.pop();
  const indent = Math.min(...lines.filter(([, line]) => line.trim()).map(([, line]) => line.search(/\S/)));
  return h("div", { class: "program" }, h("div", { class: "muted", title: file.path }, placeText(at), file.changed && " \u00b7 the file was changed after the run"),
    lines.length > 0 && h("pre", {}, lines.map(([number, line]) =>
      h("div", { class: Number(number) === at[1] ? "line here" : "line" }, h("span", { class: "number" }, number), seen(line.slice(indent)) || " "))));
}

function timing(piece, run) {
  const work = workOf(piece, run);
  const ready = work && Math.min(piece.ready, work[0]);
  const latency = piece.finished === null ? null : piece.finished - piece.submitted;
  const took = piece.finished === null ? "at work for" : piece.began === undefined ? "then took" : "computed for";
  return facts([
    ["appended", `at ${seconds(piece.submitted)}`],
    ready !== null && ready - piece.submitted > 0.00005 && ["waited", `${seconds(ready - piece.submitted)} for the text before it`],
    ready !== null && work[0] - ready > 0.00005 && ["waited", `${seconds(work[0] - ready)} for a place in the batch`],
    work && [took, seconds(work[1] - work[0])],
    piece.first !== undefined && ["first text", `${seconds(piece.first - piece.submitted)} after it was appended`],
    latency !== null && ["in all", seconds(latency)],
  ]);
}

function countsOf(piece) {
  const counts = piece.counts;
  if (!counts || !Object.keys(counts).length) return null;
  return h("div", {}, tokenBar(counts), facts([
    counts.prompt !== undefined && ["prompt", `${count(counts.prompt)} tokens: ${count(counts.cached)} cached, ${count(counts.computed)} computed`],
    piece.kind === "gen" && counts.generated !== undefined && ["generated", `${plural(counts.generated, "token")}${counts.forced ? `, ${count(counts.forced)} of them forced by the grammar` : ""}`],
    counts.drafted > 0 && ["guessed", `${plural(counts.drafted, "token")} ahead, ${count(counts.accepted)} of them kept`],
  ]));
}

/** How many tokens were cached, computed, sampled and forced, as one bar. */
function tokenBar(counts) {
  const forced = counts.forced || 0;
  const accepted = counts.accepted || 0;
  const parts = { cached: counts.cached || 0, computed: counts.computed || 0, sampled: Math.max(0, (counts.generated || 0) - forced - accepted), accepted, forced };
  const total = Object.values(parts).reduce((a, b) => a + b, 0);
  if (!total) return null;
  const words = { cached: "prompt tokens from the cache", computed: "prompt tokens computed", sampled: "sampled", accepted: "guessed ahead and kept", forced: "forced by a grammar" };
  const shown = Object.entries(parts).filter(([, value]) => value > 0);
  return h("div", { class: "token-bar" },
    h("div", { class: "stack", "aria-hidden": "true" }, shown.map(([name, value]) => h("span", { class: name, style: { flexGrow: value } }))),
    h("div", { class: "keys" }, shown.map(([name, value]) => h("span", { class: "key" }, h("span", { class: `swatch ${name}` }), `${count(value)} ${words[name]}`))));
}

function choicesOf(piece) {
  if (!piece.choices) return null;
  const sorted = [...piece.choices].sort((a, b) => (b.prob ?? b.mean ?? 0) - (a.prob ?? a.mean ?? 0));
  return h("div", {}, h("h3", {}, plural(piece.choices.length, "choice")), h("ol", { class: "choices" }, sorted.map((choice) => choiceRow(choice, piece))));
}

function choiceRow(choice, piece) {
  const chosen = piece.state === "done" && choice.text === piece.text;
  return h("li", { class: chosen ? "chosen" : "" },
    h("div", { class: "choice" }, h("span", { class: "choice-text" }, seen(choice.text) || "\u25aa", chosen && h("span", { class: "badge" }, "chosen")),
      choice.prob !== undefined && h("span", { class: "figure" }, percent(choice.prob))),
    choice.prob !== undefined && meter(choice.prob, "select"),
    choice.mean !== undefined && choice.mean !== null && h("div", { class: "muted" }, `mean logprob of a token ${choice.mean <= -1e6 ? "-\u221e" : choice.mean}`),
    choice.tokens && h("div", { class: "with-probability with-borders choice-tokens" }, choiceTokens(choice.tokens)));
}

const choiceTokens = (tokens) => {
  const sample = { tokens: tokens.map(([number]) => number), logprobs: tokens.map(([, value]) => value) };
  return tokens.map(([number], i) => tokenSpan(sample, data.vocabulary[number][1], i, 1));
};

function samplesOf(piece) {
  const samples = piece.samples || [];
  return samples.map((sample, i) => h("div", {},
    samples.length > 1 && h("h3", {}, `sample ${i + 1} of ${samples.length}`),
    sample.thought && h("details", { class: "fold" }, h("summary", {}, "what it thought"), h("pre", { class: "wrap" }, seen(sample.thought))),
    samples.length > 1 && h("pre", { class: "wrap with-probability" }, tokenText(sample)),
    facts([sample.finish && ["ended by", seen(sample.finish)], sample.truncated && ["truncated", sample.truncated]])));
}

function optionsOf(options, title) {
  const rows = Object.entries(options || {});
  if (!rows.length) return null;
  return h("div", {}, h("h3", {}, title), h("dl", { class: "facts" }, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, foldedText(value))])));
}

function foldedText(text) {
  if (text.length <= 160 && !text.includes("\n")) return h("code", {}, seen(text));
  return h("details", { class: "fold" }, h("summary", {}, firstLine(text.slice(0, 500).replace(/\s+/g, " "), 70)), h("pre", { class: "wrap" }, seen(text)));
}

function tokenTable(piece) {
  return (piece.samples || []).filter((sample) => sample.tokens).map((sample) => {
    const fold = h("details", { class: "fold" }, h("summary", {}, plural(sample.tokens.length, "token")));
    fold.addEventListener("toggle", () => fold.children.length > 1 || fold.append(tokenRows(sample)), { once: true });
    return fold;
  });
}

function tokenRows(sample) {
  const logprobs = sample.logprobs || [];
  return h("table", { class: "tokens-table" }, h("thead", {}, h("tr", {}, ["token", "id", "p", "logprob"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, sample.tokens.map((number, i) => {
      const [id, text] = data.vocabulary[number];
      const value = logprobs[i] ?? null;
      return h("tr", {}, h("td", {}, h("code", {}, tokenWord(text))), h("td", {}, id === null ? "" : String(id)),
        h("td", {}, value === null ? "" : percent(Math.exp(value))), h("td", {}, value === null ? "" : String(value)));
    })));
}
