// Charts of a study: values over time (or against each other), and what was asked for against what was taken.
import { speak } from "./dom.js";
import { clock, mib, number } from "./format.js";
import { Plot, axis, colour, timeAxis } from "./plots.js";

const dots = (name, size = 5) => ({
  stroke: () => colour(name), paths: () => null,
  points: { show: true, size, width: 0, fill: () => colour(name), stroke: () => colour(name) },
});
const quiet = { drag: { x: false, y: false }, points: { size: 7 }, y: false };
const compact = (value) => (value === 0 ? "0" : Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3 ? value.toExponential(0) : String(Number(value.toPrecision(4))));

function padded(low, high) {
  if (low == null || high == null) return [0, 1];
  const room = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
  return [low - room, high + room];
}

class PointsChart extends Plot {
  constructor(label, tell) {
    super(label, 150);
    this.tell = tell;
    this.points = [];
    this.spoken = (index) => speak(this.describe(index));
  }

  hooks(more = {}) {
    return { setCursor: [(u) => this.tell(u.cursor.left < 0 || u.cursor.idx == null ? "" : this.describe(u.cursor.idx))], ...more };
  }
}

// Each finished value as a dot, and the best so far as a line.
export class ValuesChart extends PointsChart {
  show(points, minimize) {
    this.points = points;
    this.minimize = minimize;
    this.refresh();
  }

  data() {
    let best = null;
    const bests = this.points.map(([, value]) => {
      if (best == null || (this.minimize ? value < best : value > best)) best = value;
      return best;
    });
    this.bests = bests;
    return [this.points.map((p) => p[0]), this.points.map((p) => p[1]), bests];
  }

  options() {
    return {
      padding: [6, 8, 0, 0], cursor: quiet, hooks: this.hooks(),
      scales: { x: { range: (_u, low, high) => (low === high ? [low - 30, high + 30] : [low, high]) }, y: { range: (_u, low, high) => padded(low, high) } },
      axes: [timeAxis(), axis({ values: (_u, ticks) => ticks.map(compact), space: 30 })],
      series: [{}, { ...dots("faint", 4) }, { stroke: () => colour("accent"), width: 2, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) }],
    };
  }

  describe(index) {
    const point = this.points[index];
    return point ? `${clock(point[0])} · trial ${point[2]}: ${number(point[1])} · best ${number(this.bests[index])}` : "";
  }
}

// Two objectives against each other; those that no other beats in both stand out.
export class FrontChart extends PointsChart {
  show(points) {
    this.points = [...points].sort((a, b) => a[0] - b[0]);
    this.refresh();
  }

  data() {
    return [this.points.map((p) => p[0]), this.points.map((p) => (p[3] ? null : p[1])), this.points.map((p) => (p[3] ? p[1] : null))];
  }

  options() {
    return {
      padding: [6, 8, 0, 0], cursor: quiet, hooks: this.hooks(),
      scales: { x: { time: false, range: (_u, low, high) => padded(low, high) }, y: { range: (_u, low, high) => padded(low, high) } },
      axes: [axis({ size: 22, space: 50, values: (_u, ticks) => ticks.map(compact) }), axis({ values: (_u, ticks) => ticks.map(compact), space: 30 })],
      series: [{}, dots("faint", 4), dots("accent", 6)],
    };
  }

  describe(index) {
    const point = this.points[index];
    return point ? `trial ${point[2]}: ${number(point[0])}, ${number(point[1])}${point[3] ? " · on the front" : ""}` : "";
  }
}

// On the line what was asked for was exactly right; below it memory lay idle, above it the trial ran out.
export class AskedChart extends PointsChart {
  show(points) {
    this.points = [...points].sort((a, b) => a[1] - b[1]);
    this.refresh();
  }

  data() {
    this.most = this.points.reduce((most, p) => Math.max(most, p[1], p[2]), 1) * 1.08;
    return [this.points.map((p) => p[1]), this.points.map((p) => (p[3] ? null : p[2])), this.points.map((p) => (p[3] ? p[2] : null))];
  }

  options() {
    const values = (_u, ticks) => ticks.map((tick) => (tick === 0 ? "0" : mib(tick).replace(".0", "")));
    const incrs = [16, 32, 64, 128, 256, 512, ...[1, 2, 4, 5, 8, 10, 16, 20, 32, 40, 64].map((n) => n * 1024)];
    return {
      padding: [6, 8, 0, 0], cursor: quiet,
      hooks: this.hooks({ drawAxes: [(u) => this.diagonal(u)] }),
      scales: { x: { time: false, range: () => [0, this.most] }, y: { range: () => [0, this.most] } },
      axes: [axis({ size: 22, space: 70, values, incrs }), axis({ values, incrs, size: 54, space: 30 })],
      series: [{}, dots("running", 5), dots("fail", 6)],
    };
  }

  diagonal(u) {
    const c = u.ctx;
    c.save();
    c.strokeStyle = colour("line-strong");
    c.lineWidth = devicePixelRatio;
    c.beginPath();
    c.moveTo(u.valToPos(0, "x", true), u.valToPos(0, "y", true));
    c.lineTo(u.valToPos(this.most, "x", true), u.valToPos(this.most, "y", true));
    c.stroke();
    c.restore();
  }

  describe(index) {
    const point = this.points[index];
    return point ? `trial ${point[0]}: asked ${mib(point[1])}, took ${mib(point[2])}${point[3] ? " · out of memory" : ""}` : "";
  }
}
