// Workloads, one workload with the matrix of its candidates and devices, and one candidate.

import { h, link } from "./dom.js";
import { legend, plot, spreadBar } from "./charts.js";
import { count, latency, latencyOf, moment, percent, score, short, words } from "./format.js";
import { cutOff, empty, loading, note, pages, plainTable, sub, table, tiles } from "./lists.js";
import { digestNote } from "./fleet.js";

export const workloads = { title: () => "Workloads", path: (query) => ["/v1/dashboard/workloads", query], draw: drawWorkloads };

function drawWorkloads(data, context) {
  const best = latencyOf(data.rows.map((row) => row.best_secs));
  return [
    h("h1", {}, "Workloads"),
    digestNote(data.digest),
    data.total === 0 && data.digest.state === "loading" ? null : table(data, context, {
      columns: [
        { name: "Workload", key: "name", cell: (row) => [link("workload", row.workload_id, short(row.name, 120)), row.networks ? sub(short(row.networks, 90)) : null] },
        { name: "Operator", key: "operator", level: 2, cell: (row) => row.operator || "–" },
        { name: "MFLOP", key: "flops", number: true, level: 2, cell: (row) => (row.flops ? megaflops(row.flops) : "–") },
        { name: "Devices", key: "devices", number: true, cell: (row) => count(row.devices) },
        { name: "Records", key: "records", number: true, cell: (row) => count(row.records) },
        { name: "Failed", key: "failed", number: true, level: 2, cell: (row) => percent(row.failed_share, 1) },
        { name: "Best", key: "best", number: true, level: 2, cell: (row) => [best(row.best_secs), row.best_device ? sub(row.best_device) : null] },
      ],
      label: "Workloads",
      empty: "No record is in the store yet, so there are no workloads.",
    }),
  ];
}

const megaflops = (flops) => (flops / 1e6).toPrecision(3);

const predictions = new Map(); // by workload and device

export const workload = {
  title: () => "Workload",
  path: (query, id) => [`/v1/dashboard/workloads/${encodeURIComponent(id)}`, query],
  draw: drawWorkload,
};

function drawWorkload({ workload: about, workload_id: id, devices, matrix }, context) {
  const spreads = devices.rows.map((row) => row.spread).filter(Boolean);
  const [low, high] = [Math.min(...spreads.map((spread) => spread[0])), Math.max(...spreads.map((spread) => spread[4]))];
  const best = latencyOf(devices.rows.map((row) => row.best_secs));
  const spread = ({ spread: quantiles }) => {
    if (!quantiles) return "none ran";
    const [least, , middle, , most] = quantiles.map((secs) => latency(secs));
    return spreadBar({ quantiles, low, high, label: `${least} to ${most}, median ${middle}` });
  };
  const shapes = (about.shapes || []).map((shape) => shape.join("×")).join(", ");
  const size = about.flops ? `${megaflops(about.flops)} MFLOP` : "";
  const share = percent(matrix.of ? matrix.filled / matrix.of : 0, 0);
  return [
    h("h1", {}, short(about.name, 200)),
    note([about.operator, shapes, size, about.networks].filter(Boolean).join(" · ")),
    h("h2", {}, "Devices"),
    note("Spread: least, quartiles and most of all measured candidates, on one logarithmic scale."),
    table(devices, context, {
      columns: [
        { name: "Device", key: "device", cell: (row) => link("device", row.device_id, row.device_id) },
        { name: "Records", key: "records", number: true, level: 2, cell: (row) => count(row.records) },
        { name: "Best", key: "best", number: true, cell: (row) => best(row.best_secs) },
        { name: "Spread", cell: spread },
        { name: "Predicted", cell: (row) => h("button", { type: "button", onclick: () => predict(id, row.device_id, context) }, "Score") },
      ],
      label: "Devices of this workload",
      empty: "No device has measured it.",
    }),
    devices.rows.map((row) => predictionPart(predictions.get(`${id} ${row.device_id}`), row.device_id)),
    h("h2", {}, "Candidates"),
    note(`Candidates by device, the fastest first. ${count(matrix.filled)} of ${count(matrix.of)} cells on these devices are measured (${share}).`),
    grid(id, matrix, context),
  ];
}

function grid(workloadId, matrix, { go }) {
  if (!matrix.total) return empty("No candidate was measured on these devices.");
  const inUnit = latencyOf(matrix.rows.flatMap((row) => row.cells));
  const cell = (value) => {
    if (value === null) return h("span", { class: "none", title: "not measured" }, "·");
    return typeof value === "number" ? inUnit(value) : h("span", { class: "soft" }, words(value));
  };
  const rows = matrix.rows.map(({ candidate_id: id, speed, cells }) => {
    const device = matrix.devices[cells.findIndex((value) => value !== null)];
    return [candidateLink(workloadId, id, device), speed === null ? "–" : speed.toFixed(2), ...cells.map(cell)];
  });
  const last = Math.min(matrix.offset + matrix.size, matrix.total);
  const isAll = matrix.total <= matrix.size;
  const text = isAll ? `All ${count(matrix.total)} candidates` : `Candidates ${count(matrix.offset + 1)} to ${count(last)} of ${count(matrix.total)}`;
  return [
    h("div", { class: "cells" }, plainTable("Candidates by device", ["Candidate", "Mean speed", ...matrix.devices], rows)),
    pages("candidates", text, isAll ? null : matrix, (offset) => go({ candidates_from: offset })),
  ];
}

function candidateLink(workloadId, id, device) {
  return link("candidate", `${workloadId}/${id}`, id.slice(0, 10), `?best_on=${encodeURIComponent(device)}`);
}

async function predict(workloadId, device, context) {
  const key = `${workloadId} ${device}`;
  predictions.set(key, { state: "loading" });
  try {
    const answer = await context.get(`/v1/dashboard/workloads/${encodeURIComponent(workloadId)}/predictions`, { device });
    predictions.set(key, { state: "ready", ...answer });
  } catch (error) {
    predictions.set(key, { state: "failed", reason: error.message });
  }
  context.refresh();
}

function predictionPart(prediction, device) {
  if (!prediction) return null;
  const title = h("h3", {}, `Predicted against measured on ${device}`);
  if (prediction.state === "loading") return [title, loading("The champion scores the candidates; the first time takes some seconds …")];
  if (prediction.state === "failed") return [title, h("p", { class: "warning" }, prediction.reason)];
  const { version, kendall_tau: tau, top1, points, refused, of } = prediction;
  const axis = (value) => value.toFixed(2);
  const series = [{ place: 0, kind: "dots", points: points.map(([value, speed, id]) => [value, speed, null, null, id]) }];
  return [
    title,
    tiles([["version", version], ["Kendall tau", score(tau)], ["speed of the first choice", score(top1)]]),
    legend(["a candidate"]),
    plot({ label: "Score against measured speed", series, xText: axis, yText: axis, height: 220, xTitle: "score of the champion", yTitle: "speed, of the best one" }),
    note("The head may have learned from these candidates."),
    cutOff(points.length + refused, of, "measured candidates"),
  ];
}

export const candidate = {
  title: () => "Candidate",
  path: (query, id) => {
    const [workloadId, candidateId] = id.split("/");
    return [`/v1/dashboard/workloads/${encodeURIComponent(workloadId)}/candidates/${encodeURIComponent(candidateId || "-")}`, query];
  },
  draw: drawCandidate,
};

function drawCandidate(data) {
  const { best, script } = data;
  return [
    h("h1", {}, `Candidate ${data.candidate_id.slice(0, 12)}`),
    h("p", {}, "Of ", link("workload", data.workload_id, short(data.workload.name, 160)), `, dialect ${data.dialect || "not known"}. Id: `, h("code", {}, data.candidate_id)),
    h("h2", {}, "Measurements"),
    plainTable("Measurements", ["Device", "Outcome", "Latency", "Repeats", "Origin", "When"], data.records.map(recordRow), [2]),
    cutOff(data.records.length, data.records_of, "measurements"),
    cutOff(data.devices_seen, data.devices_of, "devices that measured the workload"),
    h("h2", {}, "Schedule compared with the best one"),
    best ? h("p", { class: "lede" }, besideBest(data)) : null,
    schedules(data),
    h("h2", {}, "Reproduce it"),
    script ? [
      note("Needs apache-tvm only."),
      h("p", {}, h("button", { type: "button", onclick: (event) => copy(event.currentTarget, script) }, "Copy the script")),
      h("pre", { tabindex: "0" }, script),
    ] : empty(`There is no script: ${data.why_no_script}.`),
  ];
}

function recordRow(record) {
  const error = record.error ? h("span", { class: "sub why", title: record.error }, short(record.error.trim().split("\n").pop(), 100)) : null;
  const list = (secs) => secs.map((value) => latency(value)).join(", ");
  const interval = record.interval ? `, interval ${percent(record.interval)}` : "";
  const warmup = record.warmup_secs.length ? `, warm-up ${list(record.warmup_secs)}` : "";
  return [
    link("device", record.device_id, record.device_id),
    [words(record.outcome), record.marks.length ? sub(words(record.marks.join(", "))) : null, error],
    latency(record.latency_secs),
    [list(record.run_secs) || "none", sub(`${count(record.number)} runs per repeat${interval}${warmup}`)],
    [record.origin, sub(`attempt ${record.attempt}`)],
    moment(record.measured_at),
  ];
}

function besideBest({ best, candidate_id: id, workload_id: workloadId }) {
  if (best.candidate_id === id) return `This is the best candidate of ${best.device_id}: ${latency(best.secs)}.`;
  const factor = best.mine_secs ? `; this one takes ${(best.mine_secs / best.secs).toFixed(2)} times as long` : "";
  return [`The best on ${best.device_id} is `, candidateLink(workloadId, best.candidate_id, best.device_id), ` with ${latency(best.secs)}${factor}.`];
}

function schedules({ best, candidate_id: id, schedules: { rows, different, of } }) {
  if (!best || best.candidate_id === id) return h("pre", { tabindex: "0" }, rows.map(([mine, other]) => mine ?? other).join("\n"));
  const near = rows.filter((row, place) => row[2] || rows[place - 1]?.[2] || rows[place + 1]?.[2]);
  const cells = near.map(([mine, other, isOther]) => {
    const line = (text) => h("code", { class: isOther ? "changed" : null }, text ?? "");
    return [line(mine), line(other)];
  });
  return [
    note(`${count(different)} of ${count(of)} lines differ, numbers of loops and blocks aside; these and their neighbours are shown.`),
    h("div", { class: "schedules" }, plainTable("Schedules", ["This one", "The best one"], cells)),
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
