// Builds and updates the page. Every text goes in as text: nothing that comes from the fleet becomes markup.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "polyline", "line", "rect", "circle", "text", "title"]);

/** Makes an element. `attributes`: names and values, `onclick` and other functions as listeners. */
export function h(tag, attributes, ...children) {
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  element.listeners = {};
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") listen(element, name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

/** A link to a view of this page. */
export function link(view, id, text, query = "") {
  return h("a", { href: `#/${view}/${encodeURIComponent(id)}${query}` }, text);
}

// One function for all listeners, so that an update may replace what they do.
function dispatch(event) {
  event.currentTarget.listeners[event.type]?.call(event.currentTarget, event);
}

function listen(element, type, action) {
  element.listeners[type] = action;
  element.addEventListener(type, dispatch);
}

/** Makes the children of `parent` look like `nodes`, and keeps those that are there: focus and scrolling stay. */
export function update(parent, nodes) {
  const fresh = [...nodes];
  fresh.forEach((node, place) => {
    const old = parent.childNodes[place];
    if (!old) parent.append(node);
    else if (old.nodeName === node.nodeName) patch(old, node);
    else old.replaceWith(node);
  });
  while (parent.childNodes.length > fresh.length) parent.lastChild.remove();
}

function patch(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  old.listeners = {};
  for (const [type, action] of Object.entries(fresh.listeners || {})) listen(old, type, action);
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old instanceof HTMLInputElement) {
    // A field in use keeps its text.
    if (old.type === "checkbox") old.checked = fresh.hasAttribute("checked");
    else if (old !== document.activeElement) old.value = fresh.value;
  } else update(old, fresh.childNodes);
}

/** Gives a text to screen readers, politely. */
export function announce(text) {
  const region = document.getElementById("said");
  if (region.textContent !== text) region.textContent = text;
}
