// Pictures of hierarchies: icicle, flame (an icicle that grows upwards), sunburst and treemap.
//
// An area is a node's value; the values of what lies in a node never add up to more than its own.
// The caller gives `areas`, a list with each parent before its children: {name, value, parent (its
// index, -1 for the first), colour, node}. It also handles clicks and tooltips: the library's own
// zoom is not used, since it can only show what was drawn before.

import { CHART_FONT, plot, plotText } from "./charts.js";
import { announce, el, hideTip, quiet, swatch } from "./dom.js";
import { formatPercent, formatWhole } from "./format.js";
import { inFrame } from "./views.js";

export const PICTURES = [
  ["icicle", "icicle"],
  ["flame", "flame"],
  ["sunburst", "sunburst"],
  ["treemap", "treemap"],
];
const MOST_AREAS = 700;
export const LEAST_AREA = 0.0005; // of the whole picture: less than a pixel's width
const LETTER = 6.6; // pixels, of the page's text at the size of the labels
const ICICLE_ROW = 26;

// spec: box, label(), kind(), areas() (called by redraw), tip(area) => [title, lines], open(area),
// seen(area) (under the pointer or the keys; null: none), marked(area) => "match" | "other" | null
export function drawHierarchy(spec) {
  const state = { areas: [], cursor: -1 };
  const options = {
    label: "",
    name: "hierarchy",
    config: { modeBarButtons: [["toImage"]] },
    height: (width) => pictureHeight(spec.kind(), state.areas, width),
    tip: (point) => {
      const area = state.areas[point.pointNumber];
      return area && spec.tip(area);
    },
    drawn: listen,
  };
  let renew = null;
  const listening = new WeakSet();

  function listen(surface) {
    if (listening.has(surface)) return;
    listening.add(surface);
    for (const type of ["icicle", "sunburst", "treemap"]) {
      surface.on("plotly_" + type + "click", (event) => {
        const area = state.areas[event.points[0].pointNumber];
        hideTip();
        if (area) spec.open(area);
        return false; // no zoom of the library's own
      });
    }
    surface.on("plotly_hover", (found) =>
      spec.seen(state.areas[found.points[0].pointNumber] || null),
    );
    surface.on("plotly_unhover", () => spec.seen(state.areas[state.cursor] || null));
  }

  function redraw() {
    state.areas = spec.areas();
    if (state.cursor >= state.areas.length) state.cursor = -1;
    options.label = spec.label();
    if (renew) renew();
    else renew = plot(spec.box, (theme) => picture(spec, state, theme), options);
    spec.box.setAttribute(
      "aria-label",
      options.label + ". Arrow keys move, Enter opens, Backspace goes up.",
    );
  }

  function move(at) {
    if (at === undefined || at < 0) return;
    state.cursor = at;
    spec.seen(state.areas[at]);
    tell(state.areas[at]);
    renew();
  }

  const tell = (area) =>
    announce(
      [
        area.name,
        area.told,
        state.areas[0].value > 0
          ? formatPercent(area.value / state.areas[0].value) + " of what is drawn"
          : null,
      ]
        .filter(Boolean)
        .join(", "),
    );
  // What is opened by a key may be its own outermost area, or the one that it was opened from.
  const openBy = (area) => {
    state.cursor = -1;
    spec.open(area);
    tell(state.areas[0]);
  };

  spec.box.setAttribute("tabindex", "0");
  spec.box.setAttribute("role", "group");
  spec.box.addEventListener("keydown", (event) => {
    const at = Math.max(state.cursor, 0);
    const area = state.areas[at];
    const beside = state.areas
      .map((_other, place) => place)
      .filter((place) => state.areas[place].parent === area.parent);
    const ways = {
      ArrowDown: state.areas.findIndex((other) => other.parent === at),
      ArrowUp: area.parent,
      ArrowRight: beside[beside.indexOf(at) + 1],
      ArrowLeft: beside[beside.indexOf(at) - 1],
    };
    const acts = {
      Enter: () => openBy(area),
      " ": () => openBy(area),
      Backspace: () => openBy(state.areas[0]),
      Escape: () => {
        state.cursor = -1;
        spec.seen(null);
        renew();
      },
    };
    if (event.target !== spec.box || !(event.key in ways || event.key in acts)) return;
    event.preventDefault();
    if (event.key in ways) move(state.cursor < 0 ? 0 : ways[event.key]);
    else acts[event.key]();
  });
  return redraw;
}

function levelsOf(areas) {
  const levels = [];
  areas.forEach((area, at) => {
    levels[at] = area.parent < 0 ? 0 : levels[area.parent] + 1;
  });
  return levels;
}

function pictureHeight(kind, areas, width) {
  if (kind === "sunburst") return Math.min(width, 560);
  if (kind === "treemap") return width < 560 ? 460 : 480;
  const levels = levelsOf(areas).reduce((most, level) => Math.max(most, level), 0) + 1;
  return Math.min(Math.max(levels * ICICLE_ROW, 234), 900);
}

function picture(spec, state, theme) {
  const kind = spec.kind();
  const areas = state.areas;
  const whole = areas.length ? areas[0].value : 0;
  const marks = areas.map((area) => spec.marked(area));
  const colour = (area, at) =>
    marks[at] === "other" ? theme.faint(area.colour, 0.28) : theme.colour(area.colour);
  const chosen = (at) => at === state.cursor || marks[at] === "match";
  const trace = {
    type: kind === "flame" ? "icicle" : kind,
    branchvalues: "total",
    sort: false,
    count: "branches",
    ids: areas.map((_area, at) => String(at)),
    labels: areas.map((area) => plotText(area.name)),
    values: areas.map((area) => area.value),
    parents: areas.map((area) => (area.parent < 0 ? "" : String(area.parent))),
    text: pictureTexts(kind, areas, whole, theme),
    textinfo: "text",
    marker: {
      colors: areas.map(colour),
      line: {
        width: areas.map((_area, at) => (chosen(at) ? 2 : 1)),
        color: areas.map((_area, at) => (chosen(at) ? theme.text : theme.ground)),
      },
    },
    textfont: { color: theme.text, size: CHART_FONT, family: theme.font, shadow: "none" },
    domain: { x: [0, 1], y: [0, 1] },
    leaf: { opacity: 1 },
    rotation: 90,
  };
  if (kind !== "sunburst")
    Object.assign(trace, { pathbar: { visible: false }, tiling: tilingOf(kind) });
  if (kind !== "sunburst") delete trace.rotation;
  else trace.insidetextorientation = "auto";
  if (kind === "treemap") trace.marker.pad = { t: 20, l: 2, r: 2, b: 2 };
  if (kind === "icicle" || kind === "flame") trace.textposition = "middle left";
  return {
    data: [trace],
    layout: {
      margin: { l: 0, r: 0, t: 0, b: 0 },
      hovermode: "closest",
      uniformtext: { mode: "hide", minsize: 10 },
    },
  };
}

function tilingOf(kind) {
  if (kind === "treemap") return { packing: "squarify", pad: 2 };
  return { orientation: "v", pad: 1, ...(kind === "flame" ? { flip: "y" } : {}) };
}

// As much of a name as its area has room for, and its value where there is room for both.
function pictureTexts(kind, areas, whole, theme) {
  const levels = levelsOf(areas);
  const rings = levels.reduce((most, level) => Math.max(most, level), 0) + 1;
  const ring = Math.min(theme.width, 560) / 2 / rings;
  return areas.map((area, at) => {
    const share = whole > 0 ? area.value / whole : 0;
    if (kind === "treemap")
      return share * theme.width * 480 > 900
        ? plotText(cutText(area.name, 32)) + (area.told ? "  " + plotText(area.told) : "")
        : "";
    const room =
      kind === "sunburst"
        ? at
          ? share * Math.PI * 2 * ring * (levels[at] + 0.5) > 11
            ? Math.floor((ring - 4) / (LETTER - 0.6))
            : 0
          : Math.floor((ring * 1.7) / LETTER)
        : Math.floor((share * theme.width - 10) / LETTER);
    if (room < 3) return "";
    const full = area.name + "  " + (area.told || "");
    return plotText(
      kind !== "sunburst" && area.told && full.length <= room ? full : cutText(area.name, room),
    );
  });
}

export const cutText = (text, most) => (text.length <= most ? text : text.slice(0, most - 1) + "…");

// Of a tree of nodes ({name, value, children, count}) the areas under `root`: the largest, and what
// is left out of each as one area with its sum. The first node of all is never left out.
export function largestAreas(root, most = MOST_AREAS, least = LEAST_AREA) {
  const order = [];
  const work = [root];
  while (work.length) {
    const node = work.pop();
    if (!(node.value > 0) && node !== root) continue;
    order.push(node);
    for (let at = node.children.length - 1; at >= 0; at -= 1) work.push(node.children[at]);
  }
  const places = new Map(order.map((node, at) => [node, at]));
  const kept = new Set(
    order
      .slice()
      .sort((a, b) => b.value - a.value || places.get(a) - places.get(b))
      .slice(0, most)
      .filter(
        (node) => node === root || (node.kind !== "rest" && node.value >= least * root.value),
      ),
  );
  const areas = [];
  const add = (node, parent) => {
    const at = areas.push({ ...areaOf(node), parent }) - 1;
    const inside = node.children.filter((child) => kept.has(child));
    const left = node.children.filter((child) => child.value > 0 && !kept.has(child));
    for (const child of inside) add(child, at);
    if (left.length === 1 && !left[0].children.length)
      areas.push({ ...areaOf(left[0]), parent: at });
    else if (left.length) areas.push(restArea(left, node, at));
  };
  add(root, -1);
  return areas;
}

const areaOf = (node) => ({
  name: node.name,
  value: node.value,
  colour: node.colour,
  told: node.told,
  node,
});

function restArea(left, parent, at) {
  const count = left.reduce((sum, node) => sum + countOf(node), 0);
  const value = left.reduce((sum, node) => sum + node.value, 0);
  return {
    name: formatWhole(count) + " smaller",
    value,
    colour: "var(--builtin)",
    parent: at,
    node: { rest: true, count, parent, value, children: [], name: formatWhole(count) + " smaller" },
  };
}

function countOf(node) {
  let count = 0;
  const work = [node];
  while (work.length) {
    const one = work.pop();
    count += one.count ?? 1;
    work.push(...one.children);
  }
  return count;
}

// The way from the outermost node to this one, as buttons; the last is where the reader is.
export function wayThrough(node, open) {
  const way = [];
  for (let one = node; one; one = one.parent) way.unshift(one);
  return way.flatMap((one, at) => {
    const item =
      one === node
        ? el("b", { "aria-current": "true" }, one.name)
        : el("button", { type: "button", onclick: () => open(one) }, one.name);
    return at ? [quiet(" › "), item] : [item];
  });
}

// What lies in a node as buttons, the largest first: the picture without a mouse.
const MOST_INSIDE = 8;
export function insideList(node, whole, told, open) {
  const inside = node.children.filter((child) => child.value > 0).sort((a, b) => b.value - a.value);
  if (!inside.length) return null;
  const list = el("ul", { class: "inside" });
  const fill = (most) => {
    list.replaceChildren(
      ...inside
        .slice(0, most)
        .map((child) =>
          el(
            "li",
            {},
            el(
              "button",
              { type: "button", class: "link", title: child.name, onclick: () => open(child) },
              swatch(child.colour),
              child.name,
            ),
            el("span", {}, told(child)),
            quiet(formatPercent(child.value / whole)),
          ),
        ),
    );
    if (inside.length > most)
      list.append(
        el(
          "li",
          {},
          el(
            "button",
            { type: "button", class: "link", onclick: () => fill(most + 40) },
            "and " + (inside.length - most) + " more",
          ),
        ),
      );
  };
  fill(MOST_INSIDE);
  return [el("h4", {}, "inside it"), list];
}

// Marks the row of an address and puts the address into the browser's line, without scrolling: the
// reader is looking at the picture.
export function pointAt(box, address) {
  for (const other of document.querySelectorAll(".marked")) other.classList.remove("marked");
  const way = [...box.querySelectorAll("a.anchor")].find(
    (one) => one.getAttribute("href") === address,
  );
  if (way) way.closest("tr").classList.add("marked");
  if (!inFrame)
    try {
      window.history.replaceState(null, "", address);
    } catch {
      /* some frames allow no change of the address */
    }
}
