// Numbers, moments and names as people read them. Pure.

const NONE = "–";

export function count(value) {
  return value === null || value === undefined ? NONE : Number(value).toLocaleString("en-US");
}

export function percent(value, digits = 1) {
  return value === null || value === undefined ? NONE : `${(100 * value).toFixed(digits)} %`;
}

export function signedPercent(value) {
  if (value === null || value === undefined) return NONE;
  return `${value < 0 ? "−" : "+"}${(100 * Math.abs(value)).toFixed(1)} %`;
}

export function score(value) {
  return value === null || value === undefined ? NONE : Number(value).toFixed(3);
}

export function rate(value) {
  if (value === null || value === undefined) return NONE;
  return value === 0 ? "0" : value < 10 ? value.toFixed(2) : value.toFixed(value < 100 ? 1 : 0);
}

export function latency(secs) {
  if (secs === null || secs === undefined) return NONE;
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]]) {
    if (secs >= size) return `${(secs / size).toPrecision(3)} ${unit}`;
  }
  return `${(secs * 1e9).toPrecision(3)} ns`;
}

export function duration(secs) {
  if (secs === null || secs === undefined) return NONE;
  if (secs < 60) return `${secs < 10 ? secs.toFixed(1) : Math.round(secs)} s`;
  if (secs < 5400) return `${Math.round(secs / 60)} min`;
  if (secs < 172800) return `${(secs / 3600).toFixed(1)} h`;
  return `${(secs / 86400).toFixed(1)} days`;
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (value >= size) return `${(value / size).toPrecision(3)} ${unit}`;
  }
  return `${value} bytes`;
}

/** A moment by the clock of this browser; its date where that is not today's. */
export function moment(secs) {
  if (!secs) return "never";
  const at = new Date(1000 * secs);
  const time = at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString("en-CA")} ${time.slice(0, 5)}`;
}

export function ago(secs, now) {
  return secs ? `${duration(Math.max(0, now - secs))} ago` : "never";
}

export function short(text, most) {
  const whole = String(text ?? "");
  return whole.length > most ? `${whole.slice(0, most - 1)}…` : whole;
}
