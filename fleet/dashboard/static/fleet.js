// The fleet: a row a device, those that need somebody first.

import { h, say } from "./dom.js";
import { sparkline } from "./charts.js";
import { ago, count, moment, percent, rate, score, short } from "./format.js";
import { loading, table, tiles } from "./lists.js";

export const title = () => "Fleet";

export function path(query) {
  return ["/v1/dashboard/fleet", query];
}

export function draw(data, context) {
  const { counts, coordinator, store, digest } = data;
  const people = counts.broken + counts.doubtful;
  say(people ? `${people} of ${counts.devices} devices need somebody` : `No device of ${counts.devices} needs anybody`);
  return [
    h("h1", {}, "Fleet"),
    coordinator.state === "running" ? null : h("p", { class: "warning" }, stateText(coordinator.state)),
    tiles([
      ["devices", count(counts.devices)],
      ["need somebody", count(people), people ? "bad" : null],
      ["records", count(store.records)],
      ["records per s", rate(counts.records_per_s)],
      ["served by a model", count(counts.served)],
      ["jobs at work, waiting", `${count(data.jobs.leased)}, ${count(data.jobs.queued)}`],
    ]),
    digestNote(digest),
    table({
      list: data,
      columns: columns(data.now, digest),
      query: context.query,
      go: context.go,
      label: "Devices",
      empty: "No device is in this fleet yet. Write one with: fleet init, or put a file into configs/hardware.",
      rowKey: (row) => row.device_id,
      rowClass: (row) => `attention-${row.attention.name}`,
    }),
  ];
}

function stateText(state) {
  return state === "disk_full"
    ? "The disk is full: no lease is granted until there is room."
    : `The coordinator is ${state}.`;
}

/** What is read of the store so far: noise, drift and errors come from there. */
export function digestNote(digest) {
  if (digest.state === "ready") return null;
  if (digest.state === "failed") return h("p", { class: "warning" }, `The store cannot be read: ${digest.reason}`);
  const part = digest.of ? `${count(digest.done)} of ${count(digest.of)} records` : "beginning";
  return loading(`Reading the store for noise, drift and errors: ${part} …`);
}

function columns(now, digest) {
  const waiting = digest.state === "failed" ? "not read" : "…";
  const of = (row, text) => (row.digest === "ready" ? text() : row.digest === "empty" ? "–" : h("span", { class: "soft", title: "being read" }, waiting));
  return [
    { name: "Device", key: "device", cell: (row) => [h("a", { href: `#/device/${encodeURIComponent(row.device_id)}` }, row.device_id), h("span", { class: "sub" }, `${row.kind} ${row.family}`)] },
    { name: "State", key: "attention", help: "Sorts by what needs attention first", cell: (row) => [state(row), row.attention.reason ? h("span", { class: "sub why" }, short(row.attention.reason, 160)) : null] },
    { name: "Records", key: "records", number: true, level: 2, cell: (row) => [count(row.records), row.failed ? h("span", { class: "sub" }, `${count(row.failed)} failed`) : null] },
    { name: "Per s", key: "rate", number: true, cell: (row) => rate(row.records_per_s) },
    { name: "Last 2 h", level: 2, cell: (row) => of(row, () => sparkline(row.spark, sparkText(row.spark))) },
    { name: "Noise floor", key: "noise", number: true, level: 2, help: "Median change when the same programs are measured twice (A/A runs)", cell: (row) => of(row, () => noise(row.noise)) },
    { name: "Drift", key: "suspect", number: true, level: 3, help: "Share of the last 128 records that were measured while the canaries ran at another speed", cell: (row) => of(row, () => percent(row.suspect_share, 0)) },
    { name: "Champion", key: "champion", level: 3, cell: champion },
    { name: "Top-1", key: "top1", number: true, level: 2, help: "Speed of the model's first choice over the best one, on held-out workloads, with its 90 % interval", cell: figure },
    { name: "Last record", key: "last", level: 3, cell: (row) => h("span", { title: moment(row.last_record_at) }, ago(row.last_record_at, now)) },
    { name: "Last error", level: 3, cell: (row) => of(row, () => error(row.last_error, now)) },
  ];
}

export function state(row) {
  return h("span", { class: `state state-${row.state}` }, row.state.replaceAll("_", " "));
}

function sparkText(values) {
  const sum = values.reduce((all, one) => all + one, 0);
  return `${count(sum)} records in the last two hours, ${count(values[values.length - 1])} in the last five minutes`;
}

function noise(found) {
  return found ? [percent(found.median_change, 2), h("span", { class: "sub" }, `${count(found.pairs)} pairs`)] : "–";
}

function champion(row) {
  if (!row.champion) return "–";
  const notes = [row.model_kind && row.model_kind !== "fleet_tlp" ? row.model_kind : "", row.pinned ? "pinned" : ""].filter(Boolean);
  return [row.champion, notes.length ? h("span", { class: "sub" }, notes.join(", ")) : null];
}

export function figure(row) {
  const found = row.score;
  if (!found) return row.champion ? h("span", { class: "soft" }, "not judged") : "–";
  const name = { top1: "", top5: "top-5", pairs: "pairs right" }[found.name];
  return [score(found.value), h("span", { class: "sub" }, `${name ? `${name}, ` : ""}${score(found.low)} to ${score(found.high)}`)];
}

function error(found, now) {
  if (!found) return "–";
  return [found.outcome.replaceAll("_", " "), h("span", { class: "sub why", title: found.text }, `${ago(found.at, now)}: ${short(found.text.split("\n").pop(), 80) || "no message"}`)];
}
