// What all charts share: their look, the keys that move their cursor, and drawing only what is seen.
import { later } from "./dom.js";
import { clock } from "./format.js";

let colours = null;

export function colour(name) {
  colours ??= getComputedStyle(document.documentElement);
  return colours.getPropertyValue(`--${name}`).trim();
}

export const font = () => `11px ${getComputedStyle(document.body).fontFamily}`;

export function axis(changes = {}) {
  return {
    stroke: () => colour("faint"), font: font(), gap: 4, size: 44,
    grid: { stroke: () => colour("grid"), width: 1 }, ticks: { show: false }, ...changes,
  };
}

// A label so near the edge would be cut off.
function cut(plot, at) {
  const { min, max } = plot.scales.x;
  const room = 16 / plot.width * (max - min);
  return at > max - room;
}

export const timeAxis = (changes = {}) => axis({
  size: 22, space: 70, values: (plot, ticks) => ticks.map((at) => (cut(plot, at) ? "" : clock(at, false))),
  incrs: [60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400], ...changes,
});

const all = new Set();
const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const plot = target.plot;
    if (plot) { plot.visible = isIntersecting; if (isIntersecting) plot.refresh(); }
  }
}, { rootMargin: "200px" });
const sized = new ResizeObserver((entries) => {
  for (const { target } of entries) target.plot?.fit();
});

// Dark or light was chosen: the same pictures in other colours.
export function repaint() {
  colours = null;
  for (const plot of all) plot.refresh();
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
document.addEventListener("visibilitychange", () => { if (!document.hidden) for (const plot of all) plot.refresh(); });

let keys = 0;

// A chart of uPlot in its frame. Subclasses say `options()`, `data()`, and what `readout(index)` tells of a point.
export class Plot {
  constructor(label, height) {
    this.height = height;
    this.key = `plot ${keys++}`;
    this.visible = false;
    this.u = null;
    this.node = document.createElement("div");
    this.node.className = "plot";
    this.node.tabIndex = 0;
    this.node.setAttribute("role", "img");
    this.node.setAttribute("aria-label", label);
    this.node.style.height = `${height}px`;
    this.node.plot = this;
    this.node.addEventListener("keydown", (event) => this.onKey(event));
    this.node.addEventListener("blur", () => this.point(null));
    seen.observe(this.node);
    sized.observe(this.node);
    all.add(this);
  }

  end() {
    seen.unobserve(this.node);
    sized.unobserve(this.node);
    all.delete(this);
    this.u?.destroy();
    this.u = null;
  }

  refresh() {
    if (this.visible && !document.hidden) later(this.key, () => { this.draw(); return "painted"; });
  }

  fit() {
    const width = this.node.clientWidth;
    if (this.u && width && width !== this.u.width) later(`${this.key} size`, () => { this.u?.setSize({ width, height: this.height }); return "painted"; });
  }

  draw() {
    const width = this.node.clientWidth;
    if (!width) return;
    const data = this.data();
    if (!this.u) this.u = new uPlot({ width, height: this.height, legend: { show: false }, ...this.options() }, data, this.node);
    else this.u.setData(data);
  }

  // Left and right walk over the points, Home and End go to the ends, Escape leaves.
  onKey(event) {
    const length = this.u?.data[0].length ?? 0;
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -length, End: length };
    if (event.key === "Escape") this.point(null);
    else if (event.key in steps && length) {
      const now = this.pointed ?? (steps[event.key] < 0 ? length : -1);
      this.point(Math.min(length - 1, Math.max(0, now + steps[event.key])));
      event.preventDefault();
    }
  }

  point(index) {
    this.pointed = index;
    if (!this.u) return;
    if (index == null) this.u.setCursor({ left: -10, top: -10 });
    else {
      const x = this.u.valToPos(this.u.data[0][index], "x");
      const value = this.u.data.slice(1).map((column) => column[index]).find((found) => found != null);
      this.u.setCursor({ left: x, top: value == null ? 0 : this.u.valToPos(value, "y") });
      this.spoken?.(index);
    }
  }
}
