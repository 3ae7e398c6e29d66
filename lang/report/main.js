// Which run, branch and node is open: kept in the fragment of the address, so that links to it work.

const shown = { run: null, branch: 0, index: null };

function head() {
  const runs = data.runs.length === 1 ? whereItRan(data.runs[0]) : h("div", { class: "muted subtitle" }, plural(data.runs.length, "run"));
  return [h("div", { class: "titles" }, h("h1", {}, seen(data.title)), runs), searchBox(), h("div", { class: "muted made" }, `made ${data.made.slice(0, 16).replace("T", " ")}`)];
}

/** Open a node, a branch (index null) or the list of runs (run null). */
function go(run, branch, index) {
  const hash = run === null ? "#" : `#${run}/${branch}${index === null ? "" : `/${index}`}`;
  try {
    history.pushState(null, "", hash);
  } catch { /* in a notebook's frame there is no address to keep it in */ }
  show(run, branch, index, true);
}

function fromAddress() {
  const [run, branch, index] = location.hash.slice(1).split("/").map((part) => (/^\d+$/.test(part) ? Number(part) : null));
  const known = data.runs[run ?? -1];
  if (!known) return many() || !data.runs.length ? [null, 0, null] : [0, tellingBranch(data.runs[0]), null];
  const b = known.branches[branch ?? -1] ? branch : tellingBranch(known);
  const pieces = known.branches[b] ? known.branches[b].pieces : [];
  return [run, b, pieces[index ?? -1] ? index : null];
}

function show(run, branch, index, byHand) {
  hideTip();
  const same = shown.run === run && $("track") !== null;
  const sameBranch = same && shown.branch === branch;
  Object.assign(shown, { run, branch, index });
  if (run === null) showBatch();
  else if (!data.runs[run].branches.length) showNothing(run);
  else {
    if (!same) showRun(run, branch);
    else if (!sameBranch) showBranch(run, branch);
    showNode(run, branch, index, byHand);
  }
}

function showBatch() {
  $("main").replaceChildren(...batch().flat());
  drawRuns();
}

function showNothing(run) {
  $("main").replaceChildren(backBar(run), h("section", { class: "panel" }, h("h2", {}, "This item of the batch has no state, only an error"), errorBox(data.runs[run].error)));
}

function showRun(run, branch) {
  zoom = 1;
  const bar = many() ? [backBar(run)] : [];
  $("main").replaceChildren(...bar, summary(data.runs[run]), timeline(run, branch),
    h("div", { class: "split" }, h("div", { id: "left" }, transcript(run, branch)), h("div", { id: "right" }, details(null))), variables(run));
}

function backBar(run) {
  const step = (by) => go(run + by, tellingBranch(data.runs[run + by]), null);
  return h("nav", { class: "bar-of-tools", "aria-label": "Runs" }, button("\u2190 all runs", () => go(null)), h("h2", {}, `Run ${run}`), whereItRan(data.runs[run]),
    h("span", { class: "buttons" }, run > 0 && button("previous", () => step(-1)), run + 1 < data.runs.length && button("next", () => step(1))));
}

function showBranch(run, branch) {
  $("left").replaceChildren(transcript(run, branch));
  document.querySelectorAll(".name").forEach((name) => name.setAttribute("aria-pressed", String(Number(name.dataset.branch) === branch)));
}

function showNode(run, branch, index, byHand) {
  const at = index ?? tellingOp(data.runs[run].branches[branch]);
  const node = at === null ? null : nodeAt(run, branch, at);
  $("right").replaceChildren(details(node));
  document.querySelectorAll(".chosen-node").forEach((each) => each.classList.remove("chosen-node"));
  if (!node) return;
  document.querySelectorAll(`[data-node="${address(node)}"]`).forEach((each) => each.classList.add("chosen-node"));
  const text = document.querySelector(`.text [data-node="${address(node)}"]`);
  if (text) reveal(text);
  if (byHand && isOp(node.piece)) say(`${nameOf(node.piece)}: ${kindWord(node.piece)}. ${firstLine(node.piece.text, 80)}`);
}

/** Scroll the text, not the page, to a node. */
function reveal(element) {
  const box = $("text");
  const inner = element.getBoundingClientRect(), outer = box.getBoundingClientRect();
  if (inner.top < outer.top || inner.bottom > outer.bottom) box.scrollTop += inner.top - outer.top - 40;
}

addEventListener("popstate", () => show(...fromAddress(), false));
addEventListener("scroll", placeTip, true);
addEventListener("resize", () => shown.run !== null && $("track") && drawAxis(scaleOf(data.runs[shown.run])));
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement.tagName !== "INPUT") { event.preventDefault(); $("search").focus(); }
  if (event.key === "Escape") hideTip();
});
$("head").append(...head());
show(...fromAddress(), false);
