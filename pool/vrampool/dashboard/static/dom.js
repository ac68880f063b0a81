// Small helpers around the page's elements. Text is always set as text, never as markup.

export const $ = (id) => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value == null || value === false) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

// Changes only what differs: unchanged nodes keep focus and selection, and cost no layout.
export function setText(node, text) {
  text = String(text);
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (value == null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

// Brings the children of `parent` to the order of `keys`; `make(key)` builds those that are missing. Returns key -> node.
export function keyed(parent, keys, make) {
  const known = parent.keyedNodes ?? (parent.keyedNodes = new Map());
  const wanted = new Set(keys);
  for (const [key, node] of known) {
    if (!wanted.has(key)) { node.remove(); node.gone?.(); known.delete(key); }
  }
  let before = parent.firstChild;
  for (const key of keys) {
    let node = known.get(key);
    if (!node) { node = make(key); known.set(key, node); }
    if (node === before) before = before.nextSibling;
    else parent.insertBefore(node, before);
  }
  return known;
}

// The table behind a chart: filled when it is opened, and again while it stays open.
export class TableBehind {
  constructor(title, columns, rows) {
    this.rows = rows;
    this.body = el("tbody");
    const heads = columns.map(([name, numeric]) => el("th", { scope: "col", class: numeric ? "n" : null }, name));
    this.numeric = columns.map((column) => column[1]);
    this.table = el("table", {}, el("caption", { class: "unseen" }, title), el("thead", {}, el("tr", {}, ...heads)), this.body);
    const scroll = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, this.table);
    this.node = el("details", { ontoggle: () => this.update() }, el("summary", {}, "Table"), scroll);
    this.node.firstChild.append(el("span", { class: "unseen" }, `: ${title}`));
  }

  update() {
    if (!this.node.open) return;
    const rows = this.rows();
    this.body.replaceChildren(...rows.map((cells) => el("tr", {}, ...cells.map((cell, place) => (
      el(place ? "td" : "th", { class: this.numeric[place] ? "n" : null, scope: place ? null : "row" }, cell))))));
    if (!rows.length) this.body.append(el("tr", {}, el("td", { colspan: this.numeric.length }, "nothing yet")));
  }
}

export function speak(text) {
  setText($("spoken"), text);
}

// Work that may wait: a few milliseconds of it at a time, and one picture between two frames, for the browser has to paint
// that as well. A newer piece of the same name takes the place of the older one, so nothing piles up in a hidden page.
const AT_ONCE_MS = 5;
const pending = new Map();
let scheduled = false;

export function later(key, work) {
  pending.set(key, work);
  if (!scheduled) soon();
}

function soon() {
  scheduled = true;
  requestAnimationFrame(() => setTimeout(next));  // after the frame, not within it
}

function next() {
  const end = performance.now() + AT_ONCE_MS;
  try {
    for (const [key, work] of pending) {
      pending.delete(key);
      if (work() === "painted" || performance.now() > end) break;
    }
  } finally {
    scheduled = false;
    if (pending.size) soon();
  }
}
