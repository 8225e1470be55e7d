// Workloads, one workload with the matrix of its candidates and devices, and one candidate.

import { h } from "./dom.js";
import { legend, plot, spreadBar } from "./charts.js";
import { count, latency, moment, percent, score, short } from "./format.js";
import { cutOff, empty, loading, plainTable, table, tiles } from "./lists.js";
import { digestNote } from "./fleet.js";

// ---- the list ----

export const workloads = {
  title: () => "Workloads",
  path: (query) => ["/v1/dashboard/workloads", query],
  draw: (data, context) => [
    h("h1", {}, "Workloads"),
    digestNote(data.digest),
    data.total === 0 && data.digest.state === "loading" ? null : table({
      list: data,
      columns: [
        { name: "Workload", key: "name", cell: (row) => [h("a", { href: `#/workload/${encodeURIComponent(row.workload_id)}` }, short(row.name, 120)), row.networks ? h("span", { class: "sub" }, short(row.networks, 90)) : null] },
        { name: "Operator", key: "operator", level: 2, cell: (row) => row.operator || "–" },
        { name: "MFLOP", key: "flops", number: true, level: 2, cell: (row) => (row.flops ? (row.flops / 1e6).toPrecision(3) : "–") },
        { name: "Devices", key: "devices", number: true, cell: (row) => count(row.devices) },
        { name: "Records", key: "records", number: true, cell: (row) => count(row.records) },
        { name: "Failed", key: "failed", number: true, level: 2, cell: (row) => percent(row.failed_share, 1) },
        { name: "Best", key: "best", number: true, level: 2, cell: (row) => [latency(row.best_secs), row.best_device ? h("span", { class: "sub" }, row.best_device) : null] },
      ],
      query: context.query,
      go: context.go,
      label: "Workloads",
      empty: "No record is in the table yet, so there are no workloads.",
      rowKey: (row) => row.workload_id,
    }),
  ],
};

// ---- one workload ----

const scored = new Map(); // predictions by workload and device

export const workload = {
  title: () => "Workload",
  path: (query, id) => [`/v1/dashboard/workloads/${encodeURIComponent(id)}`, query],
  draw: drawWorkload,
};

function drawWorkload(data, context) {
  const { devices, matrix } = data;
  const about = data.workload;
  const spreads = devices.rows.map((row) => row.spread).filter(Boolean);
  const [low, high] = [Math.min(...spreads.map((one) => one[0])), Math.max(...spreads.map((one) => one[4]))];
  return [
    h("h1", {}, short(about.name, 200)),
    h("p", { class: "note" }, [about.operator, (about.shapes || []).map((shape) => shape.join("×")).join(", "), about.flops ? `${(about.flops / 1e6).toPrecision(3)} MFLOP` : "", about.networks].filter(Boolean).join(" · ")),
    h("h2", {}, "Devices"),
    h("p", { class: "note" }, "Spread: least, quartiles and most of all measured candidates, on one logarithmic scale."),
    table({
      list: devices,
      columns: [
        { name: "Device", key: "device", cell: (row) => h("a", { href: `#/device/${encodeURIComponent(row.device_id)}` }, row.device_id) },
        { name: "Records", key: "records", number: true, level: 2, cell: (row) => count(row.records) },
        { name: "Best", key: "best", number: true, cell: (row) => latency(row.best_secs) },
        { name: "Spread", cell: (row) => (row.spread ? spreadBar({ quantiles: row.spread, low, high, label: `${latency(row.spread[0])} to ${latency(row.spread[4])}, median ${latency(row.spread[2])}` }) : "nothing ran") },
        { name: "Predicted", level: 2, cell: (row) => h("button", { type: "button", onclick: () => predict(data.workload_id, row.device_id, context) }, "Score") },
      ],
      query: context.query,
      go: context.go,
      label: "Devices of this workload",
      empty: "No device has measured it.",
      rowKey: (row) => row.device_id,
    }),
    predictions(data.workload_id, devices.rows),
    h("h2", {}, "Candidates"),
    h("p", { class: "note" }, `Candidates by device, the fastest first. ${count(matrix.filled)} of ${count(matrix.of)} cells on these devices are measured (${percent(matrix.of ? matrix.filled / matrix.of : 0, 0)}).`),
    grid(data, context),
  ];
}

function grid({ workload_id: workloadId, matrix }, { go }) {
  if (!matrix.total) return empty("No candidate was measured on these devices.");
  const cell = (value) => (typeof value === "number" ? latency(value) : value === null ? h("span", { class: "none", title: "not measured" }, "·") : h("span", { class: "soft" }, value.replaceAll("_", " ")));
  const link = (row) => {
    const on = matrix.devices[row.cells.findIndex((value) => value !== null)];
    return h("a", { href: `#/candidate/${encodeURIComponent(`${workloadId}/${row.candidate_id}`)}?best_on=${encodeURIComponent(on)}` }, row.candidate_id.slice(0, 10));
  };
  const last = Math.min(matrix.offset + matrix.size, matrix.total);
  const button = (name, isOn, from) => h("button", { type: "button", disabled: !isOn, onclick: () => go({ candidates_from: from }) }, name);
  return [
    h("div", { class: "cells" }, plainTable("Candidates by device", ["Candidate", "Mean speed", ...matrix.devices], matrix.rows.map((row) => [link(row), row.speed === null ? "–" : row.speed.toFixed(2), ...row.cells.map(cell)]))),
    h("nav", { class: "pager", "aria-label": "Pages: candidates" },
      h("span", {}, matrix.total <= matrix.size ? `All ${count(matrix.total)} candidates` : `Candidates ${count(matrix.offset + 1)} to ${count(last)} of ${count(matrix.total)}`),
      matrix.total <= matrix.size ? null : [button("First", matrix.offset > 0, 0), button("Back", matrix.offset > 0, Math.max(0, matrix.offset - matrix.size)), button("On", !matrix.is_last, last)]),
  ];
}

async function predict(workloadId, device, context) {
  const key = `${workloadId} ${device}`;
  scored.set(key, { state: "loading" });
  context.refresh();
  try {
    scored.set(key, { state: "ready", ...(await context.get(`/v1/dashboard/workloads/${encodeURIComponent(workloadId)}/predictions`, { device })) });
  } catch (error) {
    scored.set(key, { state: "failed", reason: error.status === 404 && /Not Found/.test(error.message) ? "this daemon gives no scores" : error.message });
  }
  context.refresh();
}

function predictions(workloadId, rows) {
  return rows.map((row) => {
    const found = scored.get(`${workloadId} ${row.device_id}`);
    if (!found) return null;
    const parts = [h("h3", {}, `Predicted against measured on ${row.device_id}`)];
    if (found.state === "loading") parts.push(loading("The champion scores the candidates; the first time takes some seconds …"));
    else if (found.state === "failed") parts.push(h("p", { class: "warning" }, found.reason));
    else {
      parts.push(tiles([["version", found.version], ["Kendall tau", found.kendall_tau === null ? "–" : found.kendall_tau.toFixed(3)], ["speed of the first choice", score(found.top1)]]),
        legend([["a candidate", 0]]),
        plot({ label: "Score against measured speed", series: [{ place: 0, kind: "dots", points: found.points.map(([value, speed, id]) => [value, speed, null, null, id]) }], xText: (value) => value.toFixed(2), yText: (value) => value.toFixed(2), height: 220 }),
        h("p", { class: "note" }, "Across: score of the champion. Up: speed over the best one's. These candidates may have trained the head."),
        cutOff(found.points.length + found.refused, found.of, "measured candidates"));
    }
    return h("section", { key: row.device_id }, parts);
  });
}

// ---- one candidate ----

export const candidate = {
  title: () => "Candidate",
  path: (query, id) => {
    const [workloadId, candidateId] = id.split("/");
    return [`/v1/dashboard/workloads/${encodeURIComponent(workloadId)}/candidates/${encodeURIComponent(candidateId || "-")}`, query];
  },
  draw: drawCandidate,
};

function drawCandidate(data, context) {
  const best = data.best;
  const factor = best && best.mine_secs ? best.mine_secs / best.secs : null;
  return [
    h("h1", {}, `Candidate ${data.candidate_id.slice(0, 12)}`),
    h("p", {}, "Of ", h("a", { href: `#/workload/${encodeURIComponent(data.workload_id)}` }, short(data.workload.name, 160)), `, dialect ${data.dialect || "not known"}. Id: `, h("code", {}, data.candidate_id)),
    h("h2", {}, "Measurements"),
    plainTable("Measurements", ["Device", "Outcome", "Latency", "Repeats", "Origin", "When"],
      data.records.map((one) => [h("a", { href: `#/device/${encodeURIComponent(one.device_id)}` }, one.device_id), [one.outcome.replaceAll("_", " "), one.marks.length ? h("span", { class: "sub" }, one.marks.join(", ").replaceAll("_", " ")) : null, one.error ? h("span", { class: "sub why", title: one.error }, short(one.error.trim().split("\n").pop(), 100)) : null], latency(one.latency_secs), [one.run_secs.map(latency).join(", ") || "none", h("span", { class: "sub" }, `${count(one.number)} runs a repeat${one.interval ? `, interval ${percent(one.interval)}` : ""}${one.warmup_secs.length ? `, warm-up ${one.warmup_secs.map(latency).join(", ")}` : ""}`)], [one.origin, h("span", { class: "sub" }, `attempt ${one.attempt}`)], moment(one.measured_at)]), [2]),
    cutOff(data.records.length, data.records_of, "measurements"),
    cutOff(data.devices_seen, data.devices_of, "devices that measured the workload"),
    h("h2", {}, "Schedule beside the best one"),
    best && best.candidate_id === data.candidate_id ? h("p", { class: "lede" }, `This is the best candidate of ${best.device_id}: ${latency(best.secs)}.`) : null,
    best && best.candidate_id !== data.candidate_id ? h("p", { class: "lede" }, `The best on ${best.device_id} is `, h("a", { href: `#/candidate/${encodeURIComponent(`${data.workload_id}/${best.candidate_id}`)}?best_on=${encodeURIComponent(best.device_id)}` }, best.candidate_id.slice(0, 10)), ` with ${latency(best.secs)}${factor ? `; this one takes ${factor.toFixed(2)} times as long` : ""}.`) : null,
    schedules(data),
    h("h2", {}, "Reproduce it"),
    data.script ? [h("p", { class: "note" }, "Needs apache-tvm only."), h("p", {}, h("button", { type: "button", onclick: (event) => copy(event.currentTarget, data.script) }, "Copy the script")), h("pre", { tabindex: "0" }, data.script)] : empty(`There is no script: ${data.why_no_script}.`),
  ];
}

function schedules(data) {
  const { rows, different, of } = data.schedules;
  const isAlone = !data.best || data.best.candidate_id === data.candidate_id;
  if (isAlone) return h("pre", { tabindex: "0" }, rows.map((row) => row[0] ?? row[1]).join("\n"));
  const shown = rows.filter((row, place) => row[2] || rows[place - 1]?.[2] || rows[place + 1]?.[2]);
  return [
    h("p", { class: "note" }, `${count(different)} of ${count(of)} lines differ; these and their neighbours are shown.`),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Schedules" },
      h("table", { class: "schedules" }, h("caption", { class: "quiet" }, "Two schedules side by side"),
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "This one"), h("th", { scope: "col" }, "The best one"))),
        h("tbody", {}, shown.map(([mine, other, isOther], place) => h("tr", { key: `s${place}`, class: isOther ? "changed" : null }, h("td", {}, h("code", {}, mine ?? "")), h("td", {}, h("code", {}, other ?? ""))))))),
    cutOff(rows.length, of, "lines"),
  ];
}

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Select the text below to copy it";
  }
}
