// Figures of a run, its variables, and the table of a batch.

function summary(run) {
  const usage = run.usage;
  const errors = errorsOf(run);
  const figures = [
    ["wall clock", run.end === null ? `${seconds(run.now)} so far` : seconds(endOf(run))],
    ...eachTook(usage),
    ["operations", count(usage.operations)],
    ["branches", count(run.branches.length)],
    ["generated", plural(usage.generated || 0, "token")],
    ["errors", errors ? String(errors) : "none"],
  ];
  return h("section", { class: "panel summary", "aria-label": "Summary" },
    h("div", { class: "figures" }, h("span", { class: `badge big ${run.state}` }, run.state),
      figures.map(([name, value]) => h("div", { class: `tile${name === "errors" && errors ? " bad" : ""}` }, h("div", { class: "value" }, value), h("div", { class: "muted" }, name)))),
    tokenBar(usage), run.with_nested && nestedLine(run), run.error && errorLine(run));
}

/** How long an operation waited (for the text before it, for a place in the batch) and was computed, where that is known. */
function eachTook(usage) {
  if (!usage.operations || usage.computing === undefined) return [];
  const { operations, computing } = usage;
  return [["wait per operation", seconds((usage.seconds - computing) / operations)], ["compute per operation", seconds(computing / operations)]];
}

/** The run's error in short, with a way to the node that shows it whole. */
function errorLine(run) {
  const node = opsOf(run).find(({ piece }) => isError(piece));
  if (!node) return errorBox(run.error);
  const open = button("show", () => go(node.run, node.branch, node.index), { class: "small" });
  return h("div", { class: "error-box" }, h("strong", {}, `${run.error.type} `), seen(firstLine(run.error.message, 200)), " ", open);
}

const nestedLine = (run) =>
  h("p", { class: "muted" }, `With the programs that it started: ${plural(run.with_nested.operations, "operation")}, ${count(run.with_nested.generated)} generated tokens.`);

const whereItRan = (run) =>
  h("div", { class: "muted subtitle", title: run.model || "" }, [many() && run.program, run.model && shortPath(run.model), run.backend, run.start !== undefined && many() && `started ${seconds(run.start)} after the first`].filter(Boolean).join(" \u00b7 "));

function variables(number) {
  const run = data.runs[number];
  const rows = run.variables.map((variable) => variableRow(number, variable));
  const given = Object.entries(run.arguments || {});
  return h("section", { class: "panel", "aria-label": "Variables" }, h("h2", {}, "Variables"),
    rows.length ? h("div", { class: "table-box" }, h("table", { class: "values" }, h("thead", {}, h("tr", {}, ["name", "value", "type"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows)))
      : h("p", { class: "muted" }, "none"),
    given.length > 0 && optionsOf(Object.fromEntries(given), "Arguments"), optionsOf(run.options, "Options of the run"));
}

function variableRow(number, variable) {
  const node = variable.node && nodeAt(number, ...variable.node);
  const value = variable.text !== undefined ? foldedText(variable.text) : node ? nodeValue(node.piece) : h("span", { class: "badge" }, variable.state || "");
  const name = variable.returned ? h("em", {}, "returned") : h("code", {}, variable.name);
  const opener = node ? button(name, () => go(number, ...variable.node), { class: "link" }) : name;
  return h("tr", {}, h("th", { scope: "row" }, opener), h("td", {}, value), h("td", { class: "muted" }, variable.type || (node ? node.piece.kind : "")));
}

function nodeValue(piece) {
  if (piece.state !== "done") return h("span", { class: `badge ${piece.state}` }, kindWord(piece));
  if (piece.samples.length === 1) return foldedText(piece.text);
  return h("ol", {}, piece.samples.map((sample) => h("li", {}, foldedText(sample.text))));
}

// --- a batch

const PAGE = 500; // rows that are drawn at once
const table = { column: "number", down: false, rows: PAGE, matching: null };
const COLUMNS = [
  ["number", "#", (run) => run.number],
  ["state", "state", (run) => run.state],
  ["input", "input", (run) => Object.values(run.arguments || {}).join(" \u00b7 ")],
  ["output", "output", (run) => (run.error ? run.error.message : outputsOf(run).map(({ pieces }) => pieces.at(-1).text).join("\n")), "wide"],
  ["start", "when", (run) => run.start ?? -1],
  ["time", "time", (run) => endOf(run)],
  ["operations", "ops", (run) => run.usage.operations || 0, "figure"],
  ["cached", "cached", (run) => run.usage.cached || 0, "figure"],
  ["computed", "computed", (run) => run.usage.computed || 0, "figure"],
  ["generated", "generated", (run) => run.usage.generated || 0, "figure"],
];

function batch() {
  const total = data.runs.reduce((sum, run) => addUsage(sum, run.usage), {});
  if (data.runs.some((run) => run.usage.operations && run.usage.computing === undefined)) delete total.computing;
  return [batchSummary(total), h("section", { class: "panel", "aria-label": "Runs" }, h("div", { class: "table-box" }, h("table", { class: "runs", id: "runs" })), h("div", { id: "more" }))];
}

function batchSummary(total) {
  const end = Math.max(0, ...data.runs.map((run) => (run.start || 0) + endOf(run)));
  const wrong = data.runs.filter((run) => run.error).length;
  const figures = [["runs", count(data.runs.length)], ["wall clock", seconds(end)], ...eachTook(total), ["operations", count(total.operations || 0)],
    ["generated", plural(total.generated || 0, "token")], ["with errors", wrong ? String(wrong) : "none"]];
  return h("section", { class: "panel summary", "aria-label": "Summary" },
    h("div", { class: "figures" }, figures.map(([name, value]) =>
      h("div", { class: `tile${name === "with errors" && wrong ? " bad" : ""}` }, h("div", { class: "value" }, value), h("div", { class: "muted" }, name)))),
    tokenBar(total));
}

function drawRuns() {
  const body = sortedRuns();
  const end = Math.max(1e-6, ...data.runs.map((run) => (run.start || 0) + endOf(run)));
  $("runs").replaceChildren(h("thead", {}, h("tr", {}, COLUMNS.map(columnHead))),
    h("tbody", {}, body.slice(0, table.rows).map((run) => runRow(run, end))));
  $("more").replaceChildren(...(body.length > table.rows ? [button(`show ${count(body.length - table.rows)} more`, () => { table.rows = Infinity; drawRuns(); })] : []));
}

function sortedRuns() {
  const [, , key] = COLUMNS.find(([name]) => name === table.column);
  const chosen = data.runs.filter((run, number) => !table.matching || table.matching.has(number));
  const order = (a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0);
  return chosen.sort((a, b) => (table.down ? order(b, a) : order(a, b)));
}

function columnHead([name, label]) {
  const sorted = table.column === name;
  const turn = () => {
    table.down = sorted ? !table.down : !["number", "state", "input", "output", "start"].includes(name);
    table.column = name;
    drawRuns();
    $("runs").querySelector(`[data-column=${name}]`).focus();
  };
  return h("th", { scope: "col", class: `col-${name}`, "aria-sort": sorted ? (table.down ? "descending" : "ascending") : "none" },
    button(`${label}${sorted ? (table.down ? " \u2193" : " \u2191") : ""}`, turn, { class: "link", "data-column": name }));
}

function runRow(run, end) {
  const number = run.number;
  const cells = COLUMNS.map(([name, , key, kind]) => h("td", { class: `c-${name} ${kind || ""}`, dir: kind === "wide" || name === "input" ? "auto" : undefined }, runCell(run, number, name, key, end)));
  return h("tr", { class: run.state, onclick: (event) => event.target.closest("button") || go(number, tellingBranch(run), null) }, cells);
}

function runCell(run, number, name, key, end) {
  if (name === "number") return button(`${number}`, () => go(number, tellingBranch(run), null), { class: "link", "aria-label": `open run ${number}` });
  if (name === "state") return h("span", { class: `badge ${run.state}` }, run.state);
  if (name === "input") return seen(firstLine(key(run).replace(/\s+/g, " ")));
  if (name === "output") return run.error ? h("span", { class: "error" }, seen(`${run.error.type}: ${firstLine(run.error.message)}`)) : outputs(run);
  if (name === "start") return run.start === undefined ? "" : waterfall(run, end);
  if (name === "time") return run.start === undefined ? "" : seconds(endOf(run));
  return count(key(run));
}

const SHOWN = 8; // branches of a run, operations of a branch in one row

/** What each branch wrote, with the branch's name and those of its variables; a single text without. */
function outputs(run) {
  const made = outputsOf(run);
  if (made.length === 1 && made[0].pieces.length === 1) return seen(firstLine(made[0].pieces[0].text));
  const rows = made.slice(0, SHOWN).map(({ branch, pieces }) => h("div", { class: "out", title: pieces.map((piece) => `${nameOf(piece)}: ${firstLine(piece.text, 600)}`).join("\n") },
    run.branches.length > 1 && h("span", { class: "muted" }, `${branch.label} `), pieces.slice(-SHOWN).map(outputOf),
    run.branches.length > 1 && h("span", { class: "muted" }, seen(hintOf(run, branch)))));
  return [...rows, made.length > SHOWN && h("div", { class: "muted" }, `and ${plural(made.length - SHOWN, "more branch", "more branches")}`)];
}

const outputOf = (piece) => h("span", { class: "made" }, h("b", {}, nameOf(piece)), " ", seen(firstLine(piece.text)));

const waterfall = (run, end) => h("div", { class: "waterfall", title: `started ${seconds(run.start)} after the first` },
  h("span", { class: run.error ? "error" : "", style: { left: share(run.start / end), width: share(endOf(run) / end) } }));
