// Small drawings. Each has a sentence for those who do not see it; colours are those of the style sheet.

import { h } from "./dom.js";

/** Bars of equal width, the last one for the period that is not over. */
export function sparkline(values, label) {
  const most = Math.max(1, ...values);
  const bars = values.map((value, place) =>
    value ? h("rect", { x: 4 * place, y: 18 - (16 * value) / most, width: 3, height: (16 * value) / most, class: "bar" }) : null);
  return h("svg", { class: "spark", viewBox: `0 0 ${4 * values.length} 19`, role: "img", "aria-label": label },
    h("line", { x1: 0, y1: 18.5, x2: 4 * values.length, y2: 18.5, class: "axis" }), bars);
}

/** Linear scale from values to pixels. */
function scale(low, high, from, to) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

/** Some round values between two; at most `most` of them. */
function ticks(low, high, most) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(value);
  return found;
}

/**
 * Points and lines over two axes.
 *
 * series: {points: [[x, y, low, high, text]], kind: "line" or "dots", place: 0 to 3}; lines: {y, place, text} across all of it.
 */
export function plot({ label, series, xText, yText, height, lines = [] }) {
  const width = 720;
  const points = series.flatMap((one) => one.points);
  if (!points.length) return null;
  const xs = points.map((one) => one[0]);
  const ys = points.flatMap((one) => [one[1], one[2] ?? one[1], one[3] ?? one[1]]).concat(lines.map((one) => one.y));
  const [low, high] = padded(Math.min(...ys), Math.max(...ys));
  const [left, right, top, bottom] = [58, 8, 12, 26];
  const x = scale(Math.min(...xs), Math.max(...xs), left + 6, width - right - 6);
  const y = scale(low, high, height - bottom, top);
  const grid = ticks(low, high, 4).map((value) => [
    h("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "grid" }),
    h("text", { x: left - 6, y: y(value) + 4, class: "tick end" }, yText(value)),
  ]);
  const feet = ticks(Math.min(...xs), Math.max(...xs), 5).map((value) =>
    h("text", { x: x(value), y: height - 8, class: "tick middle" }, xText(value)));
  const drawn = series.map((one) => drawSeries(one, x, y));
  const level = lines.map((one) => h("g", {},
    h("line", { x1: left, x2: width - right, y1: y(one.y), y2: y(one.y), class: `level series-${one.place}` }), h("title", {}, one.text)));
  return h("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, grid, feet, level, drawn);
}

function drawSeries(one, x, y) {
  const tone = `series-${one.place}`;
  const path = one.points.map((point) => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`).join(" ");
  const bars = one.points.filter((point) => point[2] !== undefined && point[2] !== null).map((point) =>
    h("line", { x1: x(point[0]), x2: x(point[0]), y1: y(point[2]), y2: y(point[3]), class: `interval ${tone}` }));
  const dots = one.points.map((point) =>
    h("circle", { cx: x(point[0]).toFixed(1), cy: y(point[1]).toFixed(1), r: one.points.length > 60 ? 2 : 3.2, class: `dot ${tone}` },
      point[4] ? h("title", {}, point[4]) : null));
  return h("g", {}, bars, one.kind === "line" ? h("polyline", { points: path, class: `line ${tone}` }) : null, dots);
}

function padded(low, high) {
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  return [low - room, high + room];
}

/** A bar between quantiles with its median, on a logarithmic scale from `low` to `high`. */
export function spreadBar({ quantiles, low, high, label }) {
  const x = scale(Math.log(low), Math.log(high * 1.0001), 2, 158);
  const [least, first, middle, third, most] = quantiles.map((value) => x(Math.log(value)));
  return h("svg", { class: "spread", viewBox: "0 0 160 16", role: "img", "aria-label": label },
    h("line", { x1: least, x2: most, y1: 8, y2: 8, class: "axis" }),
    h("rect", { x: first, y: 3, width: Math.max(1.5, third - first), height: 10, class: "bar" }),
    h("line", { x1: middle, x2: middle, y1: 1, y2: 15, class: "middle-line" }));
}

export function legend(entries) {
  return h("ul", { class: "legend" }, entries.map(([name, place]) =>
    h("li", { key: name }, h("span", { class: `swatch series-${place}`, "aria-hidden": "true" }), name)));
}
