// The tiles above, and what waits.
import { el, keyed, setText } from "./dom.js";
import { bytes, duration, percent, plural } from "./format.js";

export function showTiles(node, totals) {
  const ooms = Object.values(totals.verdicts).reduce((sum, count) => sum + count, 0);
  const verdicts = Object.entries(totals.verdicts).map(([verdict, count]) => `${count} ${verdict}`).join(", ");
  const devices = totals.ready === totals.devices ? plural(totals.devices, "device") : `${totals.ready} of ${plural(totals.devices, "device")} ready`;
  const rows = [
    ["Running", String(totals.running), `on ${devices}`],
    ["Waiting", String(totals.waiting), totals.waiting ? "why: see below" : "for a device"],
    ["Leased", bytes(totals.lease_bytes), `of ${bytes(totals.budget_bytes)} budget`],
    ["Held", bytes(totals.measured_bytes), totals.lease_bytes ? `${percent(totals.measured_bytes / totals.lease_bytes)} of the leases` : "measured"],
    ["Attempts ended", String(totals.finished), plural(totals.retries, "retry", "retries")],
    ["Out of memory", String(ooms), verdicts || "none"],
    ["Residue", bytes(totals.residue_bytes), "left behind, last hour"],
    ["Start-up tax", duration(totals.start_s), totals.start_share == null ? "a trial" : `${percent(totals.start_share)} of the time`],
  ];
  const nodes = keyed(node, rows.map(([name]) => name), (name) => el("dl", { class: "tile", "data-tile": name }, el("dt", {}, name), el("dd", {}, el("span"), el("small"))));
  for (const [name, value, more] of rows) {
    const [text, small] = nodes.get(name).lastChild.childNodes;
    setText(text, value);
    setText(small, more);
  }
}

export function showWaiting(node, waiting, studies, now) {
  if (!waiting.length) {
    const live = studies.filter((study) => study.live).length;
    const text = live ? "Nothing waits: trials are asked for when a device has room for them." : "Nothing waits.";
    if (node.firstChild?.className !== "empty") node.replaceChildren(el("p", { class: "empty" }));
    setText(node.firstChild, text);
    return;
  }
  if (!node.querySelector("table")) {
    const heads = [["Trial"], ["Asks for", "n"], ["Waits for", "n"], ["Why"]].map(([name, kind]) => el("th", { scope: "col", class: kind }, name));
    node.replaceChildren(el("div", { class: "card" }, el("table", {}, el("caption", { class: "unseen" }, "Trials that wait"), el("thead", {}, el("tr", {}, ...heads)), el("tbody"))));
  }
  const body = node.querySelector("tbody");
  const named = (one) => `${one.study} ${one.number ?? "(next trial)"}`;
  const nodes = keyed(body, waiting.map(named), (key) => el("tr", {},
    el("th", { scope: "row" }, key), el("td", { class: "n", "data-label": "asks for" }), el("td", { class: "n", "data-label": "waits for" }), el("td", { class: "reason" })));
  for (const one of waiting) {
    const [, asks, since, why] = nodes.get(named(one)).children;
    setText(asks, one.asks_bytes == null ? "a whole device" : `${one.about ? "about " : ""}${bytes(one.asks_bytes)}`);
    setText(since, one.since == null ? "–" : duration(now - one.since));
    setText(why, one.why);
  }
}

