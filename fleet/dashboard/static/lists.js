// Tables that the server sorts, filters and pages. "None", "none match" and "cut off" are shown in words.

import { h } from "./dom.js";
import { count } from "./format.js";

/**
 * A table with its filter and pager.
 *
 * list: what the server sent (rows, total, matched, offset, size, sort, is_descending, is_last).
 * columns: {name, key (order on the server), cell(row), number, level (1 always, 2 and 3 on wider screens), help}.
 * context: `query`, the parts of the address that choose the rows, and `go(changes)`, which changes them.
 */
export function table(list, { query, go }, { columns, label, empty: nothing, rowClass }) {
  const filter = list.total > 0 || query.text ? filterBox(label, query, go) : null;
  if (list.total === 0) return [filter, empty(nothing)];
  if (list.matched === 0) {
    const showAll = h("button", { type: "button", onclick: () => go({ text: "", offset: 0 }) }, "Show all");
    return [filter, h("p", { class: "empty" }, `None of ${count(list.total)} match “${query.text}”. `, showAll)];
  }
  const heads = columns.map((column) => head(column, list, go));
  const rows = list.rows.map((row) => h("tr", { class: rowClass && rowClass(row) },
    columns.map((column, place) => cell(place, classes(column), column.cell(row)))));
  return [filter, framed(label, heads, rows), pager(list, go, label)];
}

/** A small table that is shown whole: heads and rows of cells; the first cell of a row names it. */
export function plainTable(label, heads, rows, numbers = []) {
  const kind = (place) => (numbers.includes(place) ? "number" : null);
  return framed(label, heads.map((name, place) => h("th", { scope: "col", class: kind(place) }, name)),
    rows.map((row) => h("tr", {}, row.map((content, place) => cell(place, kind(place), content)))), "scroll plain");
}

function framed(label, heads, rows, kind = "scroll") {
  return h("div", { class: kind, tabindex: "0", role: "region", "aria-label": `${label}, table` },
    h("table", {}, h("caption", { class: "quiet" }, label), h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows)));
}

function cell(place, kind, content) {
  return h(place ? "td" : "th", { scope: place ? null : "row", class: kind }, content);
}

function classes(column) {
  return [column.number && "number", column.level && `level-${column.level}`].filter(Boolean).join(" ") || null;
}

function head(column, list, go) {
  const isSorted = column.key && list.sort === column.key;
  const order = isSorted ? (list.is_descending ? "descending" : "ascending") : null;
  const attributes = { scope: "col", class: classes(column), "aria-sort": order, title: column.help };
  if (!column.key) return h("th", attributes, column.name);
  const descending = isSorted ? !list.is_descending : Boolean(column.number);
  const flip = () => go({ sort: column.key, descending, offset: 0 });
  return h("th", attributes, h("button", { type: "button", class: "sort", onclick: flip }, column.name,
    h("span", { "aria-hidden": "true" }, { ascending: " ▲", descending: " ▼" }[order] || "")));
}

function filterBox(label, query, go) {
  let timer = 0;
  const changed = (event) => {
    clearTimeout(timer);
    const text = event.target.value;
    timer = setTimeout(() => go({ text, offset: 0 }), 250);
  };
  const input = { type: "search", placeholder: "Filter", value: query.text || "", maxlength: "200", oninput: changed, autocomplete: "off", spellcheck: "false" };
  return h("p", { class: "filter" }, h("label", {}, h("span", { class: "quiet" }, `Filter: ${label}`), h("input", input)));
}

function pager(list, go, label) {
  const last = Math.min(list.offset + list.rows.length, list.matched);
  const of = list.matched === list.total ? count(list.total) : `${count(list.matched)} that match, of ${count(list.total)}`;
  const text = list.rows.length ? `Rows ${count(list.offset + 1)} to ${count(last)} of ${of}` : `No row here; there are ${of}`;
  const isAll = list.offset === 0 && list.is_last;
  return pages(label, isAll ? `All ${of}` : text, isAll ? null : list, (offset) => go({ offset }));
}

/** A line about a part of a list, and buttons to the other parts; without them if `list` is null. */
export function pages(label, text, list, goTo) {
  const button = (name, isOn, offset) => h("button", { type: "button", disabled: !isOn, onclick: () => goTo(offset) }, name);
  return h("nav", { class: "pager", "aria-label": `Pages: ${label}` }, h("span", {}, text), list && [
    button("First", list.offset > 0, 0),
    button("Back", list.offset > 0, Math.max(0, list.offset - list.size)),
    button("Next", !list.is_last, list.offset + list.size),
  ]);
}

/** Words for a part that is cut off at N; nothing if it is whole. */
export function cutOff(shown, total, what) {
  return shown < total ? h("p", { class: "cut" }, `Cut off: ${count(shown)} of ${count(total)} ${what} are shown.`) : null;
}

/** A text of the API whose commands stand between backticks. */
export const coded = (text) => text.split("`").map((part, place) => (place % 2 ? h("code", {}, part) : part));
export const loading = (text) => h("p", { class: "loading", "aria-busy": "true" }, text);
export const empty = (text) => h("p", { class: "empty" }, text);
export const note = (...parts) => h("p", { class: "note" }, parts);
export const sub = (...parts) => h("span", { class: "sub" }, parts);
/** A state of the API as a mark and a word; a leased device is measuring. */
export const state = (name) => h("span", { class: `state state-${name}` }, name === "leased" ? "measuring" : name.replaceAll("_", " "));

export function tiles(entries) {
  return h("dl", { class: "tiles" }, entries.map(([name, value, tone]) => h("div", { class: tone || null }, h("dt", {}, name), h("dd", {}, value))));
}
