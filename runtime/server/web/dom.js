// Making elements. Text only ever becomes text nodes: nothing that a model writes is parsed as HTML.

export const $ = (id) => document.getElementById(id);

/** An element. `about`: on* listeners, anything else an attribute; null and false are left out. */
export function h(tag, about = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(about)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function svg(tag, about, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(about)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const button = (label, click, about = {}) => h("button", { type: "button", onclick: click, ...about }, label);

/** A labelled field; `input` is what holds its value. */
export const labelled = (text, input) => h("label", {}, h("span", {}, text), input);

export const say = (text) => ($("said").textContent = text);

export const count = (number) => number.toLocaleString("en", { maximumFractionDigits: number < 10 ? 1 : 0 });

export function seconds(value) {
  if (value < 0.0995) return `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  return `${value.toFixed(value < 9.95 ? 2 : 1)} s`;
}

/** Keeps a box that grows at its end, unless its reader has scrolled up. */
export function following(box, grow) {
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  grow();
  if (atEnd) box.scrollTop = box.scrollHeight;
}
