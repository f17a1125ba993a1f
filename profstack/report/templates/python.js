// The view "Python": functions, the user's own files first and libraries folded, and call paths.
// calltree.js draws the picture of the calls.

import { drawCallTree, OWN_FILES } from "./calltree.js";
import {
  append,
  byId,
  choice,
  el,
  figure,
  none,
  pairs,
  provenance,
  quiet,
  RAW_TORCH,
  remark,
  swatch,
  term,
} from "./dom.js";
import {
  formatFactor,
  formatPercent,
  formatSeconds,
  formatValue,
  formatWhole,
  isNumber,
  shortPath,
} from "./format.js";
import { drawHierarchy, insideList, largestAreas, PICTURES, wayThrough } from "./hierarchy.js";
import {
  asRecords,
  barCell,
  columnOf,
  compareBy,
  lackingTable,
  longestOf,
  makeTable,
  ownColumn,
  plainCell,
  whyEmpty,
} from "./table.js";
import { makeNode, makeTree, twigCell } from "./tree.js";
import { drop, filterOf, isWithin, linkTo, onFilter, onKey, settledSlices } from "./views.js";

export const pythonView = {
  id: "python",
  title: "Python",
  needs: ["functions", "call_paths", "call_trees", "slices", "module_lines"],
  shows: ["functions", "call_paths"],
  parts: [["functions", drawFunctions, drawCallPaths]],
};

const GROUP_SUMS = [
  "self_s",
  "calibrated_s",
  "corrected_self_s",
  "calls",
  "primitive_calls",
  "watch_share",
];
export const isOwn = (record) =>
  record.own === null || record.own === undefined ? record.package === OWN_FILES : record.own;

function drawFunctions(page) {
  const table = page.tables.functions;
  if (!table) {
    if (!page.tables.call_paths) {
      drop("functions");
      return;
    }
    byId("call-tree").remove();
    byId("function-table").append(remark("The cprofile layer saw no function in this run."));
    return;
  }
  const showRoot = drawCallTree(page);
  const records = asRecords(table);
  const phases = ["step", "startup"].filter((phase) =>
    records.some((record) => record.phase === phase),
  );
  const state = { phase: phases[0], only: null };
  const kept = () =>
    state.only ? records.filter((record) => state.only.has(recordKey(record))) : records;
  const boxes = {
    grouped: el("div", { id: "function-groups" }),
    all: el("div", { id: "function-list", hidden: true }),
  };
  const rows = choice(
    "rows",
    [
      ["grouped", "own files and libraries"],
      ["all", "all functions"],
    ],
    "grouped",
    (kind) => {
      for (const [name, box] of Object.entries(boxes)) box.hidden = name !== kind;
    },
  );
  const controls =
    phases.length > 1
      ? choice(
          "phase",
          phases.map((phase) => [phase, phase === "step" ? "steps" : "start-up"]),
          state.phase,
          (phase) => {
            state.phase = phase;
            redraw();
            tree.put(functionGroups(kept(), phase));
          },
        )
      : null;
  const said = el("p", { class: "quiet", id: "function-filter", hidden: true });
  append(byId("function-table"), [
    el("div", { class: "tools" }, rows, controls),
    said,
    boxes.grouped,
    boxes.all,
  ]);
  // In the tree of calls and in this table a function is the same one; the table marks its row.
  const known = new Map(
    records
      .slice()
      .reverse()
      .map((record) => [recordKey(record), record]),
  );
  onKey("python", (key) => {
    if (known.has(key)) showRoot(known.get(key));
    return false;
  });
  const reveal = (record) => {
    rows.firstChild.click();
    if (controls && record.phase !== state.phase)
      controls.children[phases.indexOf(record.phase)].click();
  };
  const nameCell = (record) =>
    el(
      "button",
      {
        type: "button",
        class: "link",
        title: record.name + "\na click shows it in the call tree, with its callers and callees",
        onclick: () => {
          if (showRoot(record)) byId("call-tree").scrollIntoView({ block: "start" });
        },
      },
      record.name,
    );
  const first = ["name", "self_s", "total_s", "calibrated_s", "calls"];
  const longest = Object.fromEntries(
    phases.map((phase) => [
      phase,
      longestOf(
        records.filter((record) => record.phase === phase),
        ["self_s", "total_s"],
      ),
    ]),
  );
  const tree = makeTree(boxes.grouped, {
    table,
    roots: functionGroups(records, state.phase),
    name: "functions",
    sort: { key: "self_s", direction: -1 },
    first,
    hidden: ["phase", "line", "own", "package"],
    view: "python",
    keyOf: recordKey,
    reveal,
    levels: [
      ["fold all", 0],
      ["unfold all", 1],
    ],
    cell: (column, node, depth, toggle) =>
      functionCell(column, node, depth, toggle, { most: longest[state.phase], nameCell }),
  });
  const redraw = makeTable(boxes.all, {
    table,
    name: "functions",
    sort: { key: "self_s", direction: -1 },
    bars: ["self_s", "total_s"],
    barColour: "var(--self)",
    hidden: ["phase", "line", "own"],
    first,
    filter: (record) =>
      record.phase === state.phase && (!state.only || state.only.has(recordKey(record))),
    cells: {
      file: (value, record) => el("td", { class: "text", title: value }, functionFile(record)),
      name: (value, record) => el("td", { class: "text", title: value }, nameCell(record)),
    },
  });
  const keep = ({ module }) => {
    state.only = module ? functionsWithin(page, records, module) : null;
    said.hidden = !module;
    said.replaceChildren(
      ...(module
        ? [
            "Functions of the user's own files with lines that ran in ",
            linkTo("modules", module, module),
            ": " + formatWhole(state.only.size) + ". The pictures show all functions.",
          ]
        : []),
    );
    redraw();
    tree.put(functionGroups(kept(), state.phase));
    const heaviest = module && kept().sort(compareBy("self_s", -1))[0];
    if (heaviest) showRoot(heaviest);
  };
  onFilter("python", keep);
  if (filterOf("python").module) keep(filterOf("python"));
}

// The lines that ran in a module, as far as the page has them: those of the user's own files.
let moduleLines = null;
export function linesWithin(page, path) {
  moduleLines =
    moduleLines ||
    (page.tables.module_lines
      ? asRecords(page.tables.module_lines).filter((line) => line.module !== null)
      : []);
  return moduleLines.filter((line) => isWithin(line.module, path));
}

// Functions with a line that ran in a module: of each line, the function whose definition is the
// last one above it in its file.
function functionsWithin(page, records, path) {
  const found = new Set();
  for (const line of linesWithin(page, path)) {
    const above = records.filter((record) => record.file === line.file && record.line <= line.line);
    if (above.length) found.add(recordKey(above.reduce((a, b) => (b.line > a.line ? b : a))));
  }
  return found;
}

const recordKey = (record) => record.file + ":" + record.line + ":" + record.name;
// The place of a function; of the user's own it leads to the source line.
function functionFile(record) {
  if (record.file === "~") return quiet("built-in");
  const place = shortPath(record.file) + ":" + record.line;
  return isOwn(record) ? linkTo("source", record.file + ":" + record.line, place) : place;
}

// A row for each file of the user's own and each library, with what can be added up of its rows.
function functionGroups(records, phase) {
  const groups = new Map();
  for (const record of records) {
    if (record.phase !== phase) continue;
    const own = isOwn(record);
    const name = own ? record.file : record.package;
    const key = (own ? "own " : "library ") + name;
    if (!groups.has(key)) {
      const node = makeNode(
        { name, own, file: own ? record.file : null, total_s: null },
        null,
        key,
        String(name),
      );
      node.group = true;
      node.part = !own;
      node.open = own;
      groups.set(key, node);
    }
    makeNode(
      record,
      groups.get(key),
      key + " " + record.file + ":" + record.line + " " + record.name,
      record.name + " " + record.file,
    );
  }
  for (const node of groups.values()) {
    for (const key of GROUP_SUMS) {
      const values = node.children.map((child) => child.record[key]).filter(isNumber);
      // A sum over some rows would look like one over all; only the watch may leave rows out.
      const whole =
        values.length === node.children.length || (key === "watch_share" && values.length);
      node.record[key] = whole ? values.reduce((sum, value) => sum + value, 0) : null;
    }
  }
  return [...groups.values()].sort((a, b) => a.part - b.part);
}

const GROUP_REASONS = { total_s: "times with callees hold one another and cannot be added" };

function functionCell(column, node, depth, toggle, view) {
  const record = node.record;
  const value = record[column.key] ?? null;
  if (column.key === "name" && node.group) {
    return twigCell(
      node,
      depth,
      toggle,
      String(record.name),
      el("b", {}, record.own ? shortPath(record.name) : record.name),
      quiet(" " + node.children.length + (node.children.length === 1 ? " function" : " functions")),
    );
  }
  if (column.key === "name")
    return twigCell(node, depth, toggle, record.name, view.nameCell(record));
  if (column.key === "file")
    return node.group
      ? el("td")
      : el("td", { class: "text", title: record.file }, functionFile(record));
  const reason = node.group
    ? GROUP_REASONS[column.key] || column.reason || "not known of all its functions"
    : whyEmpty(column);
  if (column.key === "self_s" || column.key === "total_s") {
    const share = node.group ? null : value / view.most[column.key];
    return barCell(value, "s", share, "var(--self)", reason);
  }
  return plainCell(column, value, reason);
}

// ---------- Call paths ----------

// Exact paths from a Python function over operators to kernels, unfolded from the outside in.

const PATH_ROWS = 60; // as many rows are unfolded from the start, along the heaviest ways
const PATH_COLOURS = {
  function: "var(--file-2)",
  operator: "var(--forward)",
  kernel: "var(--backward)",
};

// The picture and the rows under it have one legend.
const pathColour = (record) =>
  (record.kind === "function" && !record.own ? null : PATH_COLOURS[record.kind]) ||
  "var(--builtin)";

function drawCallPaths(page) {
  const box = byId("call-paths");
  const table = page.tables.call_paths;
  if (!box) return;
  if (!table) {
    lackingTable(
      box,
      page,
      "From function to operator to kernel",
      "stacks",
      "noted the Python stack",
    );
    return;
  }
  const share = ownColumn(
    "share",
    "share",
    "share",
    "time with callees over that of all paths",
    "its time was not measured",
    { layer: "torch", kind: "raw" },
  );
  const columns = [...table.columns, share];
  const records = asRecords(table);
  const whole = records
    .filter((record) => record.parent === null)
    .reduce((sum, record) => sum + (record.total_s || 0), 0);
  for (const record of records)
    record.share = isNumber(record.total_s) && whole ? record.total_s / whole : null;
  const rows = records.map((record) => columns.map((column) => record[column.key]));
  const place = el("div");
  const picture = el("div", { id: "path-picture" });
  box.append(
    el("h3", {}, "From function to operator to kernel"),
    el(
      "p",
      { class: "lead" },
      "Exact ",
      term("call-path", "paths"),
      " per ",
      term("step", "step"),
      ", of a slice in which the torch layer noted the Python stack too. ",
      tracerWords(page),
      " Compare rows with one another, not with the clean step.",
    ),
    picture,
    place,
  );
  const most = whole || 1;
  const flame = drawPathPicture(picture, page);
  const tree = makeTree(place, {
    table: { ...table, columns, rows },
    roots: pathForest(records, true),
    name: "call paths",
    sort: { key: "total_s", direction: -1 },
    first: ["name", "total_s", "self_s", "share", "device_s", "calls", "kind", "file"],
    hidden: ["node", "parent", "line", "own"],
    controls: choice(
      "frames",
      [
        ["all", "all frames"],
        ["own", "own files, operators, kernels"],
      ],
      "all",
      (kind) => {
        tree.put(pathForest(records, kind === "all"));
        flame.put(pathForest(records, kind === "all"));
      },
    ),
    levels: [
      ["fold all", 0],
      ["unfold all", 9999],
    ],
    cell: (column, node, depth, toggle) => pathNodeCell(column, node, depth, toggle, most),
  });
  flame.put(pathForest(records, true));
}

const PATH_SAYS = { total_s: "host time", device_s: "device time of the kernels under it" };

// The same paths as a picture: what lies under a frame was called by it, or launched.
function drawPathPicture(box, page) {
  const state = { kind: "flame", metric: "total_s", forest: [], root: null, at: null };
  const table = page.tables.call_paths;
  const column = (key) => columnOf(table, key);
  const hasDevice = table.rows.some((row) => row[table.columns.indexOf(column("device_s"))] > 0);
  const chart = el("div", { class: "chart" });
  const way = el("div", { class: "breadcrumb" });
  const aside = el("aside");
  append(box, [
    el(
      "div",
      { class: "tools" },
      choice("drawing of the paths", PICTURES, state.kind, (kind) => {
        state.kind = kind;
        redraw();
      }),
      hasDevice
        ? choice(
            "time",
            [
              ["total_s", "host time"],
              ["device_s", "device time"],
            ],
            state.metric,
            (metric) => {
              state.metric = metric;
              grow();
              redraw();
            },
          )
        : null,
      el(
        "ul",
        { class: "legend" },
        Object.entries(PATH_COLOURS).map(([kind, colour]) =>
          el("li", {}, swatch(colour), kind === "function" ? "own function" : kind),
        ),
        el("li", {}, swatch("var(--builtin)"), "library function"),
      ),
    ),
    way,
    el("div", { class: "call-view" }, chart, aside),
  ]);
  const share = (node) => formatPercent(node.value / (state.root.value || 1)) + " of all paths";
  const rows = (node) => [
    [PATH_SAYS[state.metric], formatSeconds(node.value) + ", " + share(node)],
    ...["self_s", "device_s", "calls"]
      .filter((key) => node.record && isNumber(node.record[key]))
      .map((key) => [column(key).label, formatValue(node.record[key], column(key).unit)]),
    ["this is", provenance(column(state.metric))],
  ];
  const open = (node) => {
    state.at = node.rest ? node.parent : node;
    redraw();
  };
  const tell = (node) => {
    aside.replaceChildren();
    const record = node.record;
    append(aside, [
      el("h3", {}, node.name),
      record?.file ? el("p", { class: "quiet place" }, functionFile(record)) : null,
      record && record.kind === "operator"
        ? el("p", {}, linkTo("operators", record.name, "its row among the operators"))
        : null,
      record && record.kind === "kernel"
        ? el("p", {}, linkTo("kernels", record.name, "its row among the kernels"))
        : null,
      pairs(rows(node)),
      insideList(node, node.value || 1, (child) => figure(child.value, "s", RAW_TORCH), open),
    ]);
  };
  const draw = drawHierarchy({
    box: chart,
    kind: () => state.kind,
    areas: () => largestAreas(state.at),
    marked: () => null,
    label: () => "call paths by " + PATH_SAYS[state.metric] + ", " + state.kind,
    tip: (area) =>
      area.node.rest
        ? [area.name + " ones", [[PATH_SAYS[state.metric], formatSeconds(area.value)]]]
        : [area.name, rows(area.node)],
    seen: (area) => tell(area && !area.node.rest ? area.node : state.at),
    open: (area) => open(area.node === state.at && state.at.parent ? state.at.parent : area.node),
  });
  function grow() {
    state.root = pathNodes(state.forest, state.metric);
    state.at = state.root;
  }
  function redraw() {
    draw();
    way.replaceChildren(...wayThrough(state.at, open));
    tell(state.at);
  }
  return {
    put: (forest) => {
      state.forest = forest;
      grow();
      redraw();
    },
  };
}

// Rows of the tree as nodes of the picture; without recursion, paths can be long.
function pathNodes(forest, metric) {
  const root = {
    name: "all paths",
    record: null,
    parent: null,
    children: [],
    colour: "var(--lane)",
    count: 0,
  };
  const order = [root];
  const add = (twig, parent) => {
    const record = twig.record;
    const node = {
      name: record.name,
      record,
      parent,
      children: [],
      colour: pathColour(record),
      count: 1,
      twig,
    };
    parent.children.push(node);
    order.push(node);
  };
  for (const twig of forest) add(twig, root);
  for (let at = 1; at < order.length; at += 1)
    for (const twig of order[at].twig.children) add(twig, order[at]);
  for (const node of order.slice().reverse()) {
    const inside = node.children.reduce((sum, child) => sum + child.value, 0);
    // Sums of rounded times may be longer than the whole in their last digit.
    node.value = Math.max(node.record ? node.record[metric] || 0 : 0, inside);
    node.told = formatSeconds(node.value);
    node.children.sort((a, b) => b.value - a.value);
  }
  return root;
}

// How much slower the steps with stacks were; measured, where their slices have a step time.
function tracerWords(page) {
  const median = page.facts.benchmark.median_s;
  const traced = settledSlices(page, (slice) => slice.mode === "stacks");
  const words =
    "The stack tracer slows every Python call, so these times are longer than clean ones";
  if (!traced.length || !median) return words + ".";
  return (
    words +
    ": the median step took " +
    formatFactor(Math.max(...traced.map((slice) => slice.step_median_s)) / median) +
    " times the clean one. Times below are means."
  );
}

// Nodes by parent. Without libraries their frames go, and what they took themselves counts for the
// next frame out that stays, so that self times still add up to the time with callees.
function pathForest(records, all) {
  const roots = [];
  const places = new Map();
  const isShown = (record) => all || record.kind !== "function" || record.own !== false;
  const sorted = byParents(records);
  for (const record of sorted) {
    const above = places.get(record.parent) || null;
    if (!isShown(record)) {
      places.set(record.node, above);
      if (above)
        above.record = { ...above.record, self_s: sumOrNull(above.record.self_s, record.self_s) };
      continue;
    }
    const node = makeNode(
      { ...record },
      above,
      record.node,
      [record.name, record.file, record.kind].join(" "),
    );
    if (!above) roots.push(node);
    places.set(record.node, node);
  }
  unfoldHeaviest(roots);
  return roots;
}

// Opens the heaviest folded row again and again, until the rows fill about a screen.
function unfoldHeaviest(roots) {
  const folded = roots.slice();
  let rows = roots.length;
  while (folded.length) {
    let at = 0;
    folded.forEach((node, other) => {
      if ((node.record.total_s || 0) > (folded[at].record.total_s || 0)) at = other;
    });
    const [node] = folded.splice(at, 1);
    if (!node.children.length) continue;
    rows += node.children.length;
    if (rows > PATH_ROWS) return;
    node.open = true;
    folded.push(...node.children);
  }
}

const sumOrNull = (a, b) => (isNumber(a) && isNumber(b) ? a + b : null);

// The same records, each after the one above it.
function byParents(records) {
  const children = new Map();
  const known = new Set(records.map((record) => record.node));
  for (const record of records) {
    const above = known.has(record.parent) ? record.parent : null;
    if (!children.has(above)) children.set(above, []);
    children.get(above).push(record);
  }
  const order = (children.get(null) || []).slice();
  for (let at = 0; at < order.length; at += 1) order.push(...(children.get(order[at].node) || []));
  return order;
}

function pathNodeCell(column, node, depth, toggle, most) {
  const record = node.record;
  const value = record[column.key] ?? null;
  if (column.key === "name") {
    const place =
      record.kind === "function" && record.file && record.file !== "~"
        ? record.file + ":" + record.line
        : null;
    return twigCell(
      node,
      depth,
      toggle,
      [record.name, place].filter(Boolean).join("\n"),
      swatch(pathColour(record)),
      el("span", { class: record.own ? "own-name" : null }, record.name),
    );
  }
  if (column.key === "file")
    return el(
      "td",
      { class: "text", title: record.file },
      record.file === null
        ? none(column.cell_reason || "an operator or a kernel has no source line here")
        : functionFile(record),
    );
  const reason =
    column.reason ||
    column.cell_reason ||
    (record.kind === "kernel"
      ? "a kernel runs on the device: it has no host time"
      : "not measured on this path");
  if (column.key === "total_s" || column.key === "self_s")
    return barCell(value, "s", value / most, "var(--self)", reason);
  return plainCell(column, value, reason);
}
