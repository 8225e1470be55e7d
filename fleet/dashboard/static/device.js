import { h } from "./dom.js";
export const title = () => "device";
export function path() { return [null, {}]; }
export function draw() { return [h("h1", {}, "device")]; }
