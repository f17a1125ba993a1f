// The view "Python": functions, the user's own files first and libraries folded, call paths
// and the picture of the calls.

import {
  drawHierarchy,
  insideList,
  LEAST_AREA,
  largestAreas,
  PICTURES,
  wayThrough,
} from "./charts.js";
import {
  append,
  atLine,
  byId,
  choice,
  el,
  figure,
  formatCount,
  formatFactor,
  formatPercent,
  formatSeconds,
  formatValue,
  formatWhole,
  hash,
  isNumber,
  none,
  pairs,
  provenance,
  quiet,
  RAW_CPROFILE,
  RAW_TORCH,
  remark,
  select,
  shortPath,
  swatch,
  term,
} from "./dom.js";
import {
  asRecords,
  barCell,
  columnOf,
  compareBy,
  lackingTable,
  longestOf,
  makeNode,
  makeTable,
  makeTree,
  ownColumn,
  plainCell,
  searchBox,
  twigCell,
  whyEmpty,
} from "./table.js";
import {
  drop,
  filterOf,
  isImportAlone,
  isWithin,
  linkTo,
  onFilter,
  onKey,
  settledSlices,
} from "./views.js";

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

// Of a profile that was imported all figures are of the whole program.
let perStep = " per step";
const PROFILED = { step: "steps", startup: "start-up", program: "whole program, imported" };

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
  if (isImportAlone(page.facts)) {
    byId("functions").querySelector(".lead").textContent =
      "Host time of the whole program, as the imported profile has it.";
    perStep = "";
  }
  const showRoot = drawCallTree(page);
  const records = asRecords(table);
  const phases = Object.keys(PROFILED).filter((phase) =>
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
          phases.map((phase) => [phase, PROFILED[phase]]),
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
  const place = atLine(shortPath(record.file), record.line);
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
        ? atLine(record.file, record.line)
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

// ---------- Call tree ----------
// The call tree of the Python functions, as an icicle, a flame or a sunburst.
//
// A profile knows pairs of caller and callee, not paths. A function with several callers is drawn
// under each of them, its own callees scaled by the share of its time that this caller accounts
// for. Functions that call each other in a circle are one frame, a cycle: its members lie in it
// side by side, each with its own time and its calls out of the cycle.

const MOST_NODES = 1500; // frames: more are not looked at, and drawing them takes seconds

function indexCalls(tree) {
  const callees = tree.functions.map(() => []);
  const cycleOf = tree.functions.map(() => -1);
  tree.cycles.forEach((members, at) => {
    for (const member of members) cycleOf[member] = at;
  });
  const own = tree.functions.map((record) => record[4] || 0);
  for (const [caller, callee, calls, seconds] of tree.edges) {
    if (caller === callee) continue;
    callees[caller].push({ callee, calls, seconds });
    if (cycleOf[caller] < 0 || cycleOf[caller] !== cycleOf[callee]) own[caller] += seconds;
  }
  const sums = tree.cycles.map((members) => members.reduce((sum, member) => sum + own[member], 0));
  return { ...tree, callees, cycleOf, own, sums };
}

const functionName = (record) => record[2];
const functionPlace = (record) =>
  record[0] === "~" ? "built-in" : atLine(shortPath(record[0]), record[1]);
const functionLabel = (record) => record[2] + "  " + functionPlace(record);
const isOwnFunction = (record) => record[6] === OWN_FILES;

// The frames under a caller: functions, and all entries into one cycle as that cycle.
function entered(calls, parts, parent) {
  const nodes = new Map();
  for (const part of parts) {
    const cycle = calls.cycleOf[part.callee];
    const key = cycle < 0 ? "f" + part.callee : "c" + cycle;
    const node =
      nodes.get(key) ||
      (cycle < 0 ? { kind: "function", index: part.callee } : { kind: "cycle", cycle });
    node.parent = parent;
    node.value = (node.value || 0) + part.seconds;
    node.calls = (node.calls || 0) + part.calls;
    nodes.set(key, node);
  }
  return [...nodes.values()];
}

// The children of one node; together never longer than the node itself.
function childrenOf(calls, node) {
  let children;
  if (node.kind === "all") {
    children = entered(
      calls,
      calls.roots.map(([callee, seconds]) => ({
        callee,
        calls: calls.functions[callee][3],
        seconds,
      })),
      node,
    );
  } else if (node.kind === "cycle") {
    const share = calls.sums[node.cycle] > 0 ? Math.min(node.value / calls.sums[node.cycle], 1) : 0;
    children = calls.cycles[node.cycle].map((index) => ({
      kind: "member",
      index,
      parent: node,
      value: calls.own[index] * share,
      calls: calls.functions[index][3] * share,
    }));
  } else {
    const cycle = calls.cycleOf[node.index];
    const total = node.kind === "member" ? calls.own[node.index] : calls.functions[node.index][5];
    const share = total > 0 ? Math.min(node.value / total, 1) : 0;
    const outside = calls.callees[node.index].filter(
      (part) => cycle < 0 || calls.cycleOf[part.callee] !== cycle,
    );
    children = entered(
      calls,
      outside.map((part) => ({
        callee: part.callee,
        calls: part.calls * share,
        seconds: part.seconds * share,
      })),
      node,
    );
  }
  children = children.filter((child) => child.value > 0).sort((a, b) => b.value - a.value);
  const sum = children.reduce((all, child) => all + child.value, 0);
  if (sum > node.value) for (const child of children) child.value *= node.value / sum;
  return children;
}

// Merges adjacent frames of one library into one, which holds what they call elsewhere. Paths too
// small to be seen are not followed: their number can grow without bound.
function foldLibraries(calls, node, cutoff) {
  const parts = new Map();
  const put = (key, child, make) => {
    const part = parts.get(key) || { ...make(), parent: node, value: 0, calls: 0 };
    part.value += child.value;
    part.calls += child.calls;
    if (part.members) part.members.push(child);
    parts.set(key, part);
  };
  const work =
    node.kind === "package"
      ? node.members.flatMap((member) => childrenOf(calls, member))
      : childrenOf(calls, node);
  for (let at = 0; at < work.length; at += 1) {
    const child = work[at];
    const record = child.index === undefined ? null : calls.functions[child.index];
    const library = record && !isOwnFunction(record) ? record[6] : null;
    if (library && node.kind === "package" && library === node.package) {
      if (work.length < MOST_NODES)
        for (const inner of childrenOf(calls, child)) if (inner.value > cutoff) work.push(inner);
    } else if (library)
      put("p" + library, child, () => ({ kind: "package", package: library, members: [] }));
    else put(child.kind + (child.index ?? child.cycle), child, () => ({ ...child }));
  }
  return [...parts.values()].sort((a, b) => b.value - a.value);
}

// All nodes to draw under `root`, breadth first, with length as a share of the root.
function layOut(calls, root, depth, cutoff, folded) {
  root.share = 1;
  root.level = 0;
  const nodes = [root];
  for (let at = 0; at < nodes.length && nodes.length < MOST_NODES; at += 1) {
    const node = nodes[at];
    node.children = [];
    if (node.level >= depth) continue;
    const least = Math.max(cutoff, LEAST_AREA) * root.value;
    for (const child of folded ? foldLibraries(calls, node, least) : childrenOf(calls, node)) {
      child.share = root.value > 0 ? child.value / root.value : 0;
      child.level = node.level + 1;
      child.children = [];
      if (child.share >= cutoff) {
        nodes.push(child);
        node.children.push(child);
      }
    }
  }
  return nodes;
}

function fileColour(record) {
  return isOwnFunction(record)
    ? "var(--file-" + (hash(record[0]) % 8) + ")"
    : libraryColour(record[6]);
}

// Libraries are pale: what the reader can change stands out.
const libraryColour = (name) => (name === "torch" ? "var(--outside)" : "var(--builtin)");

const callState = {
  phase: "step",
  kind: "icicle",
  depth: 12,
  cutoff: 0.005,
  node: null,
  chosen: null,
  folded: true,
  wanted: "",
  only: false,
  areas: [],
};
let calls = null;
let redrawCalls = () => {};

function wholeNode() {
  return {
    kind: "all",
    value: calls.roots.reduce((sum, [, seconds]) => sum + seconds, 0),
    calls: 1,
    parent: null,
  };
}

// A function of a cycle cannot be taken out of it: the cycle is shown in its place.
function functionNode(index) {
  const cycle = calls.cycleOf[index];
  if (cycle >= 0)
    return {
      kind: "cycle",
      cycle,
      value: calls.sums[cycle],
      calls: calls.functions[index][3],
      parent: null,
    };
  return {
    kind: "function",
    index,
    value: calls.functions[index][5],
    calls: calls.functions[index][3],
    parent: null,
  };
}

const nodeRecord = (node) => (node.index === undefined ? null : calls.functions[node.index]);

function cycleName(cycle) {
  const members = calls.cycles[cycle];
  const first = members.reduce((a, b) =>
    (calls.functions[b][3] || 0) > (calls.functions[a][3] || 0) ? b : a,
  );
  return "⟲ " + functionName(calls.functions[first]) + " and " + (members.length - 1) + " more";
}

function nodeName(node) {
  if (node.kind === "all") return "all functions";
  if (node.kind === "package") return node.package;
  return node.kind === "cycle" ? cycleName(node.cycle) : functionName(calls.functions[node.index]);
}

function nodeColour(node) {
  if (node.kind === "all") return "var(--lane)";
  if (node.kind === "package") return libraryColour(node.package);
  return node.kind === "cycle" ? "var(--cycle)" : fileColour(calls.functions[node.index]);
}

// Whether what is searched for is in this frame's name or file, or in those it stands for.
function nodeMatches(node, wanted) {
  const has = (record) =>
    (record[2] + "\n" + atLine(record[0], record[1])).toLowerCase().includes(wanted);
  if (node.kind === "all") return false;
  if (node.kind === "package")
    return (
      node.package.toLowerCase().includes(wanted) ||
      node.members.some(
        (member) => member.index !== undefined && has(calls.functions[member.index]),
      )
    );
  return node.kind === "cycle"
    ? calls.cycles[node.cycle].some((index) => has(calls.functions[index]))
    : has(calls.functions[node.index]);
}

function drawCallTree(page) {
  const phases = Object.keys(page.call_trees);
  if (!phases.length) {
    byId("call-tree").remove();
    return () => {};
  }
  const paint = drawHierarchy({
    box: byId("call-chart"),
    kind: () => callState.kind,
    areas: callAreas,
    label: () => "call tree from " + nodeName(callState.node) + ", " + callState.kind,
    marked: (area) => (!callState.wanted ? null : area.matches ? "match" : "other"),
    tip: (area) => [nodeName(area.node), describedRows(area.node, callState.node)],
    seen: (area) => describe(area ? area.node : callState.node, callState.node),
    open: (area) =>
      zoomTo(area.node === callState.node && area.node.parent ? area.node.parent : area.node),
  });
  redrawCalls = () => {
    paint();
    tellCalls(page);
  };
  const tools = callTools(page, phases);
  tools.choose(phases[0]);
  return (record) => {
    if (record.phase !== callState.phase && page.call_trees[record.phase])
      tools.choose(record.phase);
    return chooseFunction(
      calls.functions.findIndex(
        (one) => one[0] === record.file && one[1] === record.line && one[2] === record.name,
      ),
    );
  };
}

function callTools(page, phases) {
  const names = el("datalist", { id: "function-names" });
  const root = el("input", {
    type: "search",
    list: "function-names",
    placeholder: "all functions",
    "aria-label": "root function",
    autocomplete: "off",
    spellcheck: "false",
  });
  const labels = new Map();
  function choose(phase) {
    calls = indexCalls(page.call_trees[phase]);
    Object.assign(callState, { phase, node: wholeNode(), chosen: heaviestOwn() });
    labels.clear();
    root.value = "";
    calls.functions.forEach((record, index) => {
      if (!labels.has(functionLabel(record))) labels.set(functionLabel(record), index);
    });
    names.replaceChildren(
      ...[...labels.keys()].slice(0, 400).map((label) => el("option", { value: label })),
    );
    redrawCalls();
  }
  root.addEventListener("change", () => {
    if (root.value === "") zoomTo(wholeNode());
    else if (labels.has(root.value)) chooseFunction(labels.get(root.value));
  });
  const depth = el("input", {
    type: "range",
    id: "call-depth",
    min: 1,
    max: 40,
    value: callState.depth,
    "aria-label": "depth",
  });
  const depthText = el("output", {}, callState.depth);
  depth.addEventListener("input", () => {
    callState.depth = Number(depth.value);
    depthText.textContent = depth.value;
    redrawCalls();
  });
  const only = el("input", { type: "checkbox" });
  only.addEventListener("change", () => {
    callState.only = only.checked;
    redrawCalls();
  });
  append(byId("call-tools"), [
    choice(
      "drawing",
      PICTURES.filter(([kind]) => kind !== "treemap"),
      callState.kind,
      (kind) => {
        callState.kind = kind;
        redrawCalls();
      },
    ),
    phases.length > 1
      ? choice(
          "phase",
          phases.map((phase) => [phase, phase === "step" ? "steps" : "start-up"]),
          phases[0],
          choose,
        )
      : null,
    choice(
      "libraries",
      [
        ["folded", "libraries folded"],
        ["all", "all frames"],
      ],
      callState.folded ? "folded" : "all",
      (kind) => {
        Object.assign(callState, { folded: kind === "folded", node: wholeNode() });
        redrawCalls();
      },
    ),
    searchBox("the call tree", (wanted) => {
      callState.wanted = wanted;
      redrawCalls();
    }),
    el("label", { class: "field" }, only, el("span", {}, "only ways to what is found")),
    el("label", { class: "field" }, el("span", {}, "root"), root, names),
    el("label", { class: "field" }, el("span", {}, "depth"), depth, depthText),
    select(
      "cutoff",
      [
        ["0", "none"],
        ["0.001", "0.1 %"],
        ["0.005", "0.5 %"],
        ["0.01", "1 %"],
        ["0.02", "2 %"],
        ["0.05", "5 %"],
      ],
      String(callState.cutoff),
      (value) => {
        callState.cutoff = Number(value);
        redrawCalls();
      },
    ),
  ]);
  return { choose };
}

// The user's own function that takes most by itself; any function where none is the user's.
function heaviestOwn() {
  const all = calls.functions.map((_record, index) => index);
  const own = all.filter((index) => isOwnFunction(calls.functions[index]));
  return (own.length ? own : all).reduce(
    (a, b) => ((calls.functions[b][4] || 0) > (calls.functions[a][4] || 0) ? b : a),
    (own.length ? own : all)[0],
  );
}

function chooseFunction(index) {
  if (index === undefined || index < 0) return false;
  callState.chosen = index;
  callState.node = functionNode(index);
  redrawCalls();
  return true;
}

function zoomTo(node) {
  callState.node = node;
  if (node.index !== undefined) callState.chosen = node.index;
  redrawCalls();
}

// What is drawn: the laid out frames, each parent before what lies in it.
function callAreas() {
  const { node: root, wanted } = callState;
  let nodes = layOut(calls, root, callState.depth, callState.cutoff, callState.folded);
  if (wanted) nodes = searched(nodes, wanted, callState.only);
  const places = new Map();
  // Sums of shares may be longer than what they are shares of, in the last digit.
  for (const node of nodes.slice().reverse())
    node.drawn = Math.max(
      node.value,
      node.children.reduce((sum, child) => sum + (child.drawn || 0), 0),
    );
  callState.areas = nodes.map((node, at) => {
    places.set(node, at);
    return {
      name: nodeName(node),
      value: node.drawn,
      told: formatSeconds(node.value),
      colour: nodeColour(node),
      parent: node === root ? -1 : places.get(node.parent),
      matches: node.matches,
      node,
    };
  });
  return callState.areas;
}

// Notes which frames match; with `only`, keeps the ways to them and what lies in them.
function searched(nodes, wanted, only) {
  for (const node of nodes) {
    node.matches = nodeMatches(node, wanted);
    node.isIn = node !== nodes[0] && (node.parent.matches || node.parent.isIn);
  }
  for (const node of nodes.slice().reverse())
    node.leads = node.matches || node.children.some((child) => child.leads);
  if (!only) return nodes;
  const kept = nodes.filter((node) => node === nodes[0] || node.leads || node.isIn);
  for (const node of kept)
    node.children = node.children.filter((child) => child.leads || child.isIn);
  return kept;
}

// What is round the picture: the way to its root, how much was found, callers and callees.
function tellCalls(page) {
  const root = callState.node;
  const nodes = callState.areas;
  byId("call-path").replaceChildren(...breadcrumb(root));
  const most = nodes.length >= MOST_NODES ? ", no more are drawn: raise the cutoff" : "";
  byId("call-count").textContent =
    nodes.length + (nodes.length === 1 ? " frame" : " frames") + most;
  byId("call-left").textContent = page.call_trees[callState.phase].left_out || "";
  byId("call-found").textContent = callState.wanted ? foundWords(nodes, root) : "";
  describe(root, root);
  drawCallEdges(byId("call-edges"), callState.chosen);
}

function foundWords(areas, root) {
  const found = areas.filter((area) => area.matches);
  const outer = found.filter((area) => !area.node.isIn);
  return (
    found.length +
    (found.length === 1 ? " frame" : " frames") +
    " found" +
    (found.length
      ? ", " +
        formatPercent(outer.reduce((sum, area) => sum + area.value, 0) / (root.value || 1)) +
        " of the root (frames in one another counted once)."
      : ".")
  );
}

function breadcrumb(root) {
  const items = wayThrough({ ...wayNode(root) }, (node) => zoomTo(node.node));
  let first = root;
  while (first.parent) first = first.parent;
  if (first.kind !== "all")
    items.unshift(
      el("button", { type: "button", onclick: () => zoomTo(wholeNode()) }, "all functions"),
      quiet(" › "),
    );
  return items;
}

const wayNode = (node) => ({
  name: nodeName(node),
  node,
  parent: node.parent ? wayNode(node.parent) : null,
});

const NODE_WORDS = {
  all: "all that the profile saw",
  cycle: "functions that call each other in a circle; who lies inside whom is not known",
  member: "in a cycle: its own time and its calls out of the cycle",
  package: "functions of one library, with what they call in it",
};

function describedRows(node, root) {
  const record = nodeRecord(node);
  const members =
    node.kind === "cycle"
      ? calls.cycles[node.cycle].map((index) => functionName(calls.functions[index]))
      : node.kind === "package"
        ? [...new Set(node.members.map(nodeName))]
        : [];
  return [
    [
      "here",
      formatSeconds(node.value) + ", " + formatPercent(node.value / root.value) + " of the root",
    ],
    record ? ["calls here", formatCount(node.calls)] : null,
    record
      ? ["in all", formatSeconds(record[5]) + " in " + formatCount(record[3]) + " calls"]
      : null,
    record ? ["without callees", formatSeconds(record[4])] : null,
    members.length
      ? ["members", members.slice(0, 12).join(", ") + (members.length > 12 ? ", …" : "")]
      : null,
    ["this is", "raw: as the cprofile layer saw it"],
  ].filter(Boolean);
}

function describe(node, root) {
  const record = nodeRecord(node);
  const inside = (
    callState.folded ? foldLibraries(calls, node, 0.001 * node.value) : childrenOf(calls, node)
  ).map((child) => ({
    name: nodeName(child),
    value: child.value,
    colour: nodeColour(child),
    children: [],
    node: child,
  }));
  byId("call-detail").replaceChildren();
  append(byId("call-detail"), [
    el("h3", {}, nodeName(node)),
    record ? el("p", { class: "quiet place", title: record[0] }, functionWay(record)) : null,
    NODE_WORDS[node.kind] ? remark(NODE_WORDS[node.kind]) : null,
    pairs(describedRows(node, root)),
    insideList(
      { children: inside },
      node.value || 1,
      (child) => figure(child.value, "s", RAW_CPROFILE),
      (child) => zoomTo(child.node),
    ),
  ]);
}

// The place of a function; of the user's own it leads to the source line.
function functionWay(record) {
  return isOwnFunction(record)
    ? linkTo("source", record[0] + ":" + record[1], functionPlace(record))
    : functionPlace(record);
}

// ---------- Callers and callees ----------

const EDGE_ORIGIN = { layer: "cprofile", kind: "raw" };

function drawCallEdges(box, index) {
  box.replaceChildren();
  if (index === null || index === undefined) return;
  const record = calls.functions[index];
  const cycle = calls.cycleOf[index];
  append(box, [
    el(
      "h3",
      {},
      "Callers and callees of ",
      el("code", {}, functionName(record)),
      " ",
      el("span", { class: "quiet place" }, functionWay(record)),
    ),
    el(
      "p",
      { class: "lead" },
      formatSeconds(record[5]) +
        " with callees, " +
        formatSeconds(record[4]) +
        " without, in " +
        formatCount(record[3]) +
        (record[3] === 1 ? " call" : " calls") +
        perStep +
        ". Shares are of the time with callees." +
        (cycle >= 0
          ? " It is part of a circle of functions that call each other: their times hold one " +
            "another, and shares may add up to more than the whole."
          : ""),
    ),
  ]);
  const sides = el("div", { class: "columns edges" });
  box.append(sides);
  const from = calls.edges
    .filter(([, callee]) => callee === index)
    .map(([caller, , count, seconds]) => [caller, count, seconds]);
  const to = calls.edges
    .filter(([caller]) => caller === index)
    .map(([, callee, count, seconds]) => [callee, count, seconds]);
  edgeTable(sides, "callers", from, leftOf(calls.callers_left, index), record, index);
  edgeTable(sides, "callees", to, leftOf(calls.callees_left, index), record, index);
}

const leftOf = (left, index) => (left || []).find(([one]) => one === index) || null;

function edgeTable(box, name, edges, left, record, index) {
  const place = el("div", { id: "call-" + name });
  place.append(el("h4", {}, name));
  box.append(place);
  if (!edges.length && !left) {
    place.append(
      remark(
        name === "callers"
          ? "No function of the profile calls it: it was on the stack when the profile began, " +
              "or C code calls it."
          : "It calls no function that the profile sees.",
      ),
    );
    return;
  }
  const columns = [
    ownColumn("name", "function", "text", name === "callers" ? "who calls it" : "what it calls"),
    ownColumn("calls", "calls", "count", "calls per step from the one to the other", null, {
      layer: "cprofile",
      kind: "counted",
    }),
    ownColumn(
      "total_s",
      "time",
      "s",
      "time with callees of these calls, per step",
      null,
      EDGE_ORIGIN,
    ),
    ownColumn(
      "share",
      "share",
      "share",
      "that time over the time with callees of " + functionName(record),
      "its time was not measured",
      EDGE_ORIGIN,
    ),
    ownColumn(
      "place",
      "place",
      "text",
      "file and line of its definition",
      "more than one function",
    ),
  ];
  const share = (seconds) => (record[5] > 0 ? seconds / record[5] : null);
  const places = new Map();
  const rows = edges.map(([other, count, seconds]) => {
    const one = calls.functions[other];
    const name = functionName(one) + (other === index ? " (itself)" : "");
    const row = [name, count, seconds, share(seconds), functionPlace(one)];
    places.set(row.join("\n"), other);
    return row;
  });
  if (left)
    rows.push([
      formatWhole(left[1]) + " more, not on this page",
      left[2],
      left[3],
      share(left[3]),
      null,
    ]);
  const otherOf = (one) => places.get(columns.map((column) => one[column.key]).join("\n"));
  makeTable(place, {
    table: { columns, rows, left_out: null },
    name,
    plain: rows.length < 8,
    sort: { key: "total_s", direction: -1 },
    bars: ["share"],
    barColour: "var(--self)",
    cells: {
      name: (value, one) => {
        const other = otherOf(one);
        return el(
          "td",
          { class: "text path", title: value },
          other === undefined
            ? value
            : el(
                "button",
                { type: "button", class: "link", onclick: () => chooseFunction(other) },
                value,
              ),
        );
      },
      place: (value, one) => {
        const other = otherOf(one);
        return el(
          "td",
          { class: "text", title: value },
          other === undefined
            ? none("more than one function")
            : functionWay(calls.functions[other]),
        );
      },
    },
  });
}

const OWN_FILES = "(own files)";
