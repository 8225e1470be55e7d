// Tables that the server sorts, filters and pages. "None", "none match" and "cut off" are said in words.

import { h } from "./dom.js";
import { count } from "./format.js";

/**
 * A table with its filter and pager.
 *
 * list: what the server sent (rows, total, matched, offset, size, sort, is_descending, is_last).
 * columns: {name, key (order on the server), cell(row), number, level (1 always, 2 and 3 on wider screens), help}.
 * query: the parts of the address that say what is shown; go(changes) changes them.
 */
export function table({ list, columns, query, go, label, empty, rowKey, rowClass }) {
  const parts = [];
  if (list.total > 0 || query.text) parts.push(filterBox(label, query, go));
  if (list.total === 0) return [...parts, h("p", { class: "empty" }, empty)];
  if (list.matched === 0) {
    return [
      ...parts,
      h("p", { class: "empty" }, `None of ${count(list.total)} match “${query.text}”. `,
        h("button", { type: "button", onclick: () => go({ text: "", offset: 0 }) }, "Show all")),
    ];
  }
  const heads = columns.map((column) => head(column, list, go));
  const rows = list.rows.map((row) =>
    h("tr", { key: rowKey(row), class: rowClass ? rowClass(row) : null },
      columns.map((column, place) =>
        h(place ? "td" : "th", { scope: place ? null : "row", class: classes(column) }, column.cell(row)))));
  parts.push(
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${label}, table` },
      h("table", {}, h("caption", { class: "quiet" }, label), h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows))),
    pager(list, go, label));
  return parts;
}

function classes(column) {
  return [column.number && "number", column.level && `level-${column.level}`].filter(Boolean).join(" ") || null;
}

function head(column, list, go) {
  const isSorted = column.key && list.sort === column.key;
  const order = isSorted ? (list.is_descending ? "descending" : "ascending") : null;
  const attributes = { scope: "col", class: classes(column), "aria-sort": order, title: column.help };
  if (!column.key) return h("th", attributes, column.name);
  const flip = () => go({ sort: column.key, descending: isSorted ? !list.is_descending : Boolean(column.number), offset: 0 });
  const arrow = isSorted ? (list.is_descending ? " ▼" : " ▲") : "";
  return h("th", attributes, h("button", { type: "button", class: "sort", onclick: flip }, column.name,
    h("span", { "aria-hidden": "true" }, arrow)));
}

function filterBox(label, query, go) {
  let timer = 0;
  const changed = (event) => {
    clearTimeout(timer);
    const text = event.target.value;
    timer = setTimeout(() => go({ text, offset: 0 }), 250);
  };
  return h("p", { class: "filter" },
    h("label", {}, h("span", { class: "quiet" }, `Filter: ${label}`),
      h("input", { type: "search", placeholder: "Filter", value: query.text || "", maxlength: "200", oninput: changed,
        autocomplete: "off", spellcheck: "false" })));
}

function pager(list, go, label) {
  const first = list.offset + 1;
  const last = Math.min(list.offset + list.rows.length, list.matched);
  const of = list.matched === list.total ? count(list.total) : `${count(list.matched)} that match, of ${count(list.total)}`;
  const button = (name, isOn, offset) =>
    h("button", { type: "button", disabled: !isOn, onclick: () => go({ offset }) }, name);
  const isAll = list.offset === 0 && list.is_last;
  return h("nav", { class: "pager", "aria-label": `Pages: ${label}` },
    h("span", {}, isAll ? `All ${of}` : list.rows.length ? `Rows ${count(first)} to ${count(last)} of ${of}` : `No row here; there are ${of}`),
    isAll ? null : [
      button("First", list.offset > 0, 0),
      button("Back", list.offset > 0, Math.max(0, list.offset - list.size)),
      button("On", !list.is_last, list.offset + list.size),
    ]);
}

/** A small table that is shown whole: heads and rows of cells; the first cell of a row names it. */
export function plainTable(label, heads, rows, numbers = []) {
  const kind = (place) => (numbers.includes(place) ? "number" : null);
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${label}, table` },
    h("table", {}, h("caption", { class: "quiet" }, label),
      h("thead", {}, h("tr", {}, heads.map((name, place) => h("th", { scope: "col", class: kind(place) }, name)))),
      h("tbody", {}, rows.map((row, number) =>
        h("tr", { key: `r${number}` }, row.map((cell, place) => h(place ? "td" : "th", { scope: place ? null : "row", class: kind(place) }, cell)))))));
}

/** Words for a part that is cut off at N; nothing where it is whole. */
export function cutOff(shown, total, what) {
  return shown < total ? h("p", { class: "cut" }, `Cut off: ${count(shown)} of ${count(total)} ${what} are shown.`) : null;
}

/** Words for a part that is not there yet. */
export function loading(text) {
  return h("p", { class: "loading", "aria-busy": "true" }, text);
}

export function empty(text) {
  return h("p", { class: "empty" }, text);
}

export function tiles(pairs) {
  return h("dl", { class: "tiles" }, pairs.map(([name, value, tone]) =>
    h("div", { key: name, class: tone || null }, h("dt", {}, name), h("dd", {}, value))));
}
