// What the fleet is for: how fast networks are, and which models serve.

import { h, link } from "./dom.js";
import { legend, plot } from "./charts.js";
import { count, latency, latencyOf, moment, score, short } from "./format.js";
import { empty, note, plainTable, sub } from "./lists.js";
import { figure } from "./fleet.js";
import { requestLine } from "./device.js";

export const networks = { title: () => "Networks", path: () => ["/v1/dashboard/tunings", {}], draw: drawNetworks };

function drawNetworks({ tunings, now }) {
  return [
    h("h1", {}, "Networks"),
    tunings.length ? tunings.map((tuning) => tuningPart(tuning, now)) : empty("No network was tuned while this daemon ran. Start one with: fleet tune DEVICE NETWORK"),
  ];
}

function tuningPart({ request, title, device, has_report: hasReport, networks: found }, now) {
  const report = { href: `/v1/dashboard/tunings/${encodeURIComponent(request.id)}/report`, target: "_blank", rel: "noopener" };
  return h("section", {},
    h("h2", {}, title, " on ", link("device", device, device)),
    request.state === "succeeded" ? note(link("requests", request.id, request.id), `, ended ${moment(request.ended_at)}`) : requestLine(request, now),
    found.map(networkPart),
    hasReport ? h("p", {}, h("a", report, "Report")) : null);
}

function networkPart({ name, sides, curve, best_secs: best, why_not: whyNot }) {
  const unit = latencyOf(sides.map(({ secs }) => secs));
  const kept = sides.find((side) => side.is_kept);
  const times = ({ secs }) => (kept ? (secs / kept.secs).toFixed(2) : "–");
  const rows = sides.map((side) => [side.is_kept ? h("strong", {}, side.name, " (the library)") : side.name, unit(side.secs), times(side)]);
  return [
    rows.length ? plainTable("Networks", ["Run by", "One run", "Divided by the library's"], rows, [1, 2])
      : note(`${best ? `All its programs together take ${latency(best)}. ` : ""}${whyNot ? `There is no library: ${whyNot}` : "A list of operators has no library."}`),
    curve.length > 1 ? search(name, curve, sides.find((side) => !side.is_kept)) : null,
  ];
}

/** Steps of a search, and the line of the strongest rival. */
function search(name, curve, rival) {
  const at = ([secs, value], text) => [secs / 60, value, null, null, text];
  const steps = curve.flatMap((point, place) => [...(place ? [at([point[0], curve[place - 1][1]])] : []), at(point, latency(point[1]))]);
  const [first, last] = [curve[0][0], curve[curve.length - 1][0]];
  const level = rival ? [{ place: 1, kind: "line", points: [at([first, rival.secs]), at([last, rival.secs])] }] : [];
  return h("figure", {},
    h("figcaption", {}, "How the search went."),
    legend(["all programs, each timed alone", ...(rival ? [`${rival.name}, the whole network`] : [])]),
    plot({
      label: `${name}: time of all programs by minutes of the search`, height: 200,
      series: [{ place: 0, kind: "line", points: steps }, ...level],
      xText: (value) => value.toFixed(1), yText: (value) => latency(value), xTitle: "minutes of the search", yTitle: "time",
    }));
}

export const models = { title: () => "Models", path: () => ["/v1/dashboard/models", {}], draw: drawModels };

function drawModels({ damaged, versions, notes }) {
  const champions = versions.flatMap((version) => version.champions).sort((one, other) => (one.device_id < other.device_id ? -1 : 1));
  const active = champions.map((champion) => {
    const about = notes[champion.device_id] || {};
    return [
      link("device", champion.device_id, champion.device_id), [champion.version, about.shipped ? sub("shipped model") : null],
      figure({ score: about.score, champion: champion.version }), moment(champion.since), champion.pinned_at ? "yes" : "no",
      [short(champion.reason || "no reason was given", 300), about.retained ? sub(`Challenger ${about.retained}`) : null],
    ];
  });
  const made = versions.map((version) => [
    version.version, version.damaged || moment(version.created_at), version.model_kind || "–", count(version.candidates), version.heads.length, version.serves.join(", ") || "none",
  ]);
  return [
    h("h1", {}, "Models"),
    damaged ? h("p", { class: "warning" }, damaged) : null,
    note("Top-1 is the speed of the model's first choice, divided by the best speed, on workloads that it never saw. A model that is no better than a random choice helps nothing."),
    active.length ? plainTable("Active models", ["Device", "Active model", "Top-1", "Since", "Pinned", "Why"], active) : empty("No model serves a device yet. Start one with: fleet onboard DEVICE --samples 0"),
    h("h2", {}, "Versions"),
    made.length ? plainTable("Versions", ["Version", "Made", "Kind", "Candidates", "Heads", "Serves"], made, [3, 4]) : empty("There is no version yet."),
    note("Choose another one with: ", h("code", {}, "fleet models use DEVICE VERSION")),
  ];
}
