// The frame of the page: login, address, loading, updates. The views are in the other files of this folder.

import { announce, h, update } from "./dom.js";
import { moment } from "./format.js";
import * as fleet from "./fleet.js";
import * as device from "./device.js";
import * as compare from "./compare.js";
import { candidate, workload, workloads } from "./workload.js";
import { models, networks } from "./results.js";
import { alerts, requests, storage } from "./operation.js";

const VIEWS = { fleet, device, networks, models, compare, workloads, workload, candidate, requests, storage, alerts };
/** Milliseconds between two updates. */
const PAUSE = 1000;

const main = document.getElementById("main");
let place = null; // the view of the address: name, id, query
let running = null; // the request that runs
let lastGood = 0;

// ---- session ----

async function begin() {
  // First: after a login by token, an old link opens its view.
  addEventListener("hashchange", route);
  document.addEventListener("visibilitychange", () => refresh());
  setInterval(() => refresh(), PAUSE);
  const code = /^#login=([\w-]+)$/.exec(location.hash);
  if (code) {
    // Neither the history nor a copied address keeps it.
    history.replaceState(null, "", "/#/");
    const answer = await openSession(`Login ${code[1]}`);
    if (!answer.ok) return drawLogin("This link has been used or is older than 15 minutes. Make a new one: fleet dashboard");
  }
  route();
}

function openSession(authorization) {
  return fetch("/v1/session", { method: "POST", headers: { Authorization: authorization } });
}

function drawLogin(reason) {
  place = null;
  document.title = "Log in – tensor-fleet";
  setLive("off", "logged out");
  const login = async (event) => {
    event.preventDefault();
    const answer = await openSession(`Bearer ${event.currentTarget.querySelector("input").value.trim()}`);
    if (answer.ok) route();
    else drawLogin("This token is wrong.");
  };
  show([
    h("h1", {}, "Log in"),
    h("p", {}, "Run ", h("code", {}, "fleet dashboard"), " on the host of the daemon and open the link that it prints."),
    h("form", { class: "login", onsubmit: login },
      h("label", {}, "Or paste the token of the daemon's folder (api.token)", h("input", { type: "password", autocomplete: "off", required: true })),
      h("button", { type: "submit" }, "Log in")),
    reason ? h("p", { class: "warning", role: "alert" }, reason) : null,
  ]);
}

async function logOut() {
  await fetch("/v1/session", { method: "DELETE" });
  drawLogin("You are logged out.");
}

// ---- address ----

/** #/NAME/ID?key=value; the fleet if there is no name. */
function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  const next = { name: name || "fleet", id: decodeURIComponent(rest.join("/")), query: Object.fromEntries(new URLSearchParams(query)) };
  if (!VIEWS[next.name]) return void (location.hash = "#/");
  const isSame = place && place.name === next.name && place.id === next.id;
  place = next;
  for (const link of document.querySelectorAll("nav [data-view]")) {
    if (link.dataset.view === next.name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const title = VIEWS[next.name].title(next);
  document.title = `${title} – tensor-fleet`;
  if (!isSame) {
    show([h("h1", {}, title), h("p", { class: "loading" }, "Loading …")], true);
    scrollTo(0, 0);
  }
  refresh(true);
}

/** Changes parts of the address: what is sorted, filtered, on which page. */
function go(changes) {
  const query = new URLSearchParams(place.query);
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, String(value));
    else query.delete(name);
  }
  const path = [place.name === "fleet" ? "" : place.name, place.id ? encodeURIComponent(place.id) : ""].join("/");
  location.hash = `#/${path.replace(/\/$/, "")}${query.size ? `?${query}` : ""}`;
}

// ---- data ----

/** Loads the data of the view, and draws it; a new view does not wait for the one before. */
async function refresh(isNew = false) {
  if (!place || ((document.hidden || running) && !isNew)) return;
  running?.abort();
  const [mine, here, view] = [new AbortController(), place, VIEWS[place.name]];
  running = mine;
  try {
    const data = await get(...view.path(here.query, here.id), mine.signal);
    if (here !== place) return;
    show(view.draw(data, { query: here.query, id: here.id, go, get, send, refresh }));
    lastGood = Date.now() / 1000;
    setBanner("");
    setLive("on", "live");
  } catch (error) {
    if (error.name !== "AbortError") failed(error, view.title(here));
  } finally {
    if (running === mine) running = null;
  }
}

function show(parts, isBusy = false) {
  main.setAttribute("aria-busy", String(isBusy));
  update(main, h("div", {}, parts).childNodes);
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

async function send(method, path) {
  return read(await fetch(path, { method }));
}

async function read(answer) {
  if (answer.ok) return answer.json();
  const { detail } = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, typeof detail === "string" ? detail : `Not found: the server answered ${answer.status} to this address.`);
}

function failed(error, title) {
  if (error instanceof Refused && error.status === 401) return drawLogin("");
  if (error instanceof Refused) {
    const kind = error.status === 503 ? "loading" : "warning";
    return show([h("h1", {}, title), h("p", { class: kind }, error.message)]);
  }
  if (!(error instanceof TypeError && /fetch|network|load/i.test(error.message))) console.error(error);
  setLive("off", "not live");
  setBanner(lastGood ? `The daemon does not answer. This page shows the state of ${moment(lastGood)}.` : "The daemon does not answer.");
}

function setLive(kind, text) {
  const live = document.getElementById("live");
  if (live.dataset.kind === kind) return;
  live.dataset.kind = kind;
  const logout = kind === "on" ? h("button", { type: "button", class: "sort", onclick: logOut }, "Log out") : null;
  update(live, h("p", {}, h("span", { class: "dot", "aria-hidden": "true" }), h("span", {}, text), logout).childNodes);
  if (kind === "off") announce("Not live any more");
}

function setBanner(text) {
  const banner = document.getElementById("banner");
  banner.hidden = !text;
  if (banner.textContent !== text) banner.textContent = text;
}

begin();
