// Making elements. Text only ever becomes text nodes: nothing of a run is parsed as HTML.

const $ = (id) => document.getElementById(id);

/** An element. `about`: class, on* listeners, `style` as an object, anything else an attribute. */
function h(tag, about = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(about)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function svg(tag, about, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(about)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Control characters as their pictures, and those that turn the direction of writing by their numbers. */
const seen = (text) =>
  text.replace(/[\u0000-\u0008\u000b-\u001f\u007f\u202a-\u202e]/g, (c) => {
    const code = c.charCodeAt(0);
    return code > 0x2000 ? `[U+${code.toString(16).toUpperCase()}]` : code === 0x7f ? "\u2421" : String.fromCharCode(0x2400 + code);
  });

const button = (label, click, about = {}) => h("button", { type: "button", onclick: click, ...about }, label);

function toggle(label, title, pressed, change) {
  const made = button(label, () => {
    const now = made.getAttribute("aria-pressed") !== "true";
    made.setAttribute("aria-pressed", now);
    change(now);
  }, { class: "toggle", "aria-pressed": String(pressed), title });
  return made;
}

async function copy(text, from) {
  const done = await copied(text);
  say(done ? "copied" : "the browser does not allow copying");
  const label = from.textContent;
  from.textContent = done ? "copied" : "not allowed";
  setTimeout(() => (from.textContent = label), 1200);
}

/** The old way first: the new one asks for leave, and is shut in the frames of notebooks. */
async function copied(text) {
  const area = h("textarea", { class: "offscreen", readonly: true });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done || navigator.clipboard.writeText(text).then(() => true, () => false);
}

const copyButton = (text, label = "copy text") => button(label, (event) => copy(text(), event.currentTarget), { class: "small" });

const say = (text) => ($("said").textContent = text);

// --- the one tooltip

function showTip(target, content) {
  const tip = $("tip");
  tip.replaceChildren(...content);
  tip.hidden = false;
  tip.target = target;
  placeTip();
}

/** Next to its subject, which may have been scrolled. */
function placeTip() {
  const tip = $("tip");
  if (tip.hidden) return;
  const { target } = tip;
  const box = target.getClientRects()[0] || target.getBoundingClientRect();
  const left = Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8));
  const below = box.bottom + 8 + tip.offsetHeight < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${Math.max(8, below ? box.bottom + 8 : box.top - tip.offsetHeight - 8)}px`;
}

const hideTip = () => ($("tip").hidden = true);

// --- figures

const count = (number) => (number === undefined || number === null ? "unknown" : number.toLocaleString("en"));

function seconds(value) {
  if (value === null || value === undefined) return "-";
  if (value < 0.0995) return `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  if (value < 120) return `${value.toFixed(value < 9.95 ? 2 : 1)} s`;
  return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

const percent = (p) => (p >= 0.9995 ? "100 %" : p >= 0.1 ? `${(p * 100).toFixed(1)} %` : p >= 0.0001 ? `${(p * 100).toPrecision(2)} %` : "< 0.01 %");

const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

const firstLine = (text, most = 120) => {
  const line = (text || "").trim().split("\n", 1)[0];
  return line.length > most ? `${line.slice(0, most - 1)}\u2026` : line;
};
