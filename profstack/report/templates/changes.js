// One table of a comparison as a view: before, after and the difference of each row; and the
// modules of both sides as a picture, coloured by their difference.

import {
  drawHierarchy,
  insideList,
  largestAreas,
  PICTURES,
  pictureNodes,
  pointAt,
  wayThrough,
} from "./charts.js";
import {
  append,
  byId,
  choice,
  el,
  formatFactor,
  formatPercent,
  formatSeconds,
  formatValue,
  formatWhole,
  isNumber,
  none,
  quiet,
  swatch,
  term,
} from "./dom.js";
import { asRecords, barCell, makeTable, placeCell, plainCell } from "./table.js";
import { drop, linkTo, onKey, wayTo } from "./views.js";

export const changeView = (top) => ({
  id: top.view,
  title: top.title,
  needs: [top.view, ...(top.view === "modules" ? ["module_changes"] : [])],
  shows: [top.view],
  parts: [
    ["picture-" + top.view, (page) => drawPicture(page, top)],
    ["table-" + top.view, (page) => drawChanges(page, top)],
  ],
});

// ---------- Words of a change ----------

// A figure with its sign: a difference says which way it goes.
export const signed = (value, unit) => (value > 0 ? "+" : "") + formatDifference(value, unit);

// Counts below 0 too: dom.js knows the sign of times and sizes.
const formatDifference = (value, unit) => formatValue(value, unit).replace(/^-/, "−");

// An interval in one unit, with as many digits as its width has use for: "−640 to −570 µs".
export function signedSpan(low, high) {
  const most = Math.max(Math.abs(low), Math.abs(high));
  const [scale, unit] = [
    [1, "s"],
    [1e-3, "ms"],
    [1e-6, "µs"],
    [1e-9, "ns"],
  ].find(([one]) => most >= one) || [1e-9, "ns"];
  const places = Math.ceil(1 - Math.log10((high - low) / scale || 1));
  const digits = Math.min(Math.max(places, 0), 4);
  const words = (value) =>
    (value > 0 ? "+" : "") + (value / scale).toFixed(digits).replace(/^-/, "−");
  return words(low) + " to " + words(high) + " " + unit;
}

// A ratio as what was added or saved: 0.74 is "−26 %"; a large one stays as it is.
export function changeOf(ratio) {
  if (!isNumber(ratio)) return null;
  if (ratio >= 10) return formatFactor(ratio) + " ×";
  const share = ratio - 1;
  if (Math.abs(share) < 0.0005) return "±0 %";
  return (share > 0 ? "+" : "−") + formatPercent(Math.abs(share)).replace("<", "below ");
}

export const isSlower = (difference, unit) => (unit === "rate" ? difference < 0 : difference > 0);

export const changeColour = (difference, unit) =>
  isSlower(difference, unit) ? "var(--slower-2)" : "var(--faster-2)";

const STATUS_CHIPS = { moved: "fair", gone: "fair", new: "fair" };

export const statusChip = (status) =>
  STATUS_CHIPS[status] ? el("span", { class: "chip " + STATUS_CHIPS[status] }, status) : null;

// ---------- The table ----------

// Functions and lines may be called the same: their place tells them apart.
export const rowKey = ({ key, file, line }) => (file ? key + " " + file + ":" + line : key);

const FIRST = ["key", "before", "after", "difference", "ratio", "status", "file", "beyond_noise"];
const SHOWN = {
  all: () => true,
  told: (record) => record.beyond_noise === true,
  unmatched: (record) => record.status !== "both",
};

function drawChanges(page, { view, unit, title }) {
  const table = page.tables[view];
  const records = asRecords(table);
  const most = records.reduce((top, one) => Math.max(top, Math.abs(one.difference || 0)), 0) || 1;
  const state = { shown: "all" };
  const count = (name) => records.filter(SHOWN[name]).length;
  append(byId("lead-" + view), [
    "The largest difference is first. ",
    unit === "s" ? ["Times are ", term("per-step", "per step"), ". "] : "",
    "A difference that is no more than ",
    term("noise"),
    " is grey. A row may be ",
    term("moved", "moved, gone or new"),
    ".",
  ]);
  const redraw = makeTable(byId("table-" + view), {
    table,
    name: title,
    first: [...FIRST, "low", "high"],
    hidden: ["reason", "line", "was"],
    keyOf: rowKey,
    filter: (record) => SHOWN[state.shown](record),
    controls: choice(
      "rows",
      [
        ["all", "all"],
        ["told", "more than noise, " + formatWhole(count("told"))],
        ["unmatched", "moved, gone or new, " + formatWhole(count("unmatched"))],
      ],
      state.shown,
      (shown) => {
        state.shown = shown;
        redraw();
      },
    ),
    reveal: (record) => {
      if (SHOWN[state.shown](record)) return;
      state.shown = "all";
      redraw();
    },
    cells: changeCells(unit, most),
  });
}

function changeCells(unit, most) {
  const why = (record, column) => record.reason || column.reason || lacking(record);
  const plain = (value, record, column) => plainCell(column, value, why(record, column));
  const end = (value, record, column) =>
    isNumber(value)
      ? el("td", { class: "number quiet" }, signed(value, unit))
      : plain(value, record, column);
  return {
    key: (value, record) =>
      el(
        "td",
        { class: "text path name", title: value },
        el("span", {}, value),
        record.was
          ? el("div", { class: "quiet was", title: record.was }, "was ", record.was)
          : null,
      ),
    before: plain,
    after: plain,
    low: end,
    high: end,
    difference: (value, record, column) => {
      if (!isNumber(value)) return plain(value, record, column);
      const noise = record.beyond_noise === false;
      const colour = noise ? "var(--builtin)" : changeColour(value, unit);
      const cell = barCell(value, unit, Math.abs(value) / most, colour);
      cell.lastChild.textContent = signed(value, unit);
      if (noise) cell.classList.add("noise");
      return cell;
    },
    ratio: (value, record, column) =>
      isNumber(value)
        ? el("td", { class: "number" }, formatFactor(value) + " ×", ratioChange(value))
        : plain(value, record, column),
    status: (value) => el("td", {}, statusChip(value) || quiet(value)),
    file: (value, record) =>
      value === null
        ? el("td", {}, none("no source file is known"))
        : isNumber(record.line)
          ? placeCell(value, record.line)
          : el("td", { class: "text", title: value }, value),
  };
}

const ratioChange = (ratio) => (ratio < 10 ? quiet(" " + changeOf(ratio)) : null);

const lacking = ({ status }) =>
  status === "gone"
    ? "the second side does not have it"
    : status === "new"
      ? "the first side does not have it"
      : null;

// ---------- The modules as a picture ----------

// From this share on a difference has the next colour.
const LEVELS = [
  [0.2, 3],
  [0.05, 2],
  [0.01, 1],
];
const SAME = "var(--builtin)";

// Slower and faster differ in lightness as little as can be: the sign is in the words as well.
function pictureColour(node) {
  if (!node.changed) return SAME;
  const share = node.before > 0 ? Math.abs(node.changed) / node.before : 1;
  const level = (LEVELS.find(([from]) => share >= from) || [0, 0])[1];
  return level ? "var(--" + (node.changed > 0 ? "slower" : "faster") + "-" + level + ")" : SAME;
}

const toldChange = (node) =>
  node.before === 0 ? "new" : node.after === 0 ? "gone" : changeOf(node.after / node.before);

function changeNodes(picture) {
  const { root, nodes, order } = pictureNodes(picture);
  // Its sum is not that of a step: rows with next to no difference are not listed.
  root.name = "modules and parts of the step";
  const keys = Object.keys(picture.metrics);
  nodes.forEach((node, at) => {
    node.ownOf = Object.fromEntries(keys.map((key) => [key, picture.metrics[key][at] || 0]));
  });
  for (const node of order.reverse()) {
    for (const key of keys)
      node[key] = node.children.reduce((sum, child) => sum + child[key], node.ownOf?.[key] || 0);
    // What differs by rounding alone, against the whole.
    if (Math.abs(node.changed) < 1e-9 * node.larger) node.changed = 0;
    node.value = node.larger;
    node.children.sort((a, b) => b.value - a.value);
    node.told = toldChange(node);
    node.colour = pictureColour(node);
  }
  return { root, nodes };
}

function drawPicture(page, { view }) {
  const rows = new Map(asRecords(page.tables[view]).map((record) => [record.key, rowKey(record)]));
  const picture = view === "modules" && page.module_changes;
  if (!picture) {
    drop("picture-" + view);
    return;
  }
  const { root, nodes } = changeNodes(picture);
  const state = { kind: "icicle", at: root };
  const chart = el("div", { class: "chart" });
  const way = el("div", { class: "breadcrumb" });
  const aside = el("aside");
  append(byId("picture-" + view), [
    el(
      "p",
      { class: "lead" },
      "An area is as wide as the module's own time with what is inside it, on the side where that is larger. Its colour is the difference, as far as it is ",
      term("noise", "more than noise"),
      ".",
    ),
    el(
      "div",
      { class: "tools" },
      choice("drawing", PICTURES, state.kind, (kind) => {
        state.kind = kind;
        redraw();
      }),
      colourLegend(),
    ),
    way,
    el("div", { class: "call-view" }, chart, aside),
  ]);
  const zoomed = () => (state.at.children.length || !state.at.parent ? state.at : state.at.parent);
  const draw = drawHierarchy({
    box: chart,
    kind: () => state.kind,
    areas: () => largestAreas(zoomed()),
    marked: (area) => (area.node === state.at && area.node !== zoomed() ? "match" : null),
    label: () => "hierarchy of the modules, coloured by their difference, " + state.kind,
    tip: (area) => [area.node.path || area.name, area.node.rest ? [] : changeLines(area.node)],
    seen: (area) => describe(area && !area.node.rest ? area.node : state.at),
    open: ({ node }) =>
      open(node.rest ? node.parent : node === zoomed() ? node.parent || node : node),
  });
  function describe(node) {
    aside.replaceChildren();
    append(aside, [
      el("h3", {}, node.path || node.name),
      el(
        "dl",
        { class: "pairs" },
        changeLines(node).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
      ),
      rows.has(node.path)
        ? el("p", { class: "ways" }, linkTo(view, rows.get(node.path), "its row"))
        : null,
      insideList(node, node.value || 1, (child) => toldChange(child), open),
    ]);
  }
  function open(node) {
    state.at = node.kind === "rest" ? node.parent : node;
    redraw();
    if (rows.has(state.at.path))
      pointAt(byId("table-" + view), wayTo(view, rows.get(state.at.path)));
  }
  function redraw() {
    draw();
    way.replaceChildren(...wayThrough(state.at, open));
    describe(state.at);
  }
  redraw();
  // First the picture, which lets the table find the row as well.
  onKey(view, (key) => {
    const node = nodes.find((one) => rows.get(one.path) === key);
    if (node) {
      state.at = node;
      redraw();
    }
    return false;
  });
}

const changeLines = (node) =>
  [
    ["before", formatSeconds(node.before)],
    ["after", formatSeconds(node.after)],
    [
      "difference",
      signed(node.after - node.before, "s") + (node.changed ? "" : ", no more than noise"),
    ],
    ["change", toldChange(node)],
    node.children.length && node.ownOf
      ? ["its own", formatSeconds(node.ownOf.before) + " → " + formatSeconds(node.ownOf.after)]
      : null,
  ].filter(Boolean);

// From the most that was saved to the most that was added.
function colourLegend() {
  const entries = (way) =>
    LEVELS.map(([from, level], at) => [
      "var(--" + way + "-" + level + ")",
      at ? "from " + wholePercent(from) : wholePercent(from) + " " + way + " or more",
    ]);
  return el(
    "ul",
    { class: "legend", "aria-label": "colours" },
    [...entries("faster"), [SAME, "the same or noise"], ...entries("slower").reverse()].map(
      ([colour, words]) => el("li", {}, swatch(colour), words),
    ),
  );
}

const wholePercent = (share) => Math.round(100 * share) + " %";
