// One device: its state and the ledger's sentence, the memory chart, and the trials it runs now.
import { TableBehind, el, keyed, setAttribute, setText } from "./dom.js";
import { bytes, clock, duration, mib, percent, plural, share, trialColour } from "./format.js";
import { BusyStrip, MemoryChart, Rows, fields } from "./memory_chart.js";

const TONES = { ready: "", paused: "warn", draining: "warn", quarantined: "bad", blind: "bad", gone: "bad" };
const TABLE_ROWS = 24;
const { T, USED, DRIVER, OTHERS, BUSY, TRIALS, STUDY, NUMBER, LEASE, HELD, RESERVED, ALLOCATED, CAP } = fields;

export class DeviceCard {
  constructor(key, act) {
    this.key = key;
    this.act = act;
    this.rows = new Rows(300, 0.5);
    this.loaded = false;
    this.early = [];  // samples that came before the history did
    this.title = el("h3");
    this.sub = el("span", { class: "sub" });
    this.chip = el("span", { class: "chip" });
    this.acts = el("div", { class: "acts" });
    this.why = el("p", { class: "why" });
    this.notes = el("p", { class: "notes", hidden: true });
    this.chart = new MemoryChart("Memory over time", (index) => this.tell(index));
    this.strip = new BusyStrip("Use of the multiprocessors over time");
    this.at = el("span");
    this.sum = el("span");
    this.body = el("tbody");
    this.table = el("table", { class: "trials" }, el("caption", { class: "unseen" }, "Trials that run"), el("thead", {}, el("tr", {},
      el("th", { scope: "col" }, "Trial"), el("th", { scope: "col", class: "meter" }, el("span", { class: "unseen" }, "Share of its lease")),
      el("th", { scope: "col", class: "n" }, "Held"), el("th", { scope: "col", class: "n" }, "Lease"), el("th", { scope: "col", class: "n" }, "For"))), this.body);
    this.idle = el("p", { class: "idle" }, "No trial runs here.");
    this.behind = new TableBehind("Memory over time",
      [["Time"], ["In use", true], ["Other programs", true], ["Driver", true], ["SM", true], ["Trials (held of lease; torch reserved, allocated, cap)"]],
      () => this.tableRows());
    this.node = el("article", { class: "card fresh", "aria-label": key },
      el("header", {}, this.title, this.sub, this.chip, this.acts), this.why, this.notes, this.chart.node, this.strip.node,
      el("div", { class: "readout" }, this.at, this.sum), this.table, this.idle, this.behind.node);
    this.node.gone = () => { this.chart.end(); this.strip.end(); };
  }

  // Another window was chosen, or the page has just come (back): what was before is asked for.
  async load(windowS) {
    this.loaded = false;
    this.early = [];
    const wanted = this.wanted = Symbol(windowS);
    const answer = await fetch(`pool/history?device=${encodeURIComponent(this.key)}&window=${windowS}`);
    if (!answer.ok || this.wanted !== wanted) return;
    const history = await answer.json();
    if (this.wanted !== wanted) return;
    this.rows = new Rows(windowS, history.step);
    this.rows.add(history);
    for (const message of this.early) this.rows.add(message);
    this.loaded = true;
    this.draw();
  }

  add(message) {
    if (this.loaded) this.rows.add(message);
    else this.early.push(message);
  }

  show(device, now, mayAct) {
    this.device = device;
    this.now = now;
    setText(this.title, device.label);
    setText(this.sub, [device.name, device.host, device.mps].filter(Boolean).join(" · "));
    setAttribute(this.sub, "title", `worker ${device.worker}, device ${device.device}`);
    setText(this.chip, device.state);
    setAttribute(this.chip, "data-tone", TONES[device.state] ?? "warn");
    this.chip.hidden = device.state === "ready";
    setAttribute(this.node, "aria-label", `${device.label}, ${device.name}, ${device.state}`);
    setText(this.why, device.reason || `${bytes(device.free_bytes)} free of its ${bytes(device.budget_bytes)}`);
    setText(this.notes, device.notes.join("; "));
    this.notes.hidden = !device.notes.length;
    setAttribute(this.chart.node, "aria-label", this.label());
    this.showActs(mayAct);
    this.showTrials();
    this.draw();
  }

  label() {
    const d = this.device;
    const trials = d.trials.map((t) => `trial ${t.number} of ${t.study} holds ${bytes(t.measured_bytes)} of a lease of ${bytes(t.lease_bytes)}`);
    return `Memory of ${d.label} over time. Now: ${trials.join("; ") || "no trial runs"}. Budget ${bytes(d.budget_bytes)}. Left and right arrows read it.`;
  }

  draw() {
    if (!this.device) return;
    const { rows, windowS } = this.rows;
    this.chart.show(this.device, rows, windowS, this.now);
    this.strip.node.hidden = !this.chart.busy;
    if (this.chart.busy) this.strip.show(rows, windowS, this.now);
    this.tell(this.pointed ?? null);
    this.behind.update();
  }

  tell(index) {
    this.pointed = index;
    const row = index == null ? null : this.chart.drawn[index];
    const d = this.device;
    if (!d) return;
    if (!row) {
      const held = d.trials.reduce((sum, t) => sum + (t.measured_bytes ?? 0), 0);
      setText(this.at, [`${share(held, d.budget_bytes)} held`, d.utilisation != null ? `SM ${percent(d.utilisation)}` : ""].filter(Boolean).join(" · "));
      setText(this.sum, [d.others_bytes ? `others ${bytes(d.others_bytes)}` : "", d.driver_bytes ? `driver ${bytes(d.driver_bytes)}` : ""].filter(Boolean).join(" · "));
      return;
    }
    const u = this.chart.u;
    const part = u?.cursor.top >= 0 ? this.chart.trialAt(index, u.posToVal(u.cursor.top, "y")) : null;
    setText(this.at, part ? `${part.study} ${part.number}: ${mib(part.held)} of ${mib(part.lease)}`
      + (part.allocated != null ? `, allocated ${mib(part.allocated)}` : "") + (part.cap != null ? `, cap ${mib(part.cap)}` : "")
      : `${plural(row[TRIALS].length, "trial")} · others ${mib(row[OTHERS])}${row[BUSY] != null ? ` · SM ${percent(row[BUSY])}` : ""}`);
    setText(this.sum, clock(row[T]));
  }

  showTrials() {
    const { trials } = this.device;
    const nodes = keyed(this.body, trials.map((t) => `${t.number} ${t.study}`), () => this.makeRow());
    for (const trial of trials) nodes.get(`${trial.number} ${trial.study}`).show(trial, this.now);
    this.table.hidden = !trials.length;
    this.idle.hidden = Boolean(trials.length);
  }

  makeRow() {
    const swatch = el("i", { class: "swatch" });
    const [study, number] = [el("span"), el("span")];
    const fill = el("b");
    const [held, lease, since] = [0, 0, 0].map(() => el("td", { class: "n" }));
    const head = el("th", { scope: "row", class: "name" }, el("span", {}, swatch, study, number));
    const row = el("tr", {}, head, el("td", { class: "meter" }, el("i", {}, fill)), held, lease, since);
    row.show = (trial, now) => {
      const colour = trialColour(trial.study, trial.number);
      if (row.colour !== colour) swatch.style.background = fill.style.background = row.colour = colour;
      setText(study, trial.study);
      setText(number, `\u00a0${trial.number}`);
      setAttribute(head, "title", [`peak ${bytes(trial.peak_bytes)}`, `torch reserved ${bytes(trial.reserved_bytes)}`,
        `allocated ${bytes(trial.allocated_bytes)}`, `cap ${bytes(trial.cap_bytes)}`].join(", "));
      fill.style.width = `${Math.min(100, 100 * (trial.measured_bytes ?? 0) / Math.max(1, trial.lease_bytes)).toFixed(1)}%`;
      setText(held, bytes(trial.measured_bytes));
      setText(lease, bytes(trial.lease_bytes));
      setText(since, duration(now - trial.since));
    };
    return row;
  }

  showActs(mayAct) {
    const state = this.device.state;
    const wanted = !mayAct || state === "gone" ? [] : state === "ready" ? ["pause", "drain"] : state === "draining" ? [] : ["resume", "drain"];
    keyed(this.acts, wanted, (action) => el("button", { type: "button", class: "quiet small", onclick: () => this.act(action, this.device) },
      action[0].toUpperCase() + action.slice(1)));
  }

  tableRows() {
    const { rows } = this.rows;
    const step = Math.max(1, Math.ceil(rows.length / TABLE_ROWS));
    const chosen = rows.filter((_row, place) => (rows.length - 1 - place) % step === 0).reverse();
    return chosen.map((row) => [clock(row[T]), mib(row[USED]), mib(row[OTHERS]), mib(row[DRIVER]), percent(row[BUSY]),
      row[TRIALS].map((t) => `${t[STUDY]} ${t[NUMBER]}: ${mib(t[HELD])} of ${mib(t[LEASE])}`
        + (t[RESERVED] != null ? `; ${mib(t[RESERVED])}, ${mib(t[ALLOCATED])}, ${mib(t[CAP])}` : "")).join(" · ") || "none"]);
  }
}
