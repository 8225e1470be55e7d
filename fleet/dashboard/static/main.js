// The frame of the page: login, address, loading, live updates. The views are beside this file.

import { h, say, update } from "./dom.js";
import { moment } from "./format.js";
import * as fleet from "./fleet.js";
import * as device from "./device.js";
import * as compare from "./compare.js";
import { candidate, workload, workloads } from "./workload.js";
import { alerts, requests, storage } from "./operation.js";

const VIEWS = { fleet, device, compare, workloads, workload, candidate, requests, storage, alerts };
/** Least milliseconds between two updates, and between two where there are no live events. */
const LEAST_WAIT = 500;
const POLL_WAIT = 5000;

const main = document.getElementById("main");
let shown = null; // the view of the address: name, id, query
let asked = null; // the request that runs
let isDue = false;
let updatedAt = 0;
let events = null;
let lastGood = 0;

// ---- session ----

async function begin() {
  // First: whoever comes with an old link logs in by token, and goes on from there.
  addEventListener("hashchange", route);
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
  setInterval(() => (events && events.readyState === EventSource.OPEN) || refresh(), POLL_WAIT);
  const found = /^#login=([\w-]+)$/.exec(location.hash);
  if (found) {
    // Neither the history nor a copied address keeps it.
    history.replaceState(null, "", "/#/");
    const answer = await fetch("/v1/session", { method: "POST", headers: { Authorization: `Login ${found[1]}` } });
    if (!answer.ok) return drawLogin("This link has been used or is older than 15 minutes. Make a new one: fleet dashboard");
  }
  route();
}

function drawLogin(reason) {
  closeEvents();
  shown = null;
  document.title = "Log in – tensor-fleet";
  setLive("off", "logged out");
  const login = async (event) => {
    event.preventDefault();
    const token = event.currentTarget.querySelector("input").value.trim();
    const answer = await fetch("/v1/session", { method: "POST", headers: { Authorization: `Bearer ${token}` } });
    if (answer.ok) route();
    else drawLogin("This token is wrong.");
  };
  main.setAttribute("aria-busy", "false");
  update(main, [
    h("h1", {}, "Log in"),
    h("p", {}, "Run ", h("code", {}, "fleet dashboard"), " on the host of the daemon and open the link that it prints."),
    h("form", { class: "login", onsubmit: login },
      h("label", {}, "Or paste the token of the daemon's folder (api.token)", h("input", { type: "password", autocomplete: "off", required: true })),
      h("button", { type: "submit" }, "Log in")),
    reason ? h("p", { class: "warning", role: "alert" }, reason) : null,
  ].filter(Boolean));
}

async function logOut() {
  await fetch("/v1/session", { method: "DELETE" });
  drawLogin("You are logged out.");
}

// ---- address ----

/** #/NAME/ID?key=value; the fleet where there is no name. */
function parse() {
  const [place, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = place.split("/");
  return { name: name || "fleet", id: decodeURIComponent(rest.join("/")), query: Object.fromEntries(new URLSearchParams(query)) };
}

function route() {
  const next = parse();
  if (!VIEWS[next.name]) return void (location.hash = "#/");
  const isSame = shown && shown.name === next.name && shown.id === next.id;
  shown = next;
  for (const link of document.querySelectorAll("nav [data-view]")) {
    const isHere = link.dataset.view === next.name;
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${VIEWS[next.name].title(next)} – tensor-fleet`;
  if (!isSame) {
    main.setAttribute("aria-busy", "true");
    update(main, [h("h1", {}, VIEWS[next.name].title(next)), h("p", { class: "loading" }, "Loading …")]);
    scrollTo(0, 0);
  }
  refresh(true);
}

/** Changes parts of the address: what is sorted, filtered, on which page. */
function go(changes) {
  const query = new URLSearchParams(shown.query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value === null || value === undefined || value === false || value === 0) query.delete(name);
    else query.set(name, String(value));
  }
  const text = query.toString();
  location.hash = `#/${shown.name === "fleet" ? "" : shown.name}${shown.id ? `/${encodeURIComponent(shown.id)}` : ""}${text ? `?${text}` : ""}`;
}

// ---- data ----

/** Asks for what is shown, and draws it. */
async function refresh(isNew = false) {
  if (!shown || (document.hidden && !isNew)) return;
  if (asked && !isNew) return void (isDue = true);
  if (asked) asked.abort();
  const mine = (asked = new AbortController());
  const [view, place] = [VIEWS[shown.name], shown];
  isDue = false;
  try {
    const [path, query] = view.path(place.query, place.id);
    const data = path ? await get(path, query, mine.signal) : {};
    if (place !== shown) return;
    const context = { query: place.query, id: place.id, go, get, refresh, post };
    const drawn = view.draw(data, context).flat(2).filter((one) => one !== null && one !== undefined && one !== false);
    update(main, drawn);
    main.setAttribute("aria-busy", "false");
    lastGood = Date.now() / 1000;
    setBanner("");
    follow();
  } catch (error) {
    if (error.name === "AbortError") return;
    failed(error, place);
  } finally {
    if (asked === mine) {
      asked = null;
      updatedAt = Date.now();
      if (isDue) later();
    }
  }
}

class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function get(path, query = {}, signal = undefined) {
  const text = new URLSearchParams(query).toString();
  return read(await fetch(text ? `${path}?${text}` : path, { signal, headers: { Accept: "application/json" } }));
}

async function post(method, path) {
  return read(await fetch(path, { method }));
}

async function read(answer) {
  if (answer.ok) return answer.status === 204 ? null : answer.json();
  let text = `The server answers ${answer.status}`;
  try {
    const { detail } = await answer.json();
    text = typeof detail === "string" ? detail : `${text}: the address asks for what there is not`;
  } catch { /* an answer without words */ }
  throw new Refused(answer.status, text);
}

function failed(error, place) {
  if (error instanceof Refused && error.status === 401) return drawLogin("");
  if (error instanceof Refused) {
    main.setAttribute("aria-busy", "false");
    update(main, [h("h1", {}, VIEWS[place.name].title(place)), h("p", { class: error.status === 503 ? "loading" : "warning" }, error.message)]);
    return follow();
  }
  if (!(error instanceof TypeError && /fetch|network|load/i.test(error.message))) console.error(error);
  setLive("off", "not live");
  setBanner(lastGood ? `The daemon does not answer. What is below is of ${moment(lastGood)}.` : "The daemon does not answer.");
}

function later() {
  if (later.timer) return;
  later.timer = setTimeout(() => {
    later.timer = 0;
    refresh();
  }, Math.max(0, updatedAt + LEAST_WAIT - Date.now()));
}

// ---- live ----

function follow() {
  if (events && events.readyState !== EventSource.CLOSED) return;
  events = new EventSource("/v1/dashboard/live");
  events.addEventListener("open", () => setLive("on", "live"));
  events.addEventListener("change", () => {
    setLive("on", "live");
    later();
  });
  events.addEventListener("error", () => setLive("poll", "every 5 s"));
}

function closeEvents() {
  if (events) events.close();
  events = null;
}

function setLive(kind, text) {
  const place = document.getElementById("live");
  if (place.dataset.kind === kind) return;
  place.dataset.kind = kind;
  const parts = [h("span", { class: "dot", "aria-hidden": "true" }), h("span", {}, text)];
  if (kind !== "off") parts.push(h("button", { type: "button", class: "sort", onclick: logOut }, "Log out"));
  update(place, parts);
  if (kind === "off") say("Not live any more");
}

function setBanner(text) {
  const banner = document.getElementById("banner");
  banner.hidden = !text;
  if (banner.textContent !== text) banner.textContent = text;
}

begin();
