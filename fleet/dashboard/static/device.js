// One device: what it is doing, its canaries and A/A runs by environment, its champions, its onboarding.

import { h } from "./dom.js";
import { legend, plot } from "./charts.js";
import { ago, count, duration, moment, percent, rate, score, short, signedPercent } from "./format.js";
import { cutOff, empty, loading, plainTable, tiles } from "./lists.js";
import { digestNote, figure, state } from "./fleet.js";

export const title = (place) => `Device ${place.id}`;

export function path(query, id) {
  return [`/v1/dashboard/devices/${encodeURIComponent(id)}`, {}];
}

export function draw(data) {
  const { device, now } = data;
  return [
    h("h1", {}, device.device_id),
    h("p", {}, state(device), ` · ${device.kind}, ${device.family}${device.attention.reason ? ` · ${device.attention.reason}` : ""} · `,
      h("a", { href: `#/compare?before=${encodeURIComponent(device.device_id)}` }, "Compare it")),
    digestNote(data.digest),
    tiles([
      ["records", count(device.records)],
      ["failed", count(device.failed)],
      ["records per s", rate(device.records_per_s)],
      ["noise floor", device.noise ? percent(device.noise.median_change, 2) : device.digest === "loading" ? "…" : "not known"],
      ["suspect of the last 128", device.digest === "loading" ? "…" : percent(device.suspect_share, 0)],
      ["last record", ago(device.last_record_at, now)],
    ]),
    leases(device),
    device.last_error ? [h("h2", {}, "Last error"), h("p", { class: "note" }, `${device.last_error.outcome.replaceAll("_", " ")}, ${ago(device.last_error.at, now)}`), h("pre", {}, device.last_error.text || "no message")] : null,
    onboarding(data.onboarding, now),
    timeline(data.timeline),
    ladder(data.ladder, device),
    alertList(data.alerts, now),
  ];
}

function leases(device) {
  const rows = device.leases.map((lease) => [lease.job_id, h("progress", { max: lease.of, value: lease.done, "aria-label": `${lease.done} of ${lease.of}` }), `${lease.done} of ${lease.of}`, moment(lease.deadline)]);
  return rows.length ? [h("h2", {}, "At work"), plainTable("Leases", ["Job", "Progress", "Candidates", "Until"], rows)] : null;
}

// ---- onboarding ----

function onboarding(found, now) {
  if (!found) return null;
  const { request, points } = found;
  const parts = [h("h2", {}, "Onboarding")];
  if (request) parts.push(requestLine(request, now));
  const measured = points.filter((point) => point.top1 !== undefined);
  if (measured.length) {
    const log = (samples) => Math.log2(1 + samples);
    parts.push(h("figure", {},
      h("figcaption", {}, "Expected top-1 of the device's head by number of samples, with its 90 % interval."),
      plot({
        label: `Top-1 by samples: ${measured.map((point) => `${point.samples}: ${score(point.top1)}`).join(", ")}`,
        series: [
          { place: 0, kind: "line", points: measured.map((point) => [log(point.samples), point.top1, ...(point.top1_interval || [null, null]), `${point.samples} samples: ${score(point.top1)}`]) },
        ],
        xText: (value) => count(Math.round(2 ** value - 1)), yText: (value) => value.toFixed(2), height: 200,
      })));
  } else parts.push(empty("No point of a curve yet: one comes with the end of each onboarding."));
  return parts;
}

export function requestLine(request, now) {
  const isOver = request.ended_at !== null;
  const progress = request.of ? `${count(request.done)} of ${count(request.of)}` : "";
  const left = request.left_secs !== null && !isOver ? `, ${duration(request.left_secs)} left` : "";
  const result = request.result || {};
  const expected = result.expected ? ` Expected top-1 ${score(result.expected.top1)}${result.expected.top1_interval ? ` (${score(result.expected.top1_interval[0])} to ${score(result.expected.top1_interval[1])})` : ""}.` : "";
  return h("div", { class: "lede" },
    h("p", {}, h("span", { class: `state state-${request.state}` }, request.state), ` ${request.id}`, isOver ? `, ended ${ago(request.ended_at, now)}` : request.started_at ? `, for ${duration(now - request.started_at)}` : ""),
    isOver ? null : h("p", {}, h("progress", request.of ? { max: request.of, value: request.done, "aria-label": progress } : { "aria-label": "unknown" }), ` ${progress}${left}`),
    request.finding ? h("p", {}, request.finding) : null,
    request.reason ? h("p", {}, request.reason) : null,
    request.state === "succeeded" && result.strategy ? h("p", {}, `${count(result.samples)} samples, strategy ${result.taken || result.strategy}; served by ${result.served_by || "none"}.${expected}${result.why_not_served ? ` The new head does not serve: ${result.why_not_served}` : ""}`) : null);
}

// ---- timeline ----

function timeline(environments) {
  const parts = [h("h2", {}, "Timeline")];
  if (environments === null) return [...parts, loading("Reading the device's records …")];
  if (!environments.length) return [...parts, empty("No record of this device is in the table yet.")];
  parts.push(h("p", { class: "note" }, "Only numbers of one environment may be compared, so each environment is a series of its own. The newest comes first."));
  for (const [place, one] of [...environments.entries()].reverse()) parts.push(environment(one, place, environments.length));
  return parts;
}

function environment(one, place, of) {
  const names = Object.keys(one.canaries).sort();
  const parts = [
    h("h3", {}, `Environment ${place + 1} of ${of}: ${one.environment_id.slice(0, 8)}`),
    h("p", { class: "note" }, `${moment(one.first_at)} to ${moment(one.last_at)}: ${count(one.records)} records, ${count(one.ok)} of them ok.`),
  ];
  if (one.changed.length) {
    parts.push(h("p", { class: "note" }, `Changed since the one before: ${short(one.changed.slice(0, 6).map(([name, before, now]) => `${name} ${before || "none"} → ${now || "none"}`).join("; "), 600)}`), cutOff(6, one.changed.length, "changes"));
  } else if (place > 0) parts.push(h("p", { class: "note" }, "The host looks the same as before: the device's file or the protocol changed."));
  if (names.length) {
    const shown = Math.max(...names.map((name) => one.canaries[name].length));
    parts.push(h("figure", {},
      h("figcaption", {}, "Canaries: time of three fixed programs over their usual time. Above 1 the device is slower.", shown < one.canaries_of ? ` ${count(one.canaries_of)} readings, joined to ${count(shown)} points.` : ""),
      legend(names.map((name, index) => [name, index])),
      plot({
        label: `Canaries ${names.join(", ")} over time`,
        series: names.map((name, index) => ({ place: index, kind: "line", points: one.canaries[name].map(([at, ratio]) => [at, ratio]) })),
        lines: [{ y: 1, place: 3, text: "usual speed" }],
        xText: moment, yText: (value) => value.toFixed(2), height: 180,
      })));
  } else parts.push(empty("No canary was read in this environment (replay devices have none)."));
  if (one.noise.length) {
    parts.push(plainTable("A/A runs", ["A/A run", "Pairs", "Median change", "90th percentile", "False wins"],
      one.noise.slice(-10).reverse().map((run) => [moment(run.measured_at), count(run.pairs), percent(run.median_change, 2), percent(run.p90_change, 2), percent(run.false_win_share, 0)]), [1, 2, 3, 4]),
      cutOff(10, one.noise.length, "A/A runs"));
  } else parts.push(empty("No A/A run was made in this environment yet, so its noise floor is not known."));
  return h("section", { key: one.environment_id, "aria-label": `Environment ${place + 1}` }, parts);
}

// ---- champions ----

const KINDS = { published: "promoted", rolled_back: "rolled back", pinned: "pinned", unpinned: "unpinned", kept: "not promoted" };

function ladder(found, device) {
  const parts = [h("h2", {}, "Champion and challengers")];
  if (found.damaged) return [...parts, h("p", { class: "warning" }, found.damaged)];
  if (found.champion) {
    parts.push(h("p", { class: "lede" }, `${found.champion.version} serves since ${moment(found.champion.since)}: ${found.champion.reason || "no reason was given"}`),
      tiles([["champion", found.champion.version], ["top-1", figure({ ...device, champion: found.champion.version })]]));
    if (found.champion.retained) parts.push(h("p", { class: "note" }, `The last challenger did not take the place: ${found.champion.retained}`));
  } else parts.push(empty("No model serves this device yet."));
  if (!found.steps.length) return parts;
  const rows = found.steps.map((step) => [moment(step.at), KINDS[step.kind] || step.kind, step.version, against(step), short(step.reason, 400)]);
  return [...parts, plainTable("Champions and challengers", ["When", "What", "Version", "Pairs right, against the champion", "Why"], rows), cutOff(found.steps.length, found.of, "steps")];
}

function against(step) {
  if (!step.challenger) return "not judged";
  const difference = step.difference ? h("span", { class: "sub" }, `${signedPercent(step.difference[0])} (${signedPercent(step.difference[1])} to ${signedPercent(step.difference[2])})`) : null;
  return [percent(step.challenger[0]), step.champion ? ` against ${percent(step.champion[0])}` : "", difference];
}

function alertList(alerts, now) {
  if (!alerts.length) return null;
  return [h("h2", {}, "Alerts"), plainTable("Alerts", ["When", "Kind", "Fault of", "Text"], alerts.map((one) => [ago(one.at, now), one.kind, one.fault || "–", short(one.text, 400)])),
    h("p", {}, h("a", { href: "#/alerts" }, "All alerts"))];
}
