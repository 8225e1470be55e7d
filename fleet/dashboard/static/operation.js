// Requests, storage and alerts: the work of the fleet as a whole.

import { h, say } from "./dom.js";
import { ago, bytes, count, duration, moment, percent, short } from "./format.js";
import { cutOff, empty, plainTable, table, tiles } from "./lists.js";
import { requestLine } from "./device.js";

// ---- requests ----

export const requests = {
  title: (place) => (place.id ? `Request ${place.id}` : "Requests"),
  path: (query, id) => (id ? [`/v1/requests/${encodeURIComponent(id)}`, {}] : ["/v1/dashboard/requests", query]),
  draw: (data, context) => (context.id ? drawRequest(data, context) : drawRequests(data, context)),
};

function drawRequests(data, context) {
  return [
    h("h1", {}, "Requests"),
    table({
      list: data,
      columns: [
        { name: "Request", key: "id", cell: (row) => [h("a", { href: `#/requests/${encodeURIComponent(row.id)}` }, row.id), h("span", { class: "sub" }, row.kind)] },
        { name: "State", key: "state", cell: (row) => [h("span", { class: `state state-${row.state}` }, row.state), row.reason ? h("span", { class: "sub why" }, short(row.reason, 160)) : null] },
        { name: "Progress", level: 2, cell: (row) => progress(row) },
        { name: "Last finding", level: 3, cell: (row) => short(row.finding, 120) || "–" },
        { name: "Submitted", key: "submitted", number: true, cell: (row) => ago(row.submitted_at, data.now) },
        { name: "", level: 2, cell: (row) => cancel(row, context) },
      ],
      query: context.query,
      go: context.go,
      label: "Requests",
      empty: "Nobody has asked for anything yet. Verbs such as fleet onboard or fleet tune beside this daemon are requests.",
      rowKey: (row) => row.id,
    }),
  ];
}

function progress(row) {
  if (row.ended_at !== null) return row.of ? `${count(row.done)} of ${count(row.of)}` : "–";
  if (!row.of) return row.state === "queued" ? "waits for its turn" : "at work";
  return [h("progress", { max: row.of, value: row.done, "aria-label": `${row.done} of ${row.of}` }), h("span", { class: "sub" }, `${count(row.done)} of ${count(row.of)}${row.left_secs !== null ? `, ${duration(row.left_secs)} left` : ""}`)];
}

function cancel(row, context) {
  if (row.ended_at !== null) return "";
  const ask = async (event) => {
    const button = event.currentTarget;
    if (!confirm(`Cancel request ${row.id}? What it has measured is kept.`)) return;
    button.disabled = true;
    try {
      await context.post("DELETE", `/v1/requests/${encodeURIComponent(row.id)}`);
      say(`Request ${row.id} is cancelled`);
    } catch (error) {
      button.textContent = error.message;
    }
    context.refresh();
  };
  return h("button", { type: "button", onclick: ask }, "Cancel");
}

function drawRequest(request, context) {
  const now = Date.now() / 1000;
  const pairs = Object.entries(request.arguments);
  const device = request.arguments.device;
  return [
    h("h1", {}, `Request ${request.id}`),
    h("p", {}, request.kind, device ? [" of ", h("a", { href: `#/device/${encodeURIComponent(device)}` }, device)] : "", `, submitted ${moment(request.submitted_at)}. `, cancel(request, context)),
    requestLine(request, now),
    h("h2", {}, "Arguments"),
    pairs.length ? plainTable("Arguments", ["Name", "Value"], pairs.map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)])) : empty("It has no arguments."),
    h("h2", {}, "Result"),
    Object.keys(request.result).length ? h("pre", { tabindex: "0" }, JSON.stringify(request.result, null, 2)) : empty(request.ended_at === null ? "It has not ended yet." : "It has no result."),
  ];
}

// ---- storage ----

export const storage = {
  title: () => "Storage and budgets",
  path: () => ["/v1/dashboard/storage", {}],
  draw: drawStorage,
};

function drawStorage({ store, health, budgets, budgets_of: of, devices, training, clock, now }) {
  return [
    h("h1", {}, "Storage and budgets"),
    tiles([
      ["records in the store", count(store.records)],
      ["on their way to the table", count(store.waiting), store.waiting > 100000 ? "warn" : null],
      ["refused by the store", count(store.refused), store.refused ? "bad" : null],
      ["imported, not derived", count(store.imports_refused)],
      ["table version", count(store.table_version)],
      ...Object.entries(health.free_bytes).map(([name, free]) => [`free where ${name} is`, bytes(free), free < 2e9 ? "bad" : null]),
    ]),
    h("p", { class: "note" }, `Store: ${store.path}`),
    h("h2", {}, "Logs and waits"),
    plainTable("Logs and waits", ["What", "Value"], [
      ["events", bytes(health.event_bytes)],
      ["oldest record that waits for the table", duration(health.waiting_secs)],
      ["records not acknowledged", `${count(health.unacknowledged)}, the oldest for ${duration(health.unacknowledged_secs)}`],
      ["turns of the coordinator", mean(health.turns)],
      ["waits for the disk", mean(health.disk_waits.state)],
      ["times the coordinator stood still", `${count(clock.gaps || 0)}, ${duration(clock.gap_secs || 0)} in all`],
      ["training", `${training.state}${training.last ? `; last: ${training.last}` : ""}`],
    ]),
    h("h2", {}, "Budgets"),
    budgets.length ? [plainTable("Budgets", ["Device", "This hour", "Today", "Closed because"], budgets.map((one) => [h("a", { href: `#/device/${encodeURIComponent(one.device_id)}` }, one.device_id), spent(one.hour_secs, one.hour_limit_secs), spent(one.day_secs, one.day_limit_secs), one.closed || "open"])), cutOff(budgets.length, of, "devices with a budget")] : empty(`No budget or window limits any of the ${count(devices)} devices.`),
  ];
}

function spent(secs, limit) {
  return limit ? `${duration(secs)} of ${duration(limit)} (${percent(secs / limit, 0)})` : `${duration(secs)}, no limit`;
}

function mean(found) {
  const all = found.counts.reduce((sum, one) => sum + one, 0);
  return all ? `${count(all)}, ${((1000 * found.sum_secs) / all).toFixed(1)} ms on average` : "none yet";
}

// ---- alerts ----

export const alerts = {
  title: () => "Alerts",
  path: (query) => ["/v1/dashboard/alerts", query],
  draw: (data, context) => [
    h("h1", {}, "Alerts"),
    webhook(data.webhook),
    h("p", { class: "note" }, "A model that gets worse on a device whose numbers have just changed is a fault of the device."),
    table({
      list: data,
      columns: [
        { name: "When", key: "at", number: true, cell: (row) => h("span", { title: moment(row.at) }, ago(row.at, data.now)) },
        { name: "Kind", key: "kind", cell: (row) => row.kind.replaceAll("_", " ") },
        { name: "Fault of", key: "fault", cell: (row) => (row.fault ? [`the ${row.fault}`, row.because ? h("span", { class: "sub" }, short(row.because, 140)) : null] : "–") },
        { name: "Device", key: "device", level: 2, cell: (row) => (row.device_id ? h("a", { href: `#/device/${encodeURIComponent(row.device_id)}` }, row.device_id) : "–") },
        { name: "What", cell: (row) => h("span", { class: "why", title: row.text }, short(row.text, 400)) },
      ],
      query: context.query,
      go: context.go,
      label: "Alerts",
      empty: "There is no alert.",
      rowKey: (row) => row.id,
    }),
    data.is_cut_off ? h("p", { class: "cut" }, `Cut off: only the newest ${count(data.total)} alerts are kept.`) : null,
  ],
};

function webhook(found) {
  if (!found) return h("p", { class: "note" }, "No webhook is set: daemon.webhook_url posts alerts to a chat or a pager.");
  const text = `Webhook at ${found.host}: ${count(found.sent)} sent, ${count(found.waiting)} wait${found.dropped ? `, ${count(found.dropped)} were dropped` : ""}`;
  return h("p", { class: found.last_error ? "warning" : "note" }, `${text}${found.last_error ? `; ${found.last_error}` : ""}.`);
}
