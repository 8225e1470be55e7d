// Small drawings. Each has a sentence for those who do not see it; colours are those of the style sheet.

import { h } from "./dom.js";

const [LEFT, RIGHT, TOP, BOTTOM] = [58, 8, 22, 38];
/** A phone gets a smaller drawing with fewer ticks, so that texts keep their size. */
const isNarrow = matchMedia("(max-width: 48rem)");

/** Bars of equal width, the last one for the period that is not over. */
export function sparkline(values, label) {
  const most = Math.max(1, ...values);
  const bars = values.map((value, place) => {
    const height = (16 * value) / most;
    return value ? h("rect", { x: 4 * place, y: 18 - height, width: 3, height, class: "bar" }) : null;
  });
  return h("svg", { class: "spark", viewBox: `0 0 ${4 * values.length} 19`, role: "img", "aria-label": label },
    h("line", { x1: 0, y1: 18.5, x2: 4 * values.length, y2: 18.5, class: "axis" }), bars);
}

/** Linear scale from values to pixels. */
function scale(low, high, from, to) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

/** Some round values between two; about `most` of them. */
function ticks(low, high, most) {
  if (!(high > low)) return [low];
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const values = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) values.push(value);
  return values;
}

/**
 * Points and lines over two axes.
 *
 * series: {points: [[x, y, low, high, text]], kind: "line" or "dots", place: 0 to 3}; level: {y, text} across all of it.
 */
export function plot({ label, series, xText, yText, xTitle, yTitle, height, level = null }) {
  const points = series.flatMap((each) => each.points);
  if (!points.length) return null;
  const xs = points.map((point) => point[0]);
  const ys = points.flatMap(([, y, low, high]) => [y, low ?? y, high ?? y]).concat(level ? [level.y] : []);
  const room = (Math.max(...ys) - Math.min(...ys) || Math.abs(ys[0]) || 1) * 0.08;
  const [low, high] = [Math.min(...ys) - room, Math.max(...ys) + room];
  const [WIDTH, mostTicks] = isNarrow.matches ? [390, 3] : [720, 5];
  const x = scale(Math.min(...xs), Math.max(...xs), LEFT + 6, WIDTH - RIGHT - 6);
  const y = scale(low, high, height - BOTTOM, TOP);
  const across = { x1: LEFT, x2: WIDTH - RIGHT };
  const grid = ticks(low, high, 4).map((value) => [
    h("line", { ...across, y1: y(value), y2: y(value), class: "grid" }),
    h("text", { x: LEFT - 6, y: y(value) + 4, class: "tick end" }, yText(value)),
  ]);
  const feet = [
    ticks(Math.min(...xs), Math.max(...xs), mostTicks).map((value) =>
      h("text", { x: x(value), y: height - BOTTOM + 15, class: "tick middle" }, xText(value))),
    h("text", { x: WIDTH - RIGHT, y: height - 5, class: "tick end" }, xTitle),
    h("text", { x: 2, y: 12, class: "tick" }, yTitle),
  ];
  const line = level && h("g", {}, h("line", { ...across, y1: y(level.y), y2: y(level.y), class: "level series-3" }), h("title", {}, level.text));
  return h("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label },
    grid, feet, line, series.map((each) => drawSeries(each, x, y)));
}

function drawSeries({ points, kind, place }, x, y) {
  const tone = `series-${place}`;
  const path = points.map((point) => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`).join(" ");
  const intervals = points.filter((point) => (point[2] ?? null) !== null).map((point) =>
    h("line", { x1: x(point[0]), x2: x(point[0]), y1: y(point[2]), y2: y(point[3]), class: `interval ${tone}` }));
  const dots = points.map((point) =>
    h("circle", { cx: x(point[0]).toFixed(1), cy: y(point[1]).toFixed(1), r: points.length > 60 ? 2 : 3.2, class: `dot ${tone}` },
      point[4] ? h("title", {}, point[4]) : null));
  return h("g", {}, intervals, kind === "line" ? h("polyline", { points: path, class: `line ${tone}` }) : null, dots);
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

export function legend(names) {
  return h("ul", { class: "legend" }, names.map((name, place) =>
    h("li", {}, h("span", { class: `swatch series-${place}`, "aria-hidden": "true" }), name)));
}
