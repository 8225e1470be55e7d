// Two devices, days or versions side by side; what is within the noise is hidden by one switch.

import { h } from "./dom.js";
import { count, latency, percent, score, signedPercent } from "./format.js";
import { empty, table } from "./lists.js";

export const title = () => "Compare";

let names = null;

export function path(query) {
  if (query.before && query.after) return ["/v1/dashboard/compare", query];
  return ["/v1/dashboard/comparable", {}];
}

export function draw(data, context) {
  if (data.devices) names = data;
  else if (!names) {
    names = { devices: [], versions: [], devices_of: 0 };
    context.get("/v1/dashboard/comparable").then((found) => {
      names = found;
      context.refresh();
    }, () => { names = null; });
  }
  return [
    h("h1", {}, "Compare"),
    choice(context),
    data.summary ? result(data, context) : empty("Choose two devices, two days of one device (DEVICE@2026-11-24), or two model versions."),
  ];
}

function choice({ query, go }) {
  const submit = (event) => {
    event.preventDefault();
    const [before, after] = event.currentTarget.querySelectorAll("input[type=text]");
    go({ before: before.value.trim(), after: after.value.trim(), offset: 0, sort: "", text: "" });
  };
  const input = (label, value) => h("label", {}, label, h("input", { type: "text", list: "comparable", value: value || "", maxlength: "180", spellcheck: "false", autocomplete: "off", required: true }));
  return h("form", { class: "choice", onsubmit: submit },
    input("Before, or the first", query.before), input("After, or the second", query.after),
    h("datalist", { id: "comparable" }, [...(names?.versions || []).slice().reverse(), ...(names?.devices || [])].map((name) => h("option", { key: name, value: name }))),
    h("button", { type: "submit" }, "Compare"));
}

function result(data, context) {
  const { summary } = data;
  const flip = (event) => context.go({ all: event.target.checked ? "true" : "", offset: 0 });
  const all = summary.significant + summary.insignificant + summary.unknown;
  return [
    h("p", { class: "lede" }, all === 0 ? "Nothing can be compared." : `${count(summary.significant)} of ${count(all)} changes are significant, ${count(summary.insignificant)} are within the noise${summary.unknown ? `, and of ${count(summary.unknown)} the noise is not known` : ""}.`),
    data.notes.map((note) => h("p", { class: "note" }, note.split("`").map((part, place) => (place % 2 ? h("code", {}, part) : part)))),
    all === 0 ? null : h("p", { class: "note" }, `Severity is the change over the noise of its own series. From ${summary.threshold.toFixed(1)} on it is significant: 1 of 370 comparisons is by chance.`),
    all === 0 ? null : h("p", {}, h("label", { class: "check" }, h("input", { type: "checkbox", checked: context.query.all === "true", onchange: flip }), ` Show changes within the noise (${count(data.hidden || (context.query.all === "true" ? summary.insignificant : 0))} ${context.query.all === "true" ? "shown" : "hidden"})`)),
    all === 0 ? null : table({
      list: data,
      columns: columns(data),
      query: context.query,
      go: context.go,
      label: "Changes",
      empty: `All ${count(data.hidden)} changes are within the noise. The switch above shows them.`,
      rowKey: (row) => row.key,
      rowClass: (row) => (row.is_significant === false ? "hidden-change" : null),
    }),
  ];
}

function columns(data) {
  const value = (row, secs) => (row.unit === "s" ? latency(secs) : row.unit === "x" ? `${secs.toFixed(3)}×` : score(secs));
  return [
    { name: "Series", key: "name", cell: (row) => (row.kind === "latency" ? h("a", { href: `#/workload/${encodeURIComponent(row.key)}` }, row.name) : row.name) },
    { name: data.sides[0], number: true, level: 2, cell: (row) => value(row, row.before) },
    { name: data.sides[1], number: true, level: 2, cell: (row) => value(row, row.after) },
    { name: "Change", key: "change", number: true, cell: (row) => signedPercent(row.change) },
    { name: "Noise", number: true, level: 2, cell: (row) => (row.noise === null ? "–" : percent(row.noise, 2)) },
    { name: "Severity", key: "severity", number: true, cell: (row) => (row.severity === null ? "–" : h(row.is_significant ? "strong" : "span", {}, row.severity.toFixed(1))) },
    { name: "Candidates", key: "pairs", number: true, level: 2, cell: (row) => (row.kind === "latency" ? count(row.pairs) : "–") },
  ];
}
