// Search in all text, generated or not, and in errors.

const MOST = 60; // results shown

function searchBox() {
  const input = h("input", { type: "search", id: "search", placeholder: "search all text", "aria-label": "Search all text", "aria-controls": "found", autocomplete: "off", spellcheck: "false" });
  let timer = 0;
  input.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => search(input.value), 120); });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { input.value = ""; search(""); }
    if (event.key === "ArrowDown" && $("found").querySelector("button")) { event.preventDefault(); $("found").querySelector("button").focus(); }
  });
  return h("div", { class: "search" }, input, h("div", { id: "found", hidden: true }));
}

let index = null;

/** Every piece of every run with its text, made at the first search. */
function searchIndex() {
  index = index || data.runs.flatMap((run, r) => run.branches.flatMap((branch, b) => branch.pieces.flatMap((piece, i) => {
    const texts = [...new Set([piece.text, ...(piece.samples || []).flatMap((s) => [s.text, s.thought]), piece.error && piece.error.message].filter(Boolean))];
    return texts.map((text) => ({ node: nodeAt(r, b, i), text, low: text.toLowerCase() }));
  })));
  return index;
}

function search(words) {
  const wanted = words.toLowerCase();
  const hits = wanted ? searchIndex().filter(({ low }) => low.includes(wanted)) : [];
  table.matching = wanted ? new Set(hits.map(({ node }) => node.run)) : null;
  if ($("runs")) drawRuns();
  $("found").hidden = !wanted;
  $("found").replaceChildren(
    h("div", { class: "muted" }, wanted ? `${plural(hits.length, "match", "matches")}${many() ? ` in ${plural(table.matching.size, "run")}` : ""}` : ""),
    ...hits.slice(0, MOST).map((hit) => found(hit, wanted)));
  if (wanted) say($("found").firstChild.textContent);
}

function found({ node, text, low }, wanted) {
  const at = low.indexOf(wanted);
  const { run, branch, piece } = node;
  const where = [many() && `run ${run}`, data.runs[run].branches[branch].label, isOp(piece) && nameOf(piece)].filter(Boolean).join(" \u00b7 ");
  const open = () => { $("found").hidden = true; go(run, branch, node.index); };
  return button([h("span", { class: "muted" }, where), h("span", { dir: "auto" }, seen(text.slice(Math.max(0, at - 40), at)),
    h("mark", {}, seen(text.slice(at, at + wanted.length))), seen(text.slice(at + wanted.length, at + wanted.length + 60)))], open);
}
