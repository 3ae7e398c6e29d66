// The text of one branch: turns, literals, what the model wrote, and where others forked off.

const FOLD = 3000; // characters of a literal that are shown at once
const looks = { probability: true, borders: false, marks: false };

function transcript(number, b) {
  const run = data.runs[number];
  const nodes = textNodes(number, b);
  const box = h("div", { class: "text", id: "text" });
  const place = { box, turn: null, run, branch: b };
  nodes.forEach((node, i) => {
    forkMarks(place, number, b, i);
    const { turn, mark } = turnAt(run.branches[b], i);
    if (i === run.branches[b].start && run.branches[b].parent >= 0) divider(place, run, b);
    blockFor(place, turn).append(...pieceElements(node, mark));
  });
  forkMarks(place, number, b, nodes.length);
  if (!nodes.length) box.append(h("p", { class: "muted" }, "nothing was appended to this branch"));
  setLooks(box);
  return h("section", { class: "panel", "aria-label": "Transcript" }, transcriptBar(number, b), box);
}

function transcriptBar(number, b) {
  const branch = data.runs[number].branches[b];
  const probable = textNodes(number, b).some(({ piece }) => (piece.samples || []).some((sample) => sample.logprobs));
  const look = (name, label, title) => toggle(label, title, looks[name], (on) => { looks[name] = on; setLooks($("text")); });
  return h("div", { class: "bar-of-tools" },
    h("h2", {}, "Text ", h("span", { class: "muted" }, `of branch ${branch.label}${branch.adapter ? `, adapter ${branch.adapter}` : ""}`)),
    probable && look("probability", "probability", "Colour tokens by how likely the model found them"),
    look("borders", "tokens", "Show where tokens begin and end"),
    look("marks", "template", "Show the text that the chat template adds around turns"),
    copyButton(() => plainText(number, b)), probable && legend());
}

const legend = () => h("span", { class: "legend", "aria-hidden": "true" }, "p ", [0, 1, 2, 3, 4, 5].map((n) =>
  h("span", { class: `p${n}` }, ["\u2265.9", "\u2265.6", "\u2265.3", "\u2265.1", "\u2265.02", "<.02"][n])));

function setLooks(box) {
  for (const [name, on] of Object.entries(looks)) box.classList.toggle(`with-${name}`, on);
}

/** The turn that piece `i` belongs to, and whether the piece is one of the template's marks around it. */
function turnAt(branch, i) {
  for (const turn of branch.turns) {
    const [, start, end] = turn;
    if (i === start - 1 || i === end) return { turn, mark: true };
    if (i >= start && (end === null || i < end)) return { turn, mark: false };
  }
  return { turn: null, mark: false };
}

function blockFor(place, turn) {
  if (!place.block || place.turn !== turn) {
    place.turn = turn;
    place.block = h("div", { class: "said", dir: "auto" });
    const role = turn ? turn[0] : "";
    place.box.append(h("div", { class: `turn role-${role || "none"}` }, role && h("div", { class: "role" }, role), place.block));
  }
  return place.block;
}

function divider(place, run, b) {
  const parent = run.branches[b].parent;
  const number = run.number;
  place.block = null;
  place.box.append(h("div", { class: "divider" }, "above: shared with ", branchButton(number, parent), ` \u00b7 from here on: branch ${run.branches[b].label}`));
}

function forkMarks(place, number, b, i) {
  const run = place.run;
  const own = i >= run.branches[b].start;
  const children = run.branches.map((branch, c) => ({ branch, c })).filter(({ branch }) => own && branch.parent === b && branch.start === i);
  if (!children.length) return;
  place.block = null;
  place.box.append(h("div", { class: "divider fork" }, "forked into ", children.map(({ c }) => branchButton(number, c))));
}

const branchButton = (number, b) => button(data.runs[number].branches[b].label, () => go(number, b, null), { class: "small" });

function pieceElements(node, mark) {
  const { piece } = node;
  if (isOp(piece)) return [opElement(node)];
  if (piece.media) return [mediaElement(piece.media)];
  return piece.text ? [literalElement(node, mark)] : [];
}

function literalElement(node, mark) {
  const { text } = node.piece;
  const made = h("span", { class: mark ? "literal mark" : "literal", "data-node": address(node), onclick: (event) => opensNode(event, node) });
  if (text.length <= FOLD) {
    made.textContent = seen(text);
    return made;
  }
  const rest = button(`\u2026 show all ${count(text.length)} characters`, () => (made.textContent = seen(text)), { class: "small" });
  made.append(seen(text.slice(0, FOLD / 2)), rest);
  return made;
}

function mediaElement(media) {
  const picture = media.url && h("img", { src: media.url, alt: `${media.kind}: ${media.source}` });
  return h("span", { class: "media" }, picture, h("span", { class: "muted" }, `${media.kind} \u00b7 ${media.source}`));
}

function opElement(node) {
  const { piece } = node;
  const sample = (piece.samples || [])[0];
  const label = [nameOf(piece), opHint(piece)].filter(Boolean).join(" ");
  const chip = button(label, () => go(node.run, node.branch, node.index), {
    class: `chip ${piece.kind} ${piece.state}`, "data-node": address(node), "aria-label": `${piece.kind} ${nameOf(piece)}: details`,
  });
  const body = sample && piece.state === "done" ? tokenText(sample) : piece.text ? [h("span", { class: "plain" }, seen(piece.text))] : [];
  const made = h("span", { class: `op ${piece.kind} ${piece.state}`, "data-node": address(node) }, chip, body, opTail(piece));
  made.addEventListener("click", (event) => opensNode(event, node));
  return made;
}

/** A click opens the node, unless it was on a button or ended a selection of text. */
const opensNode = (event, node) => event.target.closest("button") || getSelection().toString() || go(node.run, node.branch, node.index);

function opHint(piece) {
  const chosen = (piece.choices || []).find((choice) => choice.text === piece.text);
  if (chosen && chosen.prob !== undefined && piece.state === "done") return percent(chosen.prob);
  if (piece.samples && piece.samples.length > 1) return `1 of ${piece.samples.length}`;
  return "";
}

function opTail(piece) {
  if (piece.state === "running") return h("span", { class: "note running" }, piece.text ? " \u2026 still writing" : kindWord(piece));
  if (piece.state === "skipped") return h("span", { class: "note" }, "given up");
  if (isError(piece)) return h("span", { class: "note error" }, `${piece.error.message}`);
  return null;
}
