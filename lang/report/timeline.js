// The forks of a run over time: a lane for each branch, a bar for each operation.

const ROW = 30; // pixels of a lane
const QUEUE = 0.07; // share of the width for an operation that did not begin
let zoom = 1;

function timeline(number, chosen) {
  const run = data.runs[number];
  const scale = scaleOf(run);
  const track = h("div", { class: "track", id: "track", onkeydown: walkBars, onwheel: wheelZoom, style: { width: `${zoom * 100}%` } },
    h("div", { class: "axis", id: "axis" }), forkLines(run, scale), run.branches.map((_, b) => lane(number, b, scale)));
  const names = h("div", { class: "names" }, h("div", { class: "axis" }), run.branches.map((_, b) => laneName(number, b, chosen)));
  const scroll = h("div", { class: "scroll", id: "scroll" }, names, h("div", { class: "wide", id: "wide" }, track));
  const first = track.querySelector(".bar");
  if (first) first.tabIndex = 0;
  requestAnimationFrame(() => drawAxis(scale));
  return h("section", { class: "panel", "aria-label": "Timeline" }, timelineBar(run, scale), scroll);
}

function timelineBar(run, scale) {
  const by = (factor) => () => setZoom(zoom * factor, scale);
  const kinds = [["gen", "gen"], ["select", "select"], ["error", "error"], ["wait", "waiting"]];
  return h("div", { class: "bar-of-tools" }, h("h2", {}, "Time ", h("span", { class: "muted" }, plural(run.branches.length, "branch", "branches"))),
    h("span", { class: "keys" }, kinds.map(([kind, label]) => h("span", { class: "key" }, h("span", { class: `swatch ${kind}` }), label))),
    h("span", { class: "buttons", role: "group", "aria-label": "Zoom" }, button("\u2212", by(1 / 1.6), { "aria-label": "zoom out" }),
      button("fit", () => setZoom(1, scale), { "aria-label": "fit the whole run" }), button("+", by(1.6), { "aria-label": "zoom in" })));
}

/** Where a time is on the track, as a share of its width; what has not begun is after the end. */
function scaleOf(run) {
  const waiting = Math.max(0, ...run.branches.map((branch) => branch.pieces.filter((piece) => isOp(piece) && !workOf(piece, run)).length));
  const room = Math.max(0.3, 1 - waiting * QUEUE) * 0.985;
  const end = Math.max(endOf(run), 1e-6);
  const slot = Math.min(QUEUE, (0.98 - room) / Math.max(1, waiting));
  return { end, room, at: (time) => (Math.max(0, time) / end) * room, slot: slot * 0.85, queue: (index) => room + 0.01 + index * slot };
}

function lane(number, b, scale) {
  const run = data.runs[number];
  const branch = run.branches[b];
  const from = scale.at(branch.opened), to = scale.at(laneEnd(branch, run));
  const made = h("div", { class: "lane", "data-branch": b },
    h("div", { class: branch.closed === null && run.state === "running" ? "life open" : "life", style: { left: share(from), width: share(to - from) } }));
  let queued = 0, free = 0; // the end of the bar before
  branch.pieces.forEach((piece, i) => {
    if (!isOp(piece)) return;
    const work = workOf(piece, run);
    const start = work ? scale.at(work[0]) : scale.queue(queued++);
    const since = Math.max(piece.submitted, free);
    if (work && work[0] - since > scale.end * 0.002) made.append(waitLine(since, work, scale));
    free = work ? work[1] : free;
    made.append(bar(nodeAt(number, b, i), start, work ? scale.at(work[1]) - start : scale.slot));
  });
  return made;
}

const share = (part) => `${(part * 100).toFixed(3)}%`;

/** A branch lives until it was joined, else until its last operation was done. */
function laneEnd(branch, run) {
  if (branch.closed !== null) return branch.closed;
  if (run.end === null) return run.now;
  return Math.max(branch.opened, ...branch.pieces.map((piece) => piece.finished || 0));
}

const waitLine = (since, work, scale) =>
  h("div", { class: "waiting", style: { left: share(scale.at(since)), width: share(scale.at(work[0]) - scale.at(since)) } });

function bar(node, start, width) {
  const { piece } = node;
  const run = data.runs[node.run];
  const work = workOf(piece, run);
  const made = button(h("span", {}, nameOf(piece)), () => go(node.run, node.branch, node.index), {
    class: `bar ${piece.kind} ${piece.state}${work ? "" : " queued"}`, "data-node": address(node), tabindex: "-1",
    "aria-label": `${piece.kind} ${nameOf(piece)}, ${kindWord(piece)}, ${work ? seconds(work[1] - work[0]) : "not begun"}: ${firstLine(piece.text, 60)}`,
    onfocus: (event) => showTip(event.currentTarget, barTip(node)), onblur: hideTip,
    style: { left: share(start), width: share(width) },
  });
  made.about = { node };
  return made;
}

function barTip({ run: number, piece }) {
  const run = data.runs[number];
  const work = workOf(piece, run);
  const tokens = piece.counts && piece.counts.generated !== undefined ? ` \u00b7 ${plural(piece.counts.generated, "token")}` : "";
  return [h("div", {}, h("span", { class: `dot ${piece.kind} ${piece.state}` }), h("strong", {}, nameOf(piece)), ` ${kindWord(piece)}`),
    h("div", { class: "muted" }, work ? `${seconds(work[1] - work[0])}${tokens}` : "not begun", piece.at ? ` \u00b7 ${placeText(piece.at)}` : ""),
    h("div", { class: "tip-text" }, seen(isError(piece) ? piece.error.message : (piece.text || "").slice(0, 280)))];
}

function laneName(number, b, chosen) {
  const branch = data.runs[number].branches[b];
  const depth = branch.label.split(".").length - 1;
  const hint = hintOf(data.runs[number], branch);
  return button([h("span", { class: "label" }, branch.label), h("span", { class: "hint" }, seen(hint))], () => go(number, b, null), {
    class: "name", "aria-pressed": String(b === chosen), "data-branch": b, title: hint, style: { paddingLeft: `${6 + Math.min(depth, 8) * 10}px` },
  });
}

/** From each parent to its forks, and back where they were joined. */
function forkLines(run, scale) {
  const y = (b) => (b + 0.5) * ROW;
  const made = svg("svg", { class: "forks", viewBox: `0 0 1000 ${run.branches.length * ROW}`, preserveAspectRatio: "none", height: run.branches.length * ROW, "aria-hidden": "true" });
  run.branches.forEach((branch, b) => {
    if (branch.parent < 0) return;
    const line = (time, kind) => svg("path", { class: kind, d: `M${scale.at(time) * 1000} ${y(branch.parent)}V${y(b)}`, "vector-effect": "non-scaling-stroke" });
    made.append(line(branch.opened, "fork"));
    if (branch.closed !== null) made.append(line(branch.closed, "join"));
  });
  return made;
}

// --- zoom and axis

function setZoom(value, scale, anchor = 0.5) {
  const scroll = $("wide"), track = $("track");
  const point = (scroll.scrollLeft + scroll.clientWidth * anchor) / track.offsetWidth;
  zoom = Math.max(1, Math.min(400, value));
  track.style.width = `${zoom * 100}%`;
  scroll.scrollLeft = point * track.offsetWidth - scroll.clientWidth * anchor;
  drawAxis(scale);
}

function wheelZoom(event) {
  if (!event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  const box = $("wide").getBoundingClientRect();
  setZoom(zoom * Math.exp(-event.deltaY / 300), scaleOf(data.runs[shown.run]), (event.clientX - box.left) / box.width);
}

function drawAxis(scale) {
  const axis = $("axis");
  if (!axis) return;
  const step = niceStep((scale.end / Math.max(1, axis.offsetWidth * scale.room)) * 90);
  const ticks = [];
  for (let i = 0; i * step <= scale.end && i < 2000; i++) {
    ticks.push(h("span", { class: "tick", style: { left: share(scale.at(i * step)) } }, i ? seconds(i * step) : "0"));
  }
  axis.replaceChildren(...ticks);
}

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= least);
}

// --- keys: left and right within a lane, up and down between lanes

function walkBars(event) {
  const bars = [...$("track").querySelectorAll(".bar")];
  const next = nextBar(bars, bars.indexOf(document.activeElement), event.key);
  if (!next) return;
  event.preventDefault();
  bars.forEach((each) => (each.tabIndex = each === next ? 0 : -1));
  next.focus();
  next.scrollIntoView({ block: "nearest", inline: "nearest" });
}

function nextBar(bars, at, key) {
  if (at < 0) return null;
  if (key === "ArrowRight" || key === "ArrowLeft") return bars[at + (key === "ArrowRight" ? 1 : -1)];
  if (key !== "ArrowDown" && key !== "ArrowUp") return null;
  const laneOf = (each) => Number(each.parentNode.dataset.branch);
  const here = bars[at], down = key === "ArrowDown";
  const others = bars.filter((each) => (down ? laneOf(each) > laneOf(here) : laneOf(each) < laneOf(here)));
  const target = (down ? Math.min : Math.max)(...others.map(laneOf));
  const near = (each) => Math.abs(each.offsetLeft - here.offsetLeft);
  return others.filter((each) => laneOf(each) === target).sort((a, b) => near(a) - near(b))[0];
}
