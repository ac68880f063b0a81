// Charts of a study: values over time (or against each other), and what was asked for against what was taken.
import { speak } from "./dom.js";
import { clock, mib, number, roundSize } from "./format.js";
import { Plot, axis, colour, timeAxis } from "./plots.js";

const dots = (name, size = 5) => ({
  stroke: () => colour(name), paths: () => null,
  points: { show: true, size, width: 0, fill: () => colour(name), stroke: () => colour(name) },
});
const quiet = { drag: { x: false, y: false }, points: { size: 7 }, y: false };
const compact = (value) => (value === 0 ? "0" : Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3 ? value.toExponential(0) : String(Number(value.toPrecision(4))));

// A study may have run for seconds only.
const SHORT_TIMES = {
  incrs: [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400],
  values: (_u, ticks) => ticks.map((at) => clock(at, ticks.length > 1 && ticks[1] - ticks[0] < 60)),
};

function padded(low, high) {
  if (low == null || high == null) return [0, 1];
  const room = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
  return [low - room, high + room];
}

// Round sizes in MiB for a logarithmic axis: powers of two, and some between them where there are few.
function roundSizes(low, high, most) {
  let found = [];
  for (const parts of [[1], [1, 1.5], [1, 1.25, 1.5, 1.75]]) {
    found = [];
    for (let power = 2 ** Math.floor(Math.log2(low)); power <= high; power *= 2)
      found.push(...parts.map((part) => part * power).filter((size) => size >= low && size <= high));
    if (found.length > 2) break;
  }
  const step = Math.ceil(found.length / most);
  return found.filter((_size, place) => place % step === 0);
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

// Values much worse than most others would press all that is of interest into a line: they are drawn at the edge.
function limitOf(values, minimize) {
  const sorted = values.toSorted((a, b) => (minimize ? a - b : b - a));
  const [best, most] = [sorted[0], sorted[Math.floor(0.85 * (sorted.length - 1))]];
  return most + 1.5 * (most - best);
}

// Each finished value as a dot, and the best so far as a line.
export class ValuesChart extends PointsChart {
  show(points, minimize) {
    this.points = points;
    this.minimize = minimize;
    this.limit = limitOf(points.map((p) => p[1]), minimize);
    const beyond = points.filter((p) => (minimize ? p[1] > this.limit : p[1] < this.limit)).length;
    this.legend = `line: best so far${beyond ? `; ${beyond} far worse at the edge` : "; dots: trials"}`;
    this.refresh();
  }

  data() {
    let best = null;
    const bests = this.points.map(([, value]) => {
      if (best == null || (this.minimize ? value < best : value > best)) best = value;
      return best;
    });
    this.bests = bests;
    const inside = (value) => (this.minimize ? Math.min(value, this.limit) : Math.max(value, this.limit));
    return [this.points.map((p) => p[0]), this.points.map((p) => inside(p[1])), bests.map(inside)];
  }

  options() {
    return {
      padding: [6, 8, 0, 0], cursor: quiet, hooks: this.hooks(),
      scales: { x: { range: (_u, low, high) => (low === high ? [low - 30, high + 30] : [low, high]) }, y: { range: (_u, low, high) => padded(low, high) } },
      axes: [timeAxis(SHORT_TIMES), axis({ values: (_u, ticks) => ticks.map(compact), space: 30 })],
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
  legend = "blue: no other is better in both";

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

// A dot for what was asked for; left of it, as a line, the margin down to what was predicted. On the diagonal a trial
// held exactly that; below it memory lay idle, above it the trial needed more.
export class AskedChart extends PointsChart {
  legend = "dot: asked for; line: from the prediction";

  show(points) {
    this.points = points.map(([trial, predicted, asked, peak, oom, atLeast]) => ({ trial, predicted, asked, peak, oom, atLeast }))
      .sort((a, b) => a.asked - b.asked);
    this.refresh();
  }

  data() {
    const sizes = this.points.flatMap((p) => [p.asked, p.predicted, p.peak]).filter((size) => size > 0);
    [this.low, this.high] = [Math.min(...sizes) / 1.2, Math.max(...sizes) * 1.2];
    return [this.points.map((p) => p.asked), this.points.map((p) => (p.oom ? null : p.peak)), this.points.map((p) => (p.oom ? p.peak : null))];
  }

  options() {
    const sizes = (most) => ({
      splits: (_u, _axis, low, high) => roundSizes(low, high, most), filter: (_u, ticks) => ticks,
      values: (_u, ticks) => ticks.map(roundSize),
    });
    const scale = { distr: 3, log: 2, range: () => [this.low, this.high] };
    return {
      padding: [6, 8, 0, 0], cursor: quiet,
      hooks: this.hooks({ drawAxes: [(u) => this.lines(u)] }),
      scales: { x: { time: false, ...scale }, y: scale },
      axes: [axis({ size: 22, ...sizes(6) }), axis({ size: 54, ...sizes(5) })],
      series: [{}, dots("running", 5), dots("fail", 6)],
    };
  }

  lines(u) {
    const c = u.ctx;
    c.save();
    c.strokeStyle = colour("running");
    c.globalAlpha = 0.4;
    c.lineWidth = 1.5 * devicePixelRatio;
    c.beginPath();
    for (const { predicted, asked, peak } of this.points) {
      if (predicted == null) continue;
      const y = u.valToPos(peak, "y", true);
      c.moveTo(u.valToPos(predicted, "x", true), y);
      c.lineTo(u.valToPos(asked, "x", true), y);
    }
    c.stroke();
    c.globalAlpha = 1;
    c.strokeStyle = colour("line-strong");
    c.lineWidth = devicePixelRatio;
    c.beginPath();
    c.moveTo(u.valToPos(this.low, "x", true), u.valToPos(this.low, "y", true));
    c.lineTo(u.valToPos(this.high, "x", true), u.valToPos(this.high, "y", true));
    c.stroke();
    c.restore();
  }

  describe(index) {
    const point = this.points[index];
    if (!point) return "";
    const predicted = point.predicted == null ? "" : `predicted ${mib(point.predicted)}, `;
    return `trial ${point.trial}: ${predicted}asked ${mib(point.asked)}, ${point.oom ? "ran out of memory at" : "peak"} ${point.atLeast && !point.oom ? "at least " : ""}${mib(point.peak)}`;
  }
}
