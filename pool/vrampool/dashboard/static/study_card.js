// One study: how far it is, what came out, what its trials took, and what went wrong.
import { TableBehind, el, keyed, setAttribute, setText } from "./dom.js";
import { bytes, clock, duration, mib, number, percent, plural } from "./format.js";
import { AskedChart, FrontChart, ValuesChart } from "./study_charts.js";

const TONES = { open: "accent", done: "good", failed: "bad", failing: "bad" };
const WORDS = { open: "running", done: "done" };
const PARTS = [["COMPLETE", "complete"], ["PRUNED", "pruned"], ["FAIL", "failed"]];
const ROWS = 100;

export class StudyCard {
  constructor(name, act) {
    this.act = act;
    this.title = el("h3", {}, name);
    this.sub = el("span", { class: "sub" });
    this.chip = el("span", { class: "chip" });
    this.acts = el("div", { class: "acts" });
    this.reason = el("p", { class: "why", hidden: true });
    this.bar = el("div", { class: "progress", role: "progressbar", "aria-label": `Progress of ${name}`, "aria-valuemin": "0" });
    this.counts = el("p", { class: "counts" });
    this.facts = el("dl", { class: "facts" });
    this.charts = el("div", { class: "charts" });
    this.failures = el("ul", { class: "failures", "aria-label": "What failed" });
    this.node = el("article", { class: "card fresh", "aria-label": `Study ${name}` },
      el("header", {}, this.title, this.sub, this.chip, this.acts), this.reason, this.bar, this.counts, this.facts, this.charts, this.failures);
    this.node.gone = () => { this.values?.end(); this.asked?.end(); };
  }

  show(study, mayAct) {
    const first = !this.study;
    this.study = study;
    setText(this.sub, [study.objective, study.directions.join(", ")].join(" · "));
    setText(this.chip, WORDS[study.state] ?? study.state);
    setAttribute(this.chip, "data-tone", TONES[study.state] ?? "warn");
    setText(this.reason, study.reason);
    this.reason.hidden = !study.reason;
    if (first) this.makeCharts();
    this.showActs(mayAct);
    this.showProgress();
    this.showFacts();
    this.showCharts();
    const nodes = keyed(this.failures, study.failures.map(([line]) => line), (line) => el("li", {}, el("b"), ` ${line}`));
    for (const [line, count] of study.failures) setText(nodes.get(line).firstChild, `${count} failed:`);
  }

  showActs(mayAct) {
    const wanted = !mayAct || !this.study.live ? [] : this.study.state === "open" ? ["stop", "cancel"] : this.study.state === "cancelling" ? [] : ["cancel"];
    keyed(this.acts, wanted, (action) => el("button", { type: "button", class: "quiet small", onclick: () => this.act(action, this.study) },
      action === "stop" ? "Stop" : "Cancel"));
  }

  showProgress() {
    const s = this.study;
    const whole = Math.max(1, s.wanted ?? s.finished + s.running + s.waiting);
    const parts = [...PARTS.map(([state]) => [state, s.counts[state] ?? 0]), ["running", s.running]].filter(([, count]) => count);
    const nodes = keyed(this.bar, parts.map(([state]) => state), (state) => el("i", { "data-part": state }));
    for (const [state, count] of parts) nodes.get(state).style.width = `${(100 * count / whole).toFixed(2)}%`;
    setAttribute(this.bar, "aria-valuemax", s.wanted ?? whole);
    setAttribute(this.bar, "aria-valuenow", s.finished);
    const told = [[null, `${s.finished}${s.wanted == null ? "" : ` of ${s.wanted}`}`, "finished"],
      ...PARTS.filter(([state]) => s.counts[state]).map(([state, word]) => [state, s.counts[state], word]),
      ...(s.running ? [[null, s.running, "running"]] : []), ...(s.waiting ? [[null, s.waiting, "waiting"]] : [])];
    const texts = keyed(this.counts, told.map(([, , word]) => word), (word) => {
      const part = told.find((one) => one[2] === word)[0];
      return el("span", {}, part ? el("i", { "data-part": part }) : null, el("b"), ` ${word}`);
    });
    for (const [, count, word] of told) setText(texts.get(word).querySelector("b"), count);
  }

  showFacts() {
    const s = this.study;
    const verdicts = Object.entries(s.verdicts);
    const ooms = verdicts.reduce((sum, [, count]) => sum + count, 0);
    const params = Object.entries(s.best?.params ?? {}).map(([name, value]) => `${name} ${number(value)}`).join(", ");
    const rows = [
      s.front != null ? ["On the Pareto front", String(s.front), "not beaten in all objectives"]
        : ["Best value", number(s.best?.value), s.best ? `trial ${s.best.number} at ${clock(s.best.at, false)}` : "nothing complete yet"],
      ...(params ? [["With", params, ""]] : []),
      ["Out of memory", String(ooms), verdicts.map(([verdict, count]) => `${count} ${verdict}`).join(", ")],
      ["Retries", String(s.retries), plural(s.attempts, "attempt")],
      ["Each trial asks for", s.vram == null ? "as learned" : bytes(s.vram), s.alone ? `${s.alone} ran alone first` : ""],
      ...(s.prediction_error == null ? [] : [["Predictions off by", percent(s.prediction_error), `median of ${s.predicted}; ${s.asked_too_little} asked for too little`]]),
      ...(s.over_reserved == null ? [] : [["Reserved and not used", percent(s.over_reserved), "of what trials held"]]),
      ["Start-up tax", duration(s.start_s), s.start_s == null ? "" : "a trial"],
    ];
    const nodes = keyed(this.facts, rows.map(([term]) => term), (term) => el("div", {}, el("dt", {}, term), el("dd", { class: term === "Best value" ? "big" : null }, el("span"), " ", el("small"))));
    for (const [term, value, more] of rows) {
      const [text, , small] = nodes.get(term).lastChild.childNodes;
      setText(text, value);
      setText(small, more);
    }
  }

  makeCharts() {
    const two = this.study.directions.length > 1;
    const [a, b] = [el("span"), el("span")];
    const tell = (node, chart) => (text) => setText(node, text || chart().legend);
    this.values = two ? new FrontChart("", tell(a, () => this.values)) : new ValuesChart("", tell(a, () => this.values));
    this.asked = new AskedChart("", tell(b, () => this.asked));
    this.readouts = [[this.values, a], [this.asked, b]];
    this.behindValues = two
      ? new TableBehind("Values", [["Trial"], ["First", true], ["Second", true], ["On the front"]],
        () => this.study.values.slice(-ROWS).reverse().map(([x, y, n, front]) => [String(n), number(x), number(y), front ? "yes" : ""]))
      : new TableBehind("Values over time", [["Trial"], ["Ended", true], ["Value", true], ["New best"]],
        () => this.study.values.slice(-ROWS).reverse().map(([at, value, n, best]) => [String(n), clock(at), number(value), best ? "yes" : ""]));
    this.behindAsked = new TableBehind("Memory predicted and measured", [["Trial"], ["Predicted", true], ["Asked for", true], ["Peak", true], ["Out of memory"]],
      () => this.study.memory.slice(-ROWS).reverse().map(([n, predicted, asked, peak, oom, atLeast]) =>
        [String(n), mib(predicted), mib(asked), `${atLeast ? "> " : ""}${mib(peak)}`, oom ? "yes" : ""]));
    this.noValues = el("p", { class: "idle" }, "No trial is complete yet.");
    this.noMemory = el("p", { class: "idle" }, "Nothing was measured against a request yet.");
    this.charts.append(
      el("figure", {}, el("figcaption", {}, two ? "First objective against the second" : "Best value over time"), this.values.node, this.noValues, el("div", { class: "readout" }, a), this.behindValues.node),
      el("figure", {}, el("figcaption", {}, "Memory measured (up) against asked for and predicted"), this.asked.node, this.noMemory, el("div", { class: "readout" }, b), this.behindAsked.node));
  }

  showCharts() {
    const s = this.study;
    this.values.node.hidden = !s.values.length;
    this.noValues.hidden = Boolean(s.values.length);
    this.asked.node.hidden = !s.memory.length;
    this.noMemory.hidden = Boolean(s.memory.length);
    this.behindValues.node.hidden = !s.values.length;
    this.behindAsked.node.hidden = !s.memory.length;
    setAttribute(this.values.node, "aria-label", `${s.name}: ${plural(s.values.length, "value")}, best ${number(s.best?.value)}. Left and right arrows read them.`);
    setAttribute(this.asked.node, "aria-label", `${s.name}: memory of ${plural(s.memory.length, "trial")} against what was predicted and asked for. Left and right arrows read them.`);
    if (s.values.length) this.values.show(s.values, s.directions[0] === "minimize");
    if (s.memory.length) this.asked.show(s.memory);
    for (const [chart, node] of this.readouts) if (!node.textContent || chart.pointed == null) setText(node, chart.points.length ? chart.legend : "");
    this.behindValues.update();
    this.behindAsked.update();
  }
}
