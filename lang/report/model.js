// What the data says. A node is {run, branch, index, piece}: piece number `index` of those that the branch added.

const data = JSON.parse($("data").textContent);
data.runs.forEach((run, number) => (run.number = number));

const isOp = (piece) => piece.kind !== undefined;
const many = () => data.runs.length > 1;
const nodeAt = (run, branch, index) => ({ run, branch, index, piece: data.runs[run].branches[branch].pieces[index] });
const address = (node) => `#${node.run}/${node.branch}/${node.index}`;
const errorsOf = (run) => Math.max(opsOf(run).filter(({ piece }) => isError(piece)).length, run.error ? 1 : 0);
const isError = (piece) => piece.state === "failed" || piece.state === "stopped";

/** The operations of a run, branch by branch. */
function opsOf(run) {
  const number = run.number;
  return run.branches.flatMap((branch, b) => branch.pieces.map((_, i) => nodeAt(number, b, i)).filter((node) => isOp(node.piece)));
}

/** All nodes of a branch's text, those it shares with its parent first. */
function textNodes(number, b) {
  const branch = data.runs[number].branches[b];
  const shared = branch.parent < 0 ? [] : textNodes(number, branch.parent).slice(0, branch.start);
  return [...shared, ...branch.pieces.map((_, i) => nodeAt(number, b, i))];
}

const plainText = (number, b) => textNodes(number, b).map(({ piece }) => (isError(piece) ? "" : piece.text)).join("");

/** When a run ended, or how far it is. */
const endOf = (run) => run.end ?? run.now ?? 0;

/** When an operation was at work: [from, to]; null if the text before it is not there. */
function workOf(piece, run) {
  if (piece.ready === null) return null;
  const to = piece.finished ?? run.now;
  return [Math.min(piece.began ?? piece.ready, to), to];
}

function kindWord(piece) {
  const words = { running: piece.ready === null ? "waiting" : "running", failed: "failed", stopped: "stopped", skipped: "given up" };
  return words[piece.state] || piece.kind;
}

const nameOf = (piece) => piece.name || (piece.kind === "select" ? "select" : "gen");

/** What each branch of a run has written: {branch, pieces}, without the branches that wrote nothing. */
const outputsOf = (run) =>
  run.branches.map((branch) => ({ branch, pieces: branch.pieces.filter((piece) => isOp(piece) && piece.text) })).filter(({ pieces }) => pieces.length);

/** The literal text that a branch added, without the template's marks. */
const ownWords = (branch) => branch.pieces.filter((piece, i) => !isOp(piece) && !turnAt(branch, branch.start + i).mark).map((piece) => piece.text).join(" ");

/** What a reader knows a branch by: the program's name for the first, the words that a fork begins with. */
const adapterOf = (branch) => (branch.adapter ? `adapter ${branch.adapter}: ` : "");
const hintOf = (run, branch) => adapterOf(branch) + (branch.parent < 0 ? run.program : firstLine(ownWords(branch).replace(/\s+/g, " "), 60));

/** The operation that a branch is opened with: what went wrong in it, else its last one; null if it has none. */
function tellingOp(branch) {
  const wrong = branch.pieces.findIndex((piece) => isOp(piece) && isError(piece));
  const ops = branch.pieces.map((piece, i) => (isOp(piece) ? i : -1)).filter((i) => i >= 0);
  return wrong >= 0 ? wrong : ops.length ? ops[ops.length - 1] : null;
}

/** The branch that a run is opened with: where something went wrong, else that of the state, else one with an operation. */
function tellingBranch(run) {
  if (!run.branches.length) return 0;
  const wrong = run.branches.findIndex((branch) => branch.pieces.some((piece) => isOp(piece) && isError(piece)));
  if (wrong >= 0) return wrong;
  const own = run.branch || 0;
  return tellingOp(run.branches[own]) === null ? Math.max(own, run.branches.findIndex((branch) => tellingOp(branch) !== null)) : own;
}

const shortPath = (path) => path.replace(/\\/g, "/").split("/").filter(Boolean).slice(-2).join("/");
const fileName = (path) => path.replace(/\\/g, "/").split("/").pop();
const placeText = (at) => `${fileName(data.files[at[0]].path)}:${at[1]}`;

function addUsage(total, usage) {
  for (const [name, value] of Object.entries(usage)) total[name] = (total[name] || 0) + value;
  return total;
}
