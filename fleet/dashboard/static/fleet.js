// The fleet: one row per device, the most urgent first.

import { h, link, announce } from "./dom.js";
import { sparkline } from "./charts.js";
import { ago, count, moment, percent, rate, score, short, words } from "./format.js";
import { coded, loading, state, sub, table, tiles } from "./lists.js";

export const title = () => "Fleet";
export const path = (query) => ["/v1/dashboard/fleet", query];

export function draw(data, context) {
  const { counts, coordinator, store, digest } = data;
  const urgent = counts.broken + counts.doubtful;
  announce(urgent ? `${urgent} of ${counts.devices} devices need attention` : `None of ${counts.devices} devices needs attention`);
  return [
    h("h1", {}, "Fleet"),
    coordinator.state === "running" ? null : h("p", { class: "warning" }, stateText(coordinator.state)),
    tiles([
      ["devices", count(counts.devices)],
      ["need attention", count(urgent), urgent ? "bad" : null],
      ["records", count(store.records)],
      ["records per s", rate(counts.records_per_s)],
      ["served by a model", count(counts.served)],
      ["jobs running, waiting", `${count(data.jobs.leased)}, ${count(data.jobs.queued)}`],
    ]),
    digestNote(digest),
    table(data, context, {
      columns: columns(data.now, digest),
      label: "Devices",
      empty: "This fleet has no device yet. Write device files with: fleet init, or put one into configs/hardware.",
      rowClass: (row) => `attention-${row.attention.name}`,
    }),
  ];
}

function stateText(name) {
  return name === "disk_full" ? "The disk is full: no job starts until there is space." : `The coordinator is ${name}.`;
}

/** Whether the store is read: noise, drift and errors come from there. */
export function digestNote(digest) {
  if (digest.state === "ready") return null;
  if (digest.state === "failed") return h("p", { class: "warning" }, `The store cannot be read: ${digest.reason}`);
  return loading("Reading the store for noise, drift and errors …");
}

function columns(now, digest) {
  const waiting = digest.state === "failed" ? "not read" : "…";
  const of = (row, text) => (row.digest === "ready" ? text() : row.digest === "empty" ? "–" : h("span", { class: "soft", title: "being read" }, waiting));
  return [
    { name: "Device", key: "device", cell: (row) => [link("device", row.device_id, row.device_id), sub(`${row.kind} ${row.family}`)] },
    { name: "State", key: "attention", help: "Sorts by what needs attention first", cell: (row) => [state(row.state), ...attention(row.attention)] },
    { name: "Records", key: "records", number: true, level: 2, cell: (row) => [count(row.records), row.failed ? sub(`${count(row.failed)} failed`) : null] },
    { name: "Per s", key: "rate", number: true, cell: (row) => rate(row.records_per_s) },
    { name: "Last 2 h", level: 2, cell: (row) => of(row, () => sparkline(row.spark, sparkText(row.spark))) },
    { name: "Noise floor", key: "noise", number: true, level: 2, help: "Median change when the same programs are measured twice (A/A runs)", cell: (row) => of(row, () => noise(row.noise)) },
    { name: "Drift", key: "suspect", number: true, level: 3, help: "Share of the last 128 records with too few undisturbed repeats", cell: (row) => of(row, () => percent(row.suspect_share, 0)) },
    { name: "Active model", key: "champion", level: 3, cell: champion },
    { name: "Top-1", key: "top1", number: true, level: 2, help: "Speed of the model's first choice, as a share of the best speed, on held-out workloads, with its 90 % interval", cell: figure },
    { name: "Last record", key: "last", level: 3, cell: (row) => h("span", { title: moment(row.last_record_at) }, ago(row.last_record_at, now)) },
    { name: "Last error", level: 3, cell: (row) => of(row, () => error(row.last_error, now)) },
  ];
}

/** Why a device is not in order, and what a person may do. */
export function attention({ reason, step }) {
  return [
    reason ? h("span", { class: "sub why" }, short(reason, 160)) : null,
    step ? h("span", { class: "sub step" }, "Next: ", coded(step)) : null,
  ];
}

function sparkText(values) {
  const sum = values.reduce((all, value) => all + value, 0);
  return `${count(sum)} records in the last two hours, ${count(values[values.length - 1])} in the last five minutes`;
}

function noise(floor) {
  return floor ? [percent(floor.median_change, 2), sub(`${count(floor.pairs)} pairs`)] : "–";
}

function champion(row) {
  if (!row.champion) return "–";
  const kind = row.model_kind === "fleet_tlp" ? "" : row.model_kind;
  const notes = [kind, row.shipped ? "shipped model" : "", row.pinned ? "pinned" : ""].filter(Boolean);
  return [row.champion, notes.length ? sub(notes.join(", ")) : null];
}

export function figure({ score: judged, champion: version }) {
  if (!judged) return version ? h("span", { class: "soft" }, "not judged") : "–";
  const name = judged.name === "top1" ? "" : `${judged.name.replace("top", "top-")}, `;
  const chance = judged.random == null ? "" : `; random choice ${score(judged.random)}`;
  const rivals = Object.entries(judged.rivals || {}).map(([rival, value]) => `; ${rival} ${score(value)}`);
  return [score(judged.value), sub(`${name}${score(judged.low)} to ${score(judged.high)}${chance}`, rivals)];
}

function error(last, now) {
  if (!last) return "–";
  const text = short(last.text.split("\n").pop(), 80) || "no message";
  return [words(last.outcome), h("span", { class: "sub why", title: last.text }, `${ago(last.at, now)}: ${text}`)];
}
