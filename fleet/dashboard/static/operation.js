// Requests, storage and alerts: the work of the fleet as a whole.

import { announce, h, link } from "./dom.js";
import { ago, bytes, count, duration, moment, percent, short, words } from "./format.js";
import { coded, cutOff, empty, note, plainTable, state, sub, table, tiles } from "./lists.js";
import { progress, requestLine } from "./device.js";

export const requests = {
  title: (place) => (place.id ? `Request ${place.id}` : "Requests"),
  path: (query, id) => (id ? [`/v1/requests/${encodeURIComponent(id)}`, {}] : ["/v1/dashboard/requests", query]),
  draw: (data, context) => (context.id ? drawRequest(data, context) : drawRequests(data, context)),
};

function drawRequests(data, context) {
  return [
    h("h1", {}, "Requests"),
    table(data, context, {
      columns: [
        { name: "Request", key: "id", cell: (row) => [link("requests", row.id, row.id), sub(row.kind)] },
        { name: "State", key: "state", cell: (row) => [state(row.state), row.reason ? h("span", { class: "sub why" }, short(row.reason, 160)) : null] },
        { name: "Progress", level: 2, cell: soFar },
        { name: "Last finding", level: 3, cell: (row) => (row.ended_at === null && short(row.finding, 120)) || "–" },
        { name: "Submitted", key: "submitted", number: true, cell: (row) => ago(row.submitted_at, data.now) },
        { name: "", level: 2, cell: (row) => cancel(row, context) },
      ],
      label: "Requests",
      empty: "There is no request yet. Commands such as fleet onboard or fleet tune become requests while this daemon runs.",
    }),
  ];
}

function soFar(row) {
  if (row.ended_at !== null) return row.of ? `${count(row.done)} of ${count(row.of)}` : "–";
  return row.of ? progress(row) : row.state === "queued" ? "waiting" : "running";
}

function cancel(row, context) {
  if (row.ended_at !== null) return "";
  const order = async (event) => {
    const button = event.currentTarget;
    if (!confirm(`Cancel request ${row.id}? What it has measured is kept.`)) return;
    button.disabled = true;
    try {
      await context.send("DELETE", `/v1/requests/${encodeURIComponent(row.id)}`);
      announce(`Request ${row.id} is cancelled`);
    } catch (error) {
      button.textContent = error.message;
    }
    context.refresh();
  };
  return h("button", { type: "button", onclick: order }, "Cancel");
}

function drawRequest(request, context) {
  const { device } = request.arguments;
  const rows = Object.entries(request.arguments).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)]);
  const nothing = request.ended_at === null ? "It has not ended yet." : "It has no result.";
  return [
    h("h1", {}, `Request ${request.id}`),
    h("p", {}, request.kind, device ? [" of ", link("device", device, device)] : "", `, submitted ${moment(request.submitted_at)}. `, cancel(request, context)),
    requestLine(request, Date.now() / 1000),
    h("h2", {}, "Arguments"),
    rows.length ? plainTable("Arguments", ["Name", "Value"], rows) : empty("It has no arguments."),
    h("h2", {}, "Result"),
    request.kind === "tuning" ? h("p", {}, h("a", { href: "#/networks" }, "Networks"), " shows its curve and its report.") : null,
    Object.keys(request.result).length ? h("pre", { tabindex: "0" }, JSON.stringify(request.result, null, 2)) : empty(nothing),
  ];
}

export const storage = { title: () => "Storage and budgets", path: () => ["/v1/status", {}], draw: drawStorage };

function drawStorage({ store, health, devices, training, clock }) {
  const all = Object.entries(devices).map(([name, { closed, budget }]) => ({ name, closed, ...budget }));
  const limited = all.filter((row) => row.closed || row.hour_limit_secs || row.day_limit_secs);
  const budgets = limited.slice(0, 500);
  return [
    h("h1", {}, "Storage and budgets"),
    tiles([
      ["records in the store", count(store.records)],
      ["on their way to the table", count(store.waiting), store.waiting > 100000 ? "warn" : null],
      ["refused by the store", count(store.refused), store.refused ? "bad" : null],
      ["imported, not derived", count(store.imports_refused)],
      ["table version", count(store.table_version)],
      ...Object.entries(health.free_bytes).map(([name, free]) => [`free on the disk of ${name}`, bytes(free), free < 2e9 ? "bad" : null]),
    ]),
    note(`Store: ${store.path}`),
    h("h2", {}, "Logs and waits"),
    plainTable("Logs and waits", ["What", "Value"], [
      ["events", bytes(health.event_bytes)],
      ["oldest record that waits for the table", duration(health.waiting_secs)],
      ["records not acknowledged", `${count(health.unacknowledged)}, the oldest for ${duration(health.unacknowledged_secs)}`],
      ["rounds of the coordinator", mean(health.turns)],
      ["waits for the disk", mean(health.disk_waits.state)],
      ["pauses of the coordinator (host asleep or overloaded)", `${count(clock.gaps || 0)}, ${duration(clock.gap_secs || 0)} in all`],
      ["training", `${training.state}${training.last ? `; last: ${training.last}` : ""}`],
    ]),
    h("h2", {}, "Budgets"),
    budgets.length ? plainTable("Budgets", ["Device", "This hour", "Today", "Closed because"], budgets.map(budgetRow)) : empty(`No budget or window limits any of the ${count(all.length)} devices.`),
    cutOff(budgets.length, limited.length, "devices with a budget"),
  ];
}

function budgetRow(budget) {
  const spent = (secs, limit) => (limit ? `${duration(secs)} of ${duration(limit)} (${percent(secs / limit, 0)})` : `${duration(secs)}, no limit`);
  const { hour_secs: hour, hour_limit_secs: hourLimit, day_secs: day, day_limit_secs: dayLimit } = budget;
  return [link("device", budget.name, budget.name), spent(hour, hourLimit), spent(day, dayLimit), budget.closed || "open"];
}

function mean(histogram) {
  const all = histogram.counts.reduce((sum, number) => sum + number, 0);
  return all ? `${count(all)}, ${((1000 * histogram.sum_secs) / all).toFixed(1)} ms on average` : "none yet";
}

export const alerts = { title: () => "Alerts", path: (query) => ["/v1/dashboard/alerts", query], draw: drawAlerts };

function drawAlerts(data, context) {
  return [
    h("h1", {}, "Alerts"),
    webhookLine(data.webhook),
    note("If a model gets worse just after its device changed, the alert is attributed to the device."),
    table(data, context, {
      columns: [
        { name: "When", key: "at", number: true, cell: (row) => h("span", { title: moment(row.at) }, ago(row.at, data.now)) },
        { name: "Kind", key: "kind", cell: (row) => words(row.kind) },
        { name: "Cause", key: "fault", cell: (row) => (row.fault ? [`the ${row.fault}`, row.because ? sub(short(row.because, 140)) : null] : "–") },
        { name: "Device", key: "device", level: 2, cell: (row) => (row.device_id ? link("device", row.device_id, row.device_id) : "–") },
        { name: "What", cell: (row) => h("span", { class: "why", title: row.text }, short(row.text, 400)) },
        { name: "Next step", level: 2, cell: (row) => (row.step ? coded(row.step) : "–") },
      ],
      label: "Alerts",
      empty: "There is no alert.",
    }),
    data.is_cut_off ? h("p", { class: "cut" }, `Cut off: only the newest ${count(data.total)} alerts are kept.`) : null,
  ];
}

function webhookLine(webhook) {
  if (!webhook) return note("No webhook is set: daemon.webhook_url posts alerts to a chat or a pager.");
  const { host, sent, waiting, dropped, last_error: fault } = webhook;
  const lost = dropped ? `, ${count(dropped)} were dropped` : "";
  const text = `Webhook at ${host}: ${count(sent)} sent, ${count(waiting)} wait${lost}${fault ? `; ${fault}` : ""}.`;
  return h("p", { class: fault ? "warning" : "note" }, text);
}
