// Two devices, days or versions side by side; what is within the noise is hidden by one switch.

import { h, link } from "./dom.js";
import { count, latencyOf, percent, score, signedPercent } from "./format.js";
import { coded, empty, note, table } from "./lists.js";

export const title = () => "Compare";

export const path = (query) => ["/v1/dashboard/compare", query];

export function draw(data, context) {
  return [
    h("h1", {}, "Compare"),
    choice(data, context),
    data.summary ? result(data, context) : empty("Choose two devices, two days of one device (DEVICE@2026-11-24), or two model versions."),
  ];
}

function choice({ versions, devices }, { query, go }) {
  const submit = (event) => {
    event.preventDefault();
    const [before, after] = event.currentTarget.querySelectorAll("input[type=text]");
    go({ before: before.value.trim(), after: after.value.trim(), offset: 0, sort: "", text: "" });
  };
  const field = { type: "text", list: "comparable", maxlength: "180", spellcheck: "false", autocomplete: "off", required: true };
  const input = (label, value) => h("label", {}, label, h("input", { ...field, value: value || "" }));
  const options = [...[...versions].reverse(), ...devices].map((name) => h("option", { value: name }));
  return h("form", { class: "choice", onsubmit: submit },
    input("Before, or the first", query.before), input("After, or the second", query.after),
    h("datalist", { id: "comparable" }, options), h("button", { type: "submit" }, "Compare"));
}

function result(data, context) {
  const { significant, insignificant, unknown, threshold } = data.summary;
  const all = significant + insignificant + unknown;
  const notes = data.notes.map((text) => note(coded(text)));
  if (all === 0) return [h("p", { class: "lede" }, "Nothing can be compared."), notes];
  const isAll = context.query.all === "true";
  const flip = (event) => context.go({ all: event.target.checked ? "true" : "", offset: 0 });
  const doubt = unknown ? `, and of ${count(unknown)} the noise is not known` : "";
  const within = isAll ? `${count(insignificant)} shown` : `${count(data.hidden)} hidden`;
  return [
    h("p", { class: "lede" }, `${count(significant)} of ${count(all)} changes are significant, ${count(insignificant)} are within the noise${doubt}.`),
    notes,
    note(`Severity is the change divided by the noise of its series. From ${threshold.toFixed(1)} on it is significant: 1 of 370 comparisons is by chance.`),
    h("p", {}, h("label", { class: "check" }, h("input", { type: "checkbox", checked: isAll, onchange: flip }), ` Show changes within the noise (${within})`)),
    table(data, context, {
      columns: columns(data.sides, data.rows),
      label: "Changes",
      empty: `All ${count(data.hidden)} changes are within the noise. The switch above shows them.`,
      rowClass: (row) => (row.is_significant === false ? "hidden-change" : null),
    }),
  ];
}

function columns(sides, rows) {
  const latency = latencyOf(rows.filter((row) => row.unit === "s").flatMap((row) => [row.before, row.after]));
  const value = (row, secs) => ({ s: latency(secs), x: `${secs.toFixed(3)}×` }[row.unit] || score(secs));
  return [
    { name: "Series", key: "name", cell: (row) => (row.kind === "latency" ? link("workload", row.key, row.name) : row.name) },
    { name: sides[0], number: true, level: 2, cell: (row) => value(row, row.before) },
    { name: sides[1], number: true, level: 2, cell: (row) => value(row, row.after) },
    { name: "Change", key: "change", number: true, cell: (row) => signedPercent(row.change) },
    { name: "Noise", number: true, level: 2, cell: (row) => percent(row.noise, 2) },
    { name: "Severity", key: "severity", number: true, cell: (row) => (row.severity === null ? "–" : h(row.is_significant ? "strong" : "span", {}, row.severity.toFixed(1))) },
    { name: "Candidates", key: "pairs", number: true, level: 2, cell: (row) => (row.kind === "latency" ? count(row.pairs) : "–") },
  ];
}
