// Builds and updates the page. Every text goes in as text: nothing that comes from the fleet becomes markup.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "path", "polyline", "line", "rect", "circle", "text", "title"]);

/** Makes an element. `attributes`: names and values, `onclick` and other functions as listeners, `key` for lists. */
export function h(tag, attributes, ...children) {
  const made = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") {
      made.listeners = made.listeners || {};
      made.listeners[name.slice(2)] = value;
      made.addEventListener(name.slice(2), heard);
    } else if (name === "key") made.key = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  append(made, children);
  return made;
}

// One function for all listeners, so that an update may replace what they do.
function heard(event) {
  const found = event.currentTarget.listeners;
  if (found && found[event.type]) found[event.type].call(event.currentTarget, event);
}

function append(parent, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(parent, child);
    else if (child instanceof Node) parent.appendChild(child);
    else if (child !== null && child !== undefined && child !== false) parent.append(String(child));
  }
}

/** Makes the children of `parent` look like `wanted`, and keeps those that are there: focus and scrolling stay. */
export function update(parent, wanted) {
  const keyed = new Map();
  for (const child of parent.childNodes) if (child.key !== undefined) keyed.set(child.key, child);
  let place = parent.firstChild;
  for (const fresh of [...wanted]) {
    const old = fresh.key !== undefined ? keyed.get(fresh.key) : place && place.key === undefined ? place : null;
    if (old && isAlike(old, fresh)) {
      if (old !== place) parent.insertBefore(old, place);
      else place = place.nextSibling;
      patch(old, fresh);
    } else parent.insertBefore(fresh, place);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

function isAlike(old, fresh) {
  return old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName;
}

function patch(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  old.key = fresh.key;
  for (const name of Object.keys(fresh.listeners || {})) {
    if (!old.listeners || !old.listeners[name]) old.addEventListener(name, heard);
  }
  old.listeners = fresh.listeners;
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  // What somebody types or opens is theirs.
  if (old instanceof HTMLInputElement) {
    if (old !== document.activeElement && old.type !== "checkbox") old.value = fresh.value;
    if (old.type === "checkbox") old.checked = fresh.hasAttribute("checked");
    return;
  }
  update(old, fresh.childNodes);
}

/** Says something to a screen reader, politely. */
export function say(text) {
  const region = document.getElementById("said");
  if (region.textContent !== text) region.textContent = text;
}
