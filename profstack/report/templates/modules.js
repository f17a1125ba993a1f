// The view "Modules": a tree whose rows hold what all layers measured of a module, and a picture.
// Parts of the step outside modules are last.

import {
  cutText,
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
  exactPercent,
  figure,
  formatPercent,
  formatSeconds,
  formatValue,
  formatWhole,
  isNumber,
  none,
  pairs,
  partColour,
  provenance,
  quiet,
  RAW_TORCH,
  remark,
  select,
  swatch,
  term,
} from "./dom.js";
import { linesWithin } from "./python.js";
import {
  asRecords,
  barCell,
  columnOf,
  makeNode,
  makeTree,
  nearestParent,
  plainCell,
  twigCell,
  whyEmpty,
} from "./table.js";
import { drop, linkFiltered, linkTo, moduleWays, onKey, rowsOf, wayTo } from "./views.js";

export const modulesView = {
  id: "modules",
  title: "Modules",
  needs: ["modules", "module_picture", "module_lines"],
  parts: [["modules", drawModules]],
};

function buildForest(table) {
  const roots = [];
  const known = new Map();
  for (const record of asRecords(table)) {
    const part = record.path.startsWith("(");
    const parent = part || record.depth === 0 ? null : nearestParent(record.path, ".", known);
    const node = makeNode(record, parent, record.path, record.path + " " + (record.type || ""));
    node.part = part;
    node.name = parent ? record.path.slice(parent.record.path.length + 1) : record.path;
    known.set(record.path, node);
    if (!parent) roots.push(node);
  }
  return roots;
}

const MODULE_FIRST = [
  "path",
  "calibrated_s",
  "forward_s",
  "backward_s",
  "recomputed_s",
  "self_s",
  "python_s",
  "forward_device_s",
  "backward_device_s",
  "forward_flop",
  "backward_flop",
  "flop_per_s",
  "host_net_bytes",
  "host_peak_bytes",
  "device_net_bytes",
  "device_peak_bytes",
  "calls",
  "parameters",
  "type",
];
const MODULE_HIDDEN = ["instance", "depth", "aliases", "label"];
const MODULE_BARS = {
  forward_s: "var(--forward)",
  backward_s: "var(--backward)",
  recomputed_s: "var(--recomputed)",
  self_s: "var(--self)",
  python_s: "var(--file-5)",
};

function drawModules(page) {
  const table = page.tables.modules;
  if (!table) {
    drop("modules");
    return;
  }
  const records = asRecords(table);
  const median = page.facts.benchmark.median_s;
  const most =
    records.reduce(
      (top, record) =>
        Math.max(top, record.forward_s || 0, record.backward_s || 0, record.self_s || 0),
      0,
    ) || 1;
  const picture = el("div", { id: "module-picture" });
  byId("module-tree").before(picture);
  const choose = drawModulePicture(picture, page, (node) => {
    if (node.row) pointAt(byId("module-tree"), wayTo("modules", node.path));
  });
  const show = (path) => {
    if (choose(path)) picture.scrollIntoView({ block: "nearest" });
  };
  // First the picture, which lets the table find the row as well.
  onKey("modules", (path) => {
    choose(path);
    return false;
  });
  const tree = makeTree(byId("module-tree"), {
    table,
    roots: buildForest(table),
    name: "modules",
    view: "modules",
    keyOf: (record) => record.path,
    sort: { key: "path", direction: 1 },
    inOrder: "path",
    first: MODULE_FIRST,
    hidden: MODULE_HIDDEN,
    levels: [
      ["roots", 0],
      ["2 levels", 1],
      ["3 levels", 2],
      ["all", 99],
    ],
    note: sumNote(page.facts.attribution),
    cell: (column, node, depth, toggle) =>
      moduleCell(column, node, depth, toggle, { most, median, show }),
    ways: (node) => (node.part ? null : moduleLinks(node.record.path, page)),
  });
  tree.unfold(table.rows.length > 60 ? 2 : 3);
}

function moduleCell(column, node, depth, toggle, view) {
  const record = node.record;
  if (column.key === "path") return pathCell(node, depth, toggle, view);
  if (column.key === "calibrated_s") return calibratedCell(record, view.median, whyEmpty(column));
  // A part outside modules has no parameters and no calls: no measurement is lacking there.
  const reason =
    column.reason ||
    (node.part && column.key === "forward_s"
      ? "it is not a module's forward: its time is in the column self"
      : node.part
        ? "a part of the step outside modules"
        : column.cell_reason);
  const colour = MODULE_BARS[column.key];
  if (colour)
    return barCell(record[column.key], "s", record[column.key] / view.most, colour, reason);
  return plainCell(column, record[column.key], reason);
}

// The name chooses the module in the picture.
function pathCell(node, depth, toggle, view) {
  const record = node.record;
  const whole = record.path + (record.aliases ? "\nalso " + record.aliases : "");
  return twigCell(
    node,
    depth,
    toggle,
    whole,
    el(
      "button",
      {
        type: "button",
        class: "link name",
        title: whole + "\na click shows it in the picture",
        onclick: () => view.show(record.path),
      },
      node.name,
    ),
    record.label ? quiet(" = " + record.label) : null,
  );
}

// The calibrated time, its bar cut into forward and backward as the layer's slice saw them.
function calibratedCell(record, median, reason) {
  const share = record.calibrated_s / median;
  const cell = barCell(record.calibrated_s, "s", null, null, reason);
  if (isNumber(record.calibrated_s) && median) {
    const both = (record.forward_s || 0) + (record.backward_s || 0);
    const forward = both > 0 ? (record.forward_s || 0) / both : 1;
    const start = el("span", { class: "fill", "aria-hidden": "true" });
    start.style.width = Math.min(100, Math.max(0, 100 * share * forward)) + "%";
    start.style.background = record.path.startsWith("(")
      ? partColour({ name: record.path })
      : "var(--forward)";
    const rest = el("span", { class: "fill", "aria-hidden": "true" });
    rest.style.left = start.style.width;
    rest.style.width = Math.min(100, Math.max(0, 100 * share * (1 - forward))) + "%";
    rest.style.background = record.path.startsWith("(")
      ? start.style.background
      : "var(--backward)";
    cell.prepend(start, rest);
    cell.append(el("span", { class: "share over" }, formatPercent(share)));
  }
  cell.classList.add("calibrated");
  return cell;
}

// Whether the rows add up to the step, and what of it has no owner.
function sumNote(sums) {
  if (!sums) return null;
  if (!isNumber(sums.step_s) || !isNumber(sums.rows_s)) {
    return el(
      "p",
      { class: "sum", id: "module-sum" },
      "The rows cannot be held against a step: " + (sums.reason || "no slice timed modules") + ".",
    );
  }
  const words = [
    el(
      "b",
      {},
      "Self times of all rows add up to " +
        formatSeconds(sums.rows_s) +
        " of a mean step of " +
        formatSeconds(sums.step_s),
    ),
    " as the torch layer saw it; ",
    el("b", {}, isNumber(sums.owned_share) ? exactPercent(sums.owned_share) : none(sums.reason)),
    " of it ",
    term("owner", "has an owner"),
    ".",
  ];
  const rest = (sums.unowned || []).filter((row) => row.self_s);
  words.push(
    rest.length
      ? [
          " Not owned: ",
          rest.map((row, at) => [
            at ? ", " : "",
            row.path,
            " ",
            formatSeconds(row.self_s),
            isNumber(row.share) ? " (" + exactPercent(row.share) + ")" : "",
          ]),
          ".",
        ]
      : " Nothing is left without one.",
  );
  if (isNumber(sums.calibrated_owned_s) && isNumber(sums.clean_median_s) && sums.clean_median_s) {
    words.push(
      " ",
      term("calibrated", "Calibrated"),
      ", the owned rows are " +
        formatSeconds(sums.calibrated_owned_s) +
        " of the clean median of " +
        formatSeconds(sums.clean_median_s) +
        " (" +
        exactPercent(sums.calibrated_owned_s / sums.clean_median_s) +
        ").",
    );
  }
  if (isNumber(sums.backward_attributed_share)) {
    words.push(
      " Of the backward pass (" +
        formatSeconds(sums.backward_s) +
        ") " +
        exactPercent(sums.backward_attributed_share) +
        " is at the module that its work is for.",
    );
  }
  if (sums.negative_rows)
    words.push(
      el(
        "span",
        { class: "bad-word" },
        " " +
          sums.negative_rows +
          (sums.negative_rows === 1 ? " row has" : " rows have") +
          " a self time below 0: the sums above are wrong there.",
      ),
    );
  return el("p", { class: "sum", id: "module-sum" }, words);
}

// ---------- The picture of the modules ----------

// What the areas can stand for: label, unit, and a note on what is not drawn.

const MODULE_METRICS = {
  calibrated_s: ["calibrated time", "s"],
  self_s: ["forward and backward", "s"],
  forward_s: ["forward", "s"],
  backward_s: ["backward", "s"],
  python_s: ["Python cost", "s"],
  device_s: ["device time", "s"],
  flop: ["FLOP", "flop", "holds more than its parts"],
  host_net_bytes: ["host memory kept", "bytes", "give back what modules inside them took"],
  device_net_bytes: ["device memory kept", "bytes", "give back what modules inside them took"],
  parameters: [
    "parameters",
    "count",
    "hold parameters that several modules inside them share; each is drawn with all of its own",
  ],
};
const METRIC_SAYS = {
  self_s: "self times: a module's area is its own and those of the modules in it",
  forward_s: "forward passes; the loss beside them",
  python_s: "self time outside operators: a module's own Python code, and the framework's",
  flop: "operations of forward and backward",
  peak: "bytes alive at the step's peak, at the module that made them",
};
const TYPE_COLOURS = 7; // the commonest types have colours of their own

const metricLabel = (metric) =>
  metric.device === null
    ? MODULE_METRICS[metric.key][0]
    : "memory at the peak" + (metric.device === "cpu" ? "" : ", " + metric.device);
const metricUnit = (metric) => (metric.device === null ? MODULE_METRICS[metric.key][1] : "bytes");

// The tree of the picture for one metric. Sums are made of the same parts, so that they hold.
function moduleNodes(picture, metric, rows, colours) {
  const { root, nodes, order } = pictureNodes(picture);
  nodes.forEach((node, at) => {
    node.own = metric.own[at];
    node.row = rows.get(node.path) || null;
    node.colour =
      node.kind === "part"
        ? partColour({ name: node.path })
        : (node.row && colours.get(node.row.type)) || "var(--builtin)";
  });
  for (const node of order.reverse()) {
    node.value = node.children.reduce((sum, child) => sum + child.value, 0) + (node.own || 0);
    node.told = formatValue(node.value, metricUnit(metric));
  }
  return { root, nodes };
}

// Types by what is their own, over all modules: one colour each on the whole page.
function typeColours(picture, records) {
  const types = new Map(records.map((record) => [record.path, record.type]));
  const metric = picture.metrics[0];
  const sums = new Map();
  if (metric) {
    const { nodes } = moduleNodes(picture, metric, new Map(), new Map());
    for (const node of nodes)
      if (types.get(node.path))
        sums.set(types.get(node.path), (sums.get(types.get(node.path)) || 0) + (node.own || 0));
  }
  const ranked = [...sums.entries()].sort((a, b) => b[1] - a[1]).map(([type]) => type);
  return new Map(ranked.slice(0, TYPE_COLOURS).map((type, at) => [type, "var(--file-" + at + ")"]));
}

// Draws the picture into `box`. Returns select(path): chooses a module there, as a click does.
function drawModulePicture(box, page, onChoose) {
  const data = page.module_picture;
  if (!data?.metrics.length) return () => false;
  const table = page.tables.modules;
  const records = asRecords(table);
  const rows = new Map(records.map((record) => [record.path, record]));
  const colours = typeColours(data, records);
  const state = { kind: "icicle", metric: data.metrics[0], root: null, nodes: [], at: null };
  const places = {
    way: el("div", { class: "breadcrumb" }),
    chart: el("div", { class: "chart" }),
    aside: el("aside"),
    types: el("div"),
    said: el("p", { class: "quiet" }),
  };
  append(box, [
    el(
      "div",
      { class: "tools" },
      choice("drawing", PICTURES, state.kind, (kind) => {
        state.kind = kind;
        redraw();
      }),
      metricSelect(data, state, (metric) => {
        state.metric = metric;
        grow();
        redraw();
      }),
    ),
    places.way,
    el("div", { class: "call-view" }, el("div", {}, places.chart, places.types), places.aside),
    places.said,
  ]);

  function grow() {
    const path = state.at?.path;
    const grown = moduleNodes(data, state.metric, rows, colours);
    Object.assign(state, grown);
    state.at = (path && state.nodes.find((node) => node.path === path)) || state.root;
  }
  const zoomed = () => {
    let node = state.at;
    while (node.parent && (!node.children.length || !(node.value > 0))) node = node.parent;
    return node;
  };
  const draw = drawHierarchy({
    box: places.chart,
    kind: () => state.kind,
    areas: () => largestAreas(zoomed()),
    marked: (area) => (area.node === state.at && area.node !== zoomed() ? "match" : null),
    label: () => "hierarchy of the modules by " + metricLabel(state.metric) + ", " + state.kind,
    tip: (area) => moduleTip(area, state, page),
    seen: (area) =>
      describeModule(
        places.aside,
        area && !area.node.rest ? area.node : state.at,
        state,
        page,
        open,
      ),
    open: (area) => {
      if (area.node.rest) openRest(area.node);
      else open(area.node === zoomed() && area.node.parent ? area.node.parent : area.node);
    },
  });
  const openRest = (rest) => open(rest.parent);
  function open(node) {
    state.at = node.kind === "rest" ? node.parent : node;
    redraw();
    onChoose(state.at);
  }
  function redraw() {
    draw();
    const zoom = zoomed();
    places.way.replaceChildren(...wayThrough(state.at, open));
    describeModule(places.aside, state.at, state, page, open);
    places.types.replaceChildren(typeLegend(zoom, state.metric, colours));
    places.said.replaceChildren(...moduleWords(data, state.metric, table));
  }
  grow();
  redraw();
  return (path) => {
    const node = state.nodes.find((one) => one.path === path);
    if (!node) return false;
    state.at = node;
    redraw();
    return true;
  };
}

function metricSelect(data, state, onChoose) {
  return select(
    "area",
    data.metrics.map((metric) => [metric.key, metricLabel(metric)]),
    state.metric.key,
    (key) => onChoose(data.metrics.find((metric) => metric.key === key)),
  );
}

// Whose a figure is, as the page's tables have it.
function metricOrigin(metric, page) {
  if (metric.device !== null) return RAW_TORCH;
  return (
    page.tables.modules.columns
      .filter((column) => metric.columns.includes(column.key))
      .find(provenance) || {}
  );
}

function moduleTip(area, state, page) {
  const node = area.node;
  const unit = metricUnit(state.metric);
  const source = provenance(metricOrigin(state.metric, page));
  const figure = [metricLabel(state.metric), formatValue(area.value, unit)];
  const shares = [
    ["of the step", formatPercent(area.value / state.root.value)],
    node.parent?.parent
      ? ["of " + node.parent.name, formatPercent(area.value / node.parent.value)]
      : null,
  ];
  if (node.rest || node.kind === "rest")
    return [
      formatWhole(node.count) + " smaller ones",
      [figure, ...shares, ["drawn", "as one area"]],
    ];
  return [
    node.path || node.name,
    [
      figure,
      node.own !== null && node.children.length
        ? ["of it its own", formatValue(node.own, unit)]
        : null,
      ...shares,
      node.row?.type ? ["type", node.row.type] : null,
      source ? ["this is", source] : null,
    ],
  ];
}

const DETAIL_KEYS = [
  "calibrated_s",
  "forward_s",
  "backward_s",
  "self_s",
  "python_s",
  "forward_device_s",
  "backward_device_s",
  "forward_flop",
  "backward_flop",
  "flop_per_s",
  "host_net_bytes",
  "device_net_bytes",
  "parameters",
  "calls",
];

function describeModule(box, node, state, page, open) {
  const unit = metricUnit(state.metric);
  const origin = metricOrigin(state.metric, page);
  const told = (value) =>
    figure(value, unit, { layer: origin.layer, kind: origin.kind, source: origin.source });
  const row = node.row;
  const share =
    state.root.value > 0 ? formatPercent(node.value / state.root.value) + " of the step" : "";
  const columns = new Map(page.tables.modules.columns.map((column) => [column.key, column]));
  const figures = row
    ? DETAIL_KEYS.filter((key) => columns.has(key) && isNumber(row[key])).map((key) => [
        columns.get(key).label,
        figure(row[key], columns.get(key).unit, columns.get(key)),
      ])
    : [];
  const ways = row
    ? [linkTo("modules", node.path, "its row"), ...moduleLinks(node.path, page)]
    : [];
  const parts = [
    el("h3", {}, node.path || node.name),
    row?.type
      ? el("p", { class: "quiet place" }, row.type + (row.label ? " = " + row.label : ""))
      : null,
    row?.aliases ? remark("also " + row.aliases) : null,
    el(
      "p",
      {},
      el("b", {}, told(node.value)),
      " " + metricLabel(state.metric),
      quiet(node.parent ? ", " + share : ""),
    ),
    node.children.length && node.own !== null && node.parent
      ? remark(told(node.own), " of it its own")
      : null,
    ways.length
      ? el(
          "p",
          { class: "ways" },
          ways.flatMap((way, at) => (at ? [" · ", way] : [way])),
        )
      : null,
    figures.length
      ? el("details", { open: true }, el("summary", {}, "its figures"), pairs(figures))
      : null,
    insideList(node, node.value || 1, (child) => told(child.value), open),
  ];
  box.replaceChildren();
  append(box, parts);
}

// One click from a module to all that lies in it, as far as the page has it.
function moduleLinks(path, page) {
  const ways = moduleWays(path);
  if (rowsOf(page, "functions") && linesWithin(page, path).length)
    ways.push(linkFiltered("python", { module: path }, "functions"));
  if (rowsOf(page, "peak_holders"))
    ways.push(linkFiltered("memory", { module: path }, "memory holders"));
  return ways.filter(Boolean);
}

// What each type takes by itself under the node that is drawn: own areas add up to the picture.
function typeLegend(root, metric, colours) {
  const sums = new Map();
  const work = [root];
  while (work.length) {
    const node = work.pop();
    const type =
      node.kind === "part"
        ? node.name
        : node.row?.type || (node.kind === "all" ? null : "(others)");
    if (type && node.own > 0) sums.set(type, (sums.get(type) || 0) + node.own);
    work.push(...node.children);
  }
  const ranked = [...sums.entries()].sort((a, b) => b[1] - a[1]).slice(0, 10);
  return el(
    "ul",
    { class: "legend" },
    ranked.map(([type, sum]) =>
      el(
        "li",
        { title: type },
        swatch(
          colours.get(type) ||
            (type.startsWith("(") ? partColour({ name: type }) : "var(--builtin)"),
        ),
        cutText(type, 60) + " ",
        el("b", {}, formatValue(sum, metricUnit(metric))),
        quiet(" " + formatPercent(sum / root.value)),
      ),
    ),
  );
}

// What the picture draws and what it does not, in words.
function moduleWords(data, metric, table) {
  const words = [
    "An area is a module's own and the modules in it, " +
      (METRIC_SAYS[metric.device === null ? metric.key : "peak"] || metricLabel(metric)) +
      "; parts of the step are beside the roots; what a type takes by itself is under " +
      "the picture. A click opens a module.",
  ];
  if (metric.below > 0) {
    const unit = metricUnit(metric);
    words.push(
      " " +
        formatWhole(metric.below_count) +
        (metric.below_count === 1 ? " module" : " modules") +
        ": " +
        ((MODULE_METRICS[metric.key] || [])[2] || "have less than what lies in them") +
        ". What is drawn is " +
        formatValue(metric.below, unit) +
        " more than the rows of the roots tell for that reason.",
    );
  }
  const folded = data.kinds.filter((kind) => kind === "rest").length;
  if (folded)
    words.push(
      " Of " +
        formatWhole(data.total) +
        " modules and parts the largest " +
        formatWhole(data.names.length - folded) +
        " are on this page by themselves, the others as sums.",
    );
  const calibrated = columnOf(table, "calibrated_s");
  if (calibrated?.reason && !data.metrics.some((one) => one.key === "calibrated_s"))
    words.push(" There is no calibrated time: " + calibrated.reason + ".");
  return words;
}
