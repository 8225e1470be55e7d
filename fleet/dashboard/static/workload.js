import { h } from "./dom.js";
const none = { title: () => "Workloads", path: () => [null, {}], draw: () => [h("h1", {}, "Workloads")] };
export const workloads = none, workload = none, candidate = none;
