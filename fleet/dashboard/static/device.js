// One device: what it is doing, its canaries and A/A runs by environment, its champions, its onboarding.

import { h } from "./dom.js";
import { legend, plot } from "./charts.js";
import { ago, count, duration, moment, percent, rate, score, short, signedPercent, words } from "./format.js";
import { cutOff, empty, note, plainTable, state, sub, tiles } from "./lists.js";
import { attention, digestNote, figure } from "./fleet.js";

export const title = (place) => `Device ${place.id}`;
export const path = (query, id) => [`/v1/dashboard/devices/${encodeURIComponent(id)}`, {}];

export function draw({ device, now, digest, onboarding, timeline, ladder, alerts }) {
  const error = device.last_error;
  return [
    h("h1", {}, device.device_id),
    h("p", {}, state(device.state), ` · ${device.kind}, ${device.family} · `,
      h("a", { href: `#/compare?before=${encodeURIComponent(device.device_id)}` }, "Compare it"), attention(device.attention)),
    digestNote(digest),
    tiles([
      ["records", count(device.records)],
      ["failed", count(device.failed)],
      ["records per s", rate(device.records_per_s)],
      ["noise floor", device.noise ? percent(device.noise.median_change, 2) : device.digest === "loading" ? "…" : "not known"],
      ["suspect of the last 128", device.digest === "loading" ? "…" : percent(device.suspect_share, 0)],
      ["last record", ago(device.last_record_at, now)],
    ]),
    leases(device),
    error ? [h("h2", {}, "Last error"), note(`${words(error.outcome)}, ${ago(error.at, now)}`), h("pre", {}, error.text || "no message")] : null,
    onboardingPart(onboarding, now),
    timelinePart(timeline),
    ladderPart(ladder, device),
    alertPart(alerts, now),
  ];
}

function leases(device) {
  const rows = device.leases.map((lease) => {
    const text = `${lease.done} of ${lease.of}`;
    return [lease.job_id, h("progress", { max: lease.of, value: lease.done, "aria-label": text }), text, moment(lease.deadline)];
  });
  return rows.length ? [h("h2", {}, "Running jobs"), plainTable("Running jobs", ["Job", "Progress", "Candidates", "Deadline"], rows)] : null;
}

function onboardingPart(onboarding, now) {
  if (!onboarding) return null;
  const { request } = onboarding;
  const measured = onboarding.points.filter((point) => point.top1 !== undefined);
  const text = (point) => `${point.samples} samples: ${score(point.top1)}`;
  const points = measured.map((point) => [Math.log2(1 + point.samples), point.top1, ...(point.top1_interval || [null, null]), text(point)]);
  return [
    h("h2", {}, "Onboarding"),
    request ? requestLine(request, now) : null,
    measured.length ? h("figure", {},
      h("figcaption", {}, "Expected top-1 of the device's head by number of samples, with its 90 % interval."),
      plot({
        label: `Top-1 by samples: ${measured.map(text).join(", ")}`,
        series: [{ place: 0, kind: "line", points }],
        xText: (value) => count(Math.round(2 ** value - 1)), yText: (value) => value.toFixed(2), height: 200,
        xTitle: "samples", yTitle: "expected top-1",
      })) : empty("There is no point yet: each onboarding adds one when it ends."),
  ];
}

export function requestLine(request, now) {
  const isOver = request.ended_at !== null;
  const since = isOver ? `, ended ${ago(request.ended_at, now)}` : request.started_at ? `, for ${duration(now - request.started_at)}` : "";
  const result = request.result || {};
  return h("div", { class: "lede" },
    h("p", {}, state(request.state), ` ${request.id}${since}`),
    isOver ? null : h("p", {}, progress(request)),
    request.finding ? h("p", {}, request.finding) : null,
    request.reason ? h("p", {}, request.reason) : null,
    request.state === "succeeded" && result.strategy ? h("p", {}, outcome(result)) : null);
}

/** How far a request is: a bar and words. */
export function progress(request) {
  const text = request.of ? `${count(request.done)} of ${count(request.of)}` : "";
  const bar = h("progress", request.of ? { max: request.of, value: request.done, "aria-label": text } : { "aria-label": "unknown" });
  return [bar, ` ${text}${request.left_secs === null ? "" : `, ${duration(request.left_secs)} left`}`];
}

function outcome({ samples, taken, strategy, served_by: server, expected, why_not_served: why }) {
  const interval = expected?.top1_interval ? ` (${expected.top1_interval.map((value) => score(value)).join(" to ")})` : "";
  const hope = expected ? ` Expected top-1 ${score(expected.top1)}${interval}.` : "";
  return `${count(samples)} samples, strategy ${taken || strategy}; served by ${server || "none"}.${hope}${why ? ` The new head does not serve: ${why}` : ""}`;
}

function timelinePart(environments) {
  const title = h("h2", {}, "Timeline");
  if (!environments.length) return [title, empty("There is no record of this device yet.")];
  const parts = environments.map((each, place) => environmentPart(each, place, environments.length)).reverse();
  return [title, note("Only numbers of one environment may be compared, so each environment is a separate series. The newest comes first."), parts];
}

function environmentPart(environment, place, of) {
  const { canaries, changed, noise } = environment;
  const differences = changed.slice(0, 6).map(([name, before, after]) => `${name} ${before || "none"} → ${after || "none"}`);
  const runs = noise.slice(-10).reverse().map((run) => [moment(run.measured_at), count(run.pairs), percent(run.median_change, 2), percent(run.p90_change, 2), percent(run.false_win_share, 0)]);
  return h("section", { "aria-label": `Environment ${place + 1}` },
    h("h3", {}, `Environment ${place + 1} of ${of}: ${environment.environment_id.slice(0, 8)}`),
    note(`${moment(environment.first_at)} to ${moment(environment.last_at)}: ${count(environment.records)} records, ${count(environment.ok)} of them ok.`),
    changed.length ? [note(`Changed since the one before: ${short(differences.join("; "), 600)}`), cutOff(6, changed.length, "changes")] : null,
    place > 0 && !changed.length ? note("The host looks the same as before: the device's file or the protocol changed.") : null,
    Object.keys(canaries).length ? canaryFigure(canaries, environment.canaries_of) : empty("No canary was read in this environment (replay devices have none)."),
    runs.length ? [plainTable("A/A runs", ["A/A run", "Pairs", "Median change", "90th percentile", "False wins"], runs, [1, 2, 3, 4]), cutOff(10, noise.length, "A/A runs")]
      : empty("No A/A run was made in this environment yet, so its noise floor is not known."));
}

function canaryFigure(canaries, of) {
  const names = Object.keys(canaries).sort();
  const most = Math.max(...names.map((name) => canaries[name].length));
  return h("figure", {},
    h("figcaption", {}, "Canaries: time of three fixed programs, divided by their usual time. Above 1 the device is slower.", most < of ? ` ${count(of)} readings, joined to ${count(most)} points.` : ""),
    legend(names),
    plot({
      label: `Canaries ${names.join(", ")} over time`,
      series: names.map((name, place) => ({ place, kind: "line", points: canaries[name] })),
      level: { y: 1, text: "usual speed" },
      xText: moment, yText: (value) => value.toFixed(2), height: 180, xTitle: "time of day", yTitle: "time divided by the usual one",
    }));
}

const KINDS = { published: "promoted", rolled_back: "rolled back", kept: "not promoted" };

function ladderPart({ champion, steps, of, damaged }, device) {
  const title = h("h2", {}, "Active model and challengers");
  if (damaged) return [title, h("p", { class: "warning" }, damaged)];
  const rows = steps.map((step) => [moment(step.at), KINDS[step.kind] || step.kind, step.version, against(step), short(step.reason, 400)]);
  return [
    title,
    champion ? [
      h("p", { class: "lede" }, `${champion.version} serves since ${moment(champion.since)}: ${champion.reason || "no reason was given"}`),
      tiles([["active model", champion.version], ["shipped model", device.shipped || "no"], ["top-1", figure({ ...device, champion: champion.version })]]),
      champion.retained ? note(`Challenger ${champion.retained}`) : null,
    ] : empty("No model serves this device yet."),
    rows.length ? plainTable("Active models and challengers", ["When", "What", "Version", "Pairs right, compared with the active model", "Why"], rows) : null,
    cutOff(rows.length, of, "steps"),
  ];
}

function against({ challenger, champion, difference }) {
  if (!challenger) return "not judged";
  const [middle, low, high] = (difference || []).map(signedPercent);
  return [percent(challenger[0]), champion ? ` (active model ${percent(champion[0])})` : "", difference ? sub(`${middle} (${low} to ${high})`) : null];
}

function alertPart(alerts, now) {
  if (!alerts.length) return null;
  const rows = alerts.map((alert) => [ago(alert.at, now), alert.kind, alert.fault || "–", short(alert.text, 400)]);
  return [h("h2", {}, "Alerts"), plainTable("Alerts", ["When", "Kind", "Cause", "Text"], rows), h("p", {}, h("a", { href: "#/alerts" }, "All alerts"))];
}
