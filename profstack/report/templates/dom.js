// Making elements. Text always becomes a text node: nothing here ever parses markup.
//
// Characters that turn the direction of writing are written out: a name that holds one would be
// drawn as another one. Control characters that have no width are told the same way.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const visible = (text) => String(text).replace(UNSEEN, (one) => "\\u" + one.charCodeAt(0).toString(16).padStart(4, "0"));
const SEEN_ATTRIBUTES = ["title", "aria-label", "aria-description", "placeholder"];

function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : SEEN_ATTRIBUTES.includes(name) ? visible(value) : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
}

const byId = (id) => document.getElementById(id);

// A word of the glossary, linked to what it means.
const term = (word, text) => el("a", { class: "term", href: "#term-" + word }, text || word);

const none = (reason) =>
  el("span", { class: "none", role: "img", title: reason || "not measured", "aria-label": "not measured" + (reason ? ": " + reason : "") }, NONE);

const shown = (value, unit, reason) =>
  value === null || value === undefined ? none(reason) : formatValue(value, unit);

// Kinds of slices and layers keep one colour on the whole page; unknown layers share four spares.
const KNOWN_KINDS = ["startup", "warmup", "settle", "clean", "watch", "cprofile", "torch", "nvtx", "memory", "flops"];

function kindColour(kind) {
  if (KNOWN_KINDS.includes(kind)) return "var(--kind-" + kind + ")";
  return "var(--spare-" + (hash(String(kind)) % 4) + ")";
}

function hash(text) {
  let value = 5381;
  for (let at = 0; at < text.length; at += 1) value = ((value * 33) ^ text.charCodeAt(at)) >>> 0;
  return value;
}

function swatch(colour) {
  const dot = el("span", { class: "swatch", "aria-hidden": "true" });
  dot.style.background = colour;
  return dot;
}

// A row of buttons of which one is chosen.
function choice(label, options, chosen, onChoose) {
  const group = el("div", { class: "choice", role: "group", "aria-label": label });
  for (const [value, text] of options) {
    const button = el("button", { type: "button", "aria-pressed": String(value === chosen) }, text);
    button.addEventListener("click", () => {
      for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
      onChoose(value);
    });
    group.append(button);
  }
  return group;
}

function select(label, options, chosen, onChoose) {
  const box = el("select", { "aria-label": label });
  for (const [value, text] of options) {
    box.append(el("option", { value, selected: value === chosen }, text));
  }
  box.addEventListener("change", () => onChoose(box.value));
  return el("label", { class: "field" }, el("span", {}, label), box);
}

// What happened, in a few words for a screen reader: what is seen otherwise says it by itself.
const announce = (text) => { byId("announced").textContent = text; };

// One tooltip for all charts; `lines` are [name, value] pairs under a title.
const tip = el("div", { class: "tip", role: "tooltip", hidden: true });

function showTip(event, title, lines) {
  tip.replaceChildren(el("strong", {}, title), el("dl", {}, lines.filter(Boolean).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, window.innerWidth - box.width - 8);
  const below = event.clientY + 16;
  const top = below + box.height > window.innerHeight ? event.clientY - box.height - 12 : below;
  tip.style.left = Math.max(left, 8) + "px";
  tip.style.top = Math.max(top, 8) + "px";
}

const hideTip = () => { tip.hidden = true; };

// The slices that a table's figures rest on: those of the first round, which had no step to settle,
// only where there are no others.
function settledSlices(page, fits) {
  const found = page.slices.filter((slice) => fits(slice) && isNumber(slice.step_median_s));
  const late = found.filter((slice) => slice.round > 1);
  return late.length ? late : found;
}

// Only ways inside the recording become links: a path is never taken for an address of its own.
function fileLink(base, path, text) {
  const way = String(path).split("/").map(encodeURIComponent).join("/");
  return el("a", { class: "file", href: (base ? base + "/" : "./") + way, title: path }, text || path);
}
