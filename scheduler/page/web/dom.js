// Elements from data. Text is set as text, never as markup.

/** An element with attributes, event handlers (on…) and children (elements or texts). */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

const SVG = "http://www.w3.org/2000/svg";

/** The same in SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Sets a text only when it differs: what assistive technology reads aloud is what has changed. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/**
 * Makes the children of `parent` those of `items`, in order. Children that stay are kept, and so is the focus in them.
 * `create` makes the child of an item, `update` shows an item in its child.
 */
export function keyed(parent, items, key, create, update) {
  const old = (parent.keyed ??= new Map());
  const now = new Map();
  let next = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    const child = old.get(name) ?? create(item);
    old.delete(name);
    now.set(name, child);
    update(child, item);
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
  }
  for (const child of old.values()) child.remove();
  parent.keyed = now;
}
