// Numbers, moments and names as people read them. Pure.

const NONE = "–";

/** A function that gives a dash for a missing value. */
const orNone = (format) => (value, ...more) => (value === null || value === undefined ? NONE : format(value, ...more));

export const count = orNone((value) => Number(value).toLocaleString("en-US"));
export const percent = orNone((value, digits = 1) => `${(100 * value).toFixed(digits)} %`);
export const signedPercent = orNone((value) => `${value < 0 ? "−" : "+"}${(100 * Math.abs(value)).toFixed(1)} %`);
export const score = orNone((value) => Number(value).toFixed(3));
export const rate = orNone((value) => (value === 0 ? "0" : value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)));
const TIME_UNITS = [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]];
export const latency = orNone((secs) => inUnits(secs, TIME_UNITS));

/** A function that writes latencies in one unit for all of a table: the largest that the shortest of them fills. */
export function latencyOf(values) {
  const shortest = Math.min(...values.filter((value) => typeof value === "number"));
  const [unit, size] = TIME_UNITS.find((each) => shortest >= each[1]) || TIME_UNITS[3];
  const text = (value) => (value >= 999.5 ? Math.round(value).toLocaleString("en-US") : value.toPrecision(3));
  return orNone((secs) => `${text(secs / size)} ${unit}`);
}
export const bytes = orNone((value) => inUnits(value, [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["bytes", 1]]));

/** A value in the largest unit that it fills, the last one at least. */
function inUnits(value, units) {
  const [unit, size] = units.find((each) => value >= each[1]) || units[units.length - 1];
  return `${(value / size).toPrecision(3)} ${unit}`;
}

export const duration = orNone((secs) => {
  if (secs < 60) return `${secs < 10 ? secs.toFixed(1) : Math.round(secs)} s`;
  if (secs < 5400) return `${Math.round(secs / 60)} min`;
  return secs < 172800 ? `${(secs / 3600).toFixed(1)} h` : `${(secs / 86400).toFixed(1)} days`;
});

/** A moment by the clock of this browser; its date if it is not today's. */
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

/** A word of the API, such as `run_failed`, for people. */
export const words = (name) => name.replaceAll("_", " ");
