// Wires the page: the stream from the server, the cards, and the few switches.
import { $, el, keyed, later, setText } from "./dom.js";
import { DeviceCard } from "./device_card.js";
import { showTiles, showWaiting } from "./overview.js";
import { repaint } from "./plots.js";
import { doIt, look, session, signIn, signInByLink, signOut } from "./session.js";
import { StudyCard } from "./study_card.js";

const cards = new Map();
const studyCards = new Map();
const studies = new Map();
let order = [];
let windowS = Number(localStorage.getItem("vrampool-window")) || 300;
let stream = null;
let last = null;

// ---- the stream ---------------------------------------------------------------------------------------------------

function setLink(state, text) {
  $("link").dataset.state = state;
  setText($("link"), text);
}

async function connect() {
  stream?.close();
  try {
    while (!(await look())) await signIn(true);
  } catch {
    setLink("lost", "no server");
    setTimeout(connect, 2000);
    return;
  }
  showSession();
  stream = new EventSource("events");
  stream.addEventListener("whole", (event) => onWhole(JSON.parse(event.data)));
  stream.addEventListener("devices", (event) => onDevices(JSON.parse(event.data)));
  stream.addEventListener("studies", (event) => onStudies(JSON.parse(event.data)));
  stream.onopen = () => setLink("live", "live");
  stream.onerror = () => {
    setLink("lost", "reconnecting");
    if (stream.readyState === EventSource.CLOSED) setTimeout(connect, 2000);  // refused: the session may have ended
  };
}

function onWhole(message) {
  setText($("pool"), message.pool === "vrampool" ? "" : message.pool);  // its name where nobody gave it one
  document.title = `vrampool · ${message.pool}`;
  studies.clear();
  for (const study of message.studies) studies.set(study.name, study);
  order = message.order;
  showDevices(message);
  for (const card of cards.values()) if (card.loaded) card.load(windowS);  // samples may have been missed
  showStudies();
}

function onDevices(message) {
  showDevices(message);
}

function onStudies(message) {
  for (const study of message.studies) studies.set(study.name, study);
  order = message.order;
  for (const name of [...studies.keys()]) if (!order.includes(name)) studies.delete(name);
  later("tiles", () => showTiles($("tiles"), message.totals));
  showStudies();
}

// ---- what is shown ------------------------------------------------------------------------------------------------

function showDevices(message) {
  last = message;
  const keys = message.devices.map((device) => device.key);
  const fresh = [];
  keyed($("cards"), keys, (key) => {
    const card = new DeviceCard(key, (action, device) => doIt(action, `${device.label} on ${device.host}`, { worker: device.worker }));
    cards.set(key, card);
    fresh.push(card);
    return card.node;
  });
  for (const key of [...cards.keys()]) if (!keys.includes(key)) cards.delete(key);
  for (const card of fresh) card.load(windowS).catch(() => {});
  for (const [key, rows] of Object.entries(message.rows ?? {})) cards.get(key)?.add(rows);
  for (const device of message.devices) later(`device ${device.key}`, () => cards.get(device.key)?.show(device, message.now, session.may_act));
  later("tiles", () => showTiles($("tiles"), message.totals));
  later("waiting", () => showWaiting($("queue"), message.waiting, [...studies.values()], message.now));
  $("no-device").hidden = keys.length > 0;
  setText($("faults"), message.faults.join(" "));
  $("faults").hidden = !message.faults.length;
}

function showStudies() {
  keyed($("study-cards"), order, (name) => {
    const card = new StudyCard(name, (action, study) => doIt(action, study.name, { study: study.name }));
    studyCards.set(name, card);
    return card.node;
  });
  for (const name of [...studyCards.keys()]) if (!order.includes(name)) studyCards.delete(name);
  for (const name of order) later(`study ${name}`, () => { if (studies.has(name)) studyCards.get(name)?.show(studies.get(name), session.may_act); });
  $("no-study").hidden = order.length > 0;
}

// ---- switches -----------------------------------------------------------------------------------------------------

function showSession() {
  $("sign").hidden = !session.acts && !session.signed_in;
  setText($("sign"), session.signed_in ? "Sign out" : "Sign in");
  $("optuna").hidden = !(session.optuna_dashboard && session.signed_in);
  const nodes = keyed($("windows"), session.windows, (seconds) => el("button", { type: "button", onclick: () => setWindow(seconds) }, `${seconds / 60} min`));
  if (!session.windows.includes(windowS)) windowS = session.windows[0];
  for (const [seconds, node] of nodes) node.setAttribute("aria-pressed", seconds === windowS);
  if (last) showDevices({ ...last, rows: {} });
  showStudies();
}

function setWindow(seconds) {
  windowS = seconds;
  localStorage.setItem("vrampool-window", seconds);
  showSession();
  for (const card of cards.values()) card.load(windowS).catch(() => {});
}

$("sign").addEventListener("click", async () => {
  if (session.signed_in) await signOut();
  else if (!(await signIn(false))) return;
  await connect();
});

const THEMES = { auto: ["light", "Light", "Colours: light"], light: ["dark", "Dark", "Colours: dark"], dark: ["auto", "Auto", "Colours: as the system has them"] };

function setTheme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  localStorage.setItem("vrampool-theme", name);
  const [, text, label] = Object.values(THEMES).find(([to]) => to === name);
  setText($("theme"), text);
  $("theme").setAttribute("aria-label", label);
  repaint();
}

$("theme").addEventListener("click", () => setTheme(THEMES[document.documentElement.dataset.theme ?? "auto"][0]));
setTheme(["light", "dark"].includes(localStorage.getItem("vrampool-theme")) ? localStorage.getItem("vrampool-theme") : "auto");

await signInByLink();
await connect();
