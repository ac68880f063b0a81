// Memory of a device over time: one band for each trial, pale for its lease, full for what it holds, dark for what its
// objective has allocated of that. uPlot draws axes and cursor; the bands are drawn here, from the rows as they are:
// the work depends on what is seen, not on how many trials there have been.
import { speak } from "./dom.js";
import { clock, mib, roundSize, trialColour } from "./format.js";
import { Plot, axis, colour, timeAxis } from "./plots.js";

// Rows further apart leave a hole: what the device held then is not known. An idle device is sampled every 5 s.
const GAP_S = 13;
const GIB = 1024;
const SIDE = 54;  // room for "512 MiB"; the strip below has the same, so that times stand above each other
const STEPS = [16, 32, 64, 128, 256, 512, ...[1, 2, 4, 5, 8, 10, 16, 20, 32, 40, 64, 100, 128, 200].map((n) => n * GIB)];
const [T, USED, DRIVER, OTHERS, BUSY, TRIALS] = [0, 1, 2, 3, 4, 5];
const [STUDY, NUMBER, LEASE, HELD, RESERVED, ALLOCATED, CAP] = [0, 1, 2, 3, 4, 5, 6];

// The rows of one window; a newer row within the same step is merged into the last one.
export class Rows {
  constructor(windowS, stepS) {
    this.windowS = windowS;
    this.stepS = stepS;
    this.rows = [];
  }

  add({ studies, rows }) {
    for (const packed of rows) {
      const row = packed.slice();
      row[T] = Math.floor(row[T] / this.stepS) * this.stepS;
      row[TRIALS] = row[TRIALS].map((trial) => [studies[trial[STUDY]], ...trial.slice(1)]);
      const last = this.rows[this.rows.length - 1];
      if (last && row[T] < last[T]) continue;
      if (last && row[T] === last[T]) this.rows[this.rows.length - 1] = merged(last, row);
      else this.rows.push(row);
    }
    const oldest = (this.rows.at(-1)?.[T] ?? 0) - this.windowS - this.stepS;
    let drop = 0;
    while (drop < this.rows.length && this.rows[drop][T] < oldest) drop++;
    if (drop) this.rows.splice(0, drop);
  }
}

const most = (a, b) => (a == null ? b : b == null ? a : Math.max(a, b));

function merged(before, row) {
  const found = [row[T], ...[1, 2, 3, 4].map((place) => most(before[place], row[place]))];
  found.push(row[TRIALS].map((trial) => {
    const old = before[TRIALS].find((other) => other[NUMBER] === trial[NUMBER] && other[STUDY] === trial[STUDY]);
    return old ? [trial[STUDY], trial[NUMBER], ...[2, 3, 4, 5, 6].map((place) => most(old[place], trial[place]))] : trial;
  }));
  return found;
}

export class MemoryChart extends Plot {
  constructor(label, onPoint) {
    super(label, 176);
    this.onPoint = onPoint;
    this.spoken = (index) => speak(this.describe(index));
    this.rows = [];
    this.drawn = [];
    this.now = 0;
    this.windowS = 300;
    this.device = null;
  }

  show(device, rows, windowS, now) {
    this.device = device;
    this.rows = rows;
    this.windowS = windowS;
    this.now = now;
    this.refresh();
  }

  get busy() {
    return this.device?.utilisation != null || this.rows.some((row) => row[BUSY] != null);
  }

  data() {
    this.drawn = this.rows.slice();  // new rows may come before uPlot paints again by itself, after a change of size
    this.stacks = this.drawn.map((row) => stack(row));
    return [this.drawn.map((row) => row[T]), this.stacks.map((one) => one.top)];
  }

  options() {
    return {
      padding: [6, 2, 0, 0],
      cursor: { sync: { key: "devices", setSeries: false }, drag: { x: false, y: false }, points: { show: false }, y: false },
      scales: { x: { range: () => [this.now - this.windowS, this.now] }, y: { range: () => [0, this.height_mib()] } },
      axes: [timeAxis(), axis({
        incrs: STEPS, space: 30, size: SIDE,
        values: (_u, ticks) => ticks.map(roundSize),
      })],
      series: [{}, { stroke: "transparent", points: { show: false }, paths: () => null }],
      hooks: { drawAxes: [(u) => this.paint(u)], setCursor: [(u) => this.onPoint(u.cursor.left < 0 ? null : u.cursor.idx)] },
    };
  }

  // Up to the device's end where the budget is near it, else to where something is to be seen.
  height_mib() {
    const budget = this.device.budget_bytes / 2 ** 20;
    const total = this.device.total_bytes / 2 ** 20;
    const tops = this.stacks.reduce((highest, one) => Math.max(highest, one.top), 0);
    return Math.max(total <= budget * 1.35 ? total : budget * 1.1, tops * 1.04);
  }

  describe(index) {
    const row = this.drawn[index];
    if (!row) return "";
    const parts = row[TRIALS].map((t) => `${t[STUDY]} ${t[NUMBER]} holds ${mib(t[HELD])} of ${mib(t[LEASE])}`);
    return `${clock(row[T])}: ${parts.join(", ") || "no trial"}; other programs ${mib(row[OTHERS])}`;
  }

  trialAt(index, valueMib) {
    const parts = this.stacks?.[index]?.parts ?? [];
    return parts.find((part) => valueMib >= part.bottom && valueMib < part.top) ?? null;
  }

  paint(u) {
    const c = u.ctx;
    const ratio = devicePixelRatio;
    const { left, top, width, height } = u.bbox;
    const { min: x0, max: x1 } = u.scales.x;
    const y1 = u.scales.y.max;
    const X = (at) => left + (at - x0) / (x1 - x0) * width;
    const Y = (value) => top + height - value / y1 * height;
    c.save();
    c.beginPath();
    c.rect(left, top, width, height);
    c.clip();
    for (const span of spans(this.drawn, this.now)) this.paintSpan(c, span, X, Y, ratio);
    const budget = this.device.budget_bytes / 2 ** 20;
    c.strokeStyle = colour("budget");
    c.lineWidth = 1.25 * ratio;
    c.setLineDash([5 * ratio, 4 * ratio]);
    c.beginPath();
    c.moveTo(left, Y(budget));
    c.lineTo(left + width, Y(budget));
    c.stroke();
    c.restore();
  }

  paintSpan(c, { first, last, end }, X, Y, ratio) {
    const at = (i) => (i > last ? end : this.drawn[i][T]);
    const ground = (value, name) => {
      c.fillStyle = colour(name);
      c.beginPath();
      c.moveTo(X(at(first)), Y(0));
      for (let i = first; i <= last; i++) c.lineTo(X(at(i)), Y(value(this.stacks[i])));
      c.lineTo(X(end), Y(value(this.stacks[last])));
      c.lineTo(X(end), Y(0));
      c.fill();
    };
    ground((one) => one.others, "others");
    ground((one) => one.driver, "driver");
    for (const run of runs(this.stacks, first, last)) {
      const last_ = run.first + run.parts.length - 1;
      const stop = last_ === last ? end : at(last_ + 1);
      const band = (low, high, fill) => {
        c.fillStyle = fill;
        c.beginPath();
        for (let i = 0; i < run.parts.length; i++) c.lineTo(X(at(run.first + i)), Y(high(run.parts[i])));
        c.lineTo(X(stop), Y(high(run.parts.at(-1))));
        c.lineTo(X(stop), Y(low(run.parts.at(-1))));
        for (let i = run.parts.length - 1; i >= 0; i--) c.lineTo(X(at(run.first + i)), Y(low(run.parts[i])));
        c.closePath();
        c.fill();
      };
      const line = (height, style, dash) => {
        c.strokeStyle = style;
        c.lineWidth = ratio;
        c.setLineDash(dash);
        c.beginPath();
        for (let i = 0; i < run.parts.length; i++) c.lineTo(X(at(run.first + i)), Y(height(run.parts[i])));
        c.lineTo(X(stop), Y(height(run.parts.at(-1))));
        c.stroke();
        c.setLineDash([]);
      };
      const [study, number] = run.trial;
      const full = (alpha, darker) => trialColour(study, number, alpha, darker);
      band((p) => p.bottom, (p) => p.top, full(0.22, 0));
      band((p) => p.bottom, (p) => p.bottom + p.held, full(0.6, 0));
      if (run.parts.some((p) => p.allocated != null)) band((p) => p.bottom, (p) => p.bottom + (p.allocated ?? 0), full(0.8, 0.07));
      if (run.parts.every((p) => p.cap != null && p.cap < p.top - p.bottom)) line((p) => p.bottom + p.cap, full(0.8, 0.1), [ratio, 3 * ratio]);
      line((p) => p.top, full(0.65, 0.02), []);
    }
  }
}

// Where each part of a row lies: driver and other programs at the ground, then the trials in the order they came.
function stack(row) {
  const driver = row[DRIVER] ?? 0;
  const others = driver + (row[OTHERS] ?? 0);
  let bottom = others;
  const parts = row[TRIALS].map((trial) => {
    const held = trial[HELD] ?? 0;
    const part = {
      study: trial[STUDY], number: trial[NUMBER], bottom, top: bottom + Math.max(trial[LEASE] ?? 0, held), held,
      lease: trial[LEASE], reserved: trial[RESERVED], allocated: trial[ALLOCATED], cap: trial[CAP],
    };
    bottom = part.top;
    return part;
  });
  return { driver, others, parts, top: bottom };
}

// Stretches of rows without a hole; `end` is how far the last row of each holds.
function* spans(rows, now) {
  let first = 0;
  for (let i = 0; i < rows.length; i++) {
    const next = rows[i + 1]?.[T] ?? now;
    const hole = next - rows[i][T] > GAP_S;
    if (hole || i === rows.length - 1) {
      yield { first, last: i, end: hole ? rows[i][T] : next };
      first = i + 1;
    }
  }
}

// Each trial's stretch of rows within a span.
function runs(stacks, first, last) {
  const open = new Map();
  const found = [];
  for (let i = first; i <= last; i++) {
    for (const part of stacks[i].parts) {
      const key = `${part.number} ${part.study}`;
      let run = open.get(key);
      if (!run || run.first + run.parts.length !== i) {
        run = { trial: [part.study, part.number], first: i, parts: [] };
        open.set(key, run);
        found.push(run);
      }
      run.parts.push(part);
    }
  }
  return found;
}

// How busy the multiprocessors are: a strip under the memory, on the same time.
export class BusyStrip extends Plot {
  constructor(label) {
    super(label, 34);
    this.rows = [];
    this.node.tabIndex = -1;  // its figures are in the table and the readout of the chart above
  }

  show(rows, windowS, now) {
    Object.assign(this, { rows, windowS, now });
    this.refresh();
  }

  data() {
    const known = this.rows.filter((row) => row[BUSY] != null);
    return [known.map((row) => row[T]), known.map((row) => row[BUSY] * 100)];
  }

  options() {
    return {
      padding: [3, 2, 0, 0],
      cursor: { sync: { key: "devices", setSeries: false }, drag: { x: false, y: false }, points: { show: false }, y: false },
      scales: { x: { range: () => [this.now - this.windowS, this.now] }, y: { range: [0, 100] } },
      axes: [{ show: false }, axis({ size: SIDE, splits: [50], grid: { show: false }, values: () => ["SM"] })],
      series: [{}, { stroke: () => colour("accent"), fill: () => `${colour("accent")}33`, width: 1, points: { show: false } }],
    };
  }
}

export const fields = { T, USED, DRIVER, OTHERS, BUSY, TRIALS, STUDY, NUMBER, LEASE, HELD, RESERVED, ALLOCATED, CAP };
