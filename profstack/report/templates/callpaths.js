// Ways from a Python function over operators to kernels: exact paths, unfolded from the outside in.
const PATH_ROWS = 60; // as many rows are unfolded from the start, along the heaviest ways
const PATH_COLOURS = { function: "var(--file-2)", operator: "var(--forward)", kernel: "var(--backward)" };

// The picture and the rows under it have one legend.
const pathColour = (record) => (record.kind === "function" && !record.own ? null : PATH_COLOURS[record.kind]) || "var(--builtin)";

function drawCallPaths(page) {
  const box = byId("call-paths");
  const table = page.tables.call_paths;
  if (!box) return;
  if (!table) { lackingTable(box, page, "From function to operator to kernel", "stacks", "noted the Python stack"); return; }
  const share = ownColumn("share", "share", "share", "time with callees over that of all paths", "its time was not measured", { layer: "torch", kind: "raw" });
  const columns = [...table.columns, share];
  const records = asRecords(table);
  const whole = records.filter((record) => record.parent === null).reduce((sum, record) => sum + (record.total_s || 0), 0);
  for (const record of records) record.share = isNumber(record.total_s) && whole ? record.total_s / whole : null;
  const rows = records.map((record) => columns.map((column) => record[column.key]));
  const place = el("div"), picture = el("div", { id: "path-picture" });
  box.append(el("h3", {}, "From function to operator to kernel"),
    el("p", { class: "lead" }, "Exact ", term("call-path", "paths"), " per ", term("step", "step"), ", of a slice in which the torch layer noted the Python stack too. ", tracerWords(page), " Compare rows with one another, not with the clean step."), picture, place);
  const most = whole || 1;
  const flame = drawPathPicture(picture, page);
  const tree = makeTree(place, {
    table: { ...table, columns, rows }, roots: pathForest(records, true), name: "call paths", sort: { key: "total_s", direction: -1 },
    first: ["name", "total_s", "self_s", "share", "device_s", "calls", "kind", "file"], hidden: ["node", "parent", "line", "own"],
    controls: choice("frames", [["all", "all frames"], ["own", "own files, operators, kernels"]], "all", (kind) => { tree.put(pathForest(records, kind === "all")); flame.put(pathForest(records, kind === "all")); }),
    levels: [["fold all", 0], ["unfold all", 9999]],
    cell: (column, node, depth, toggle) => pathNodeCell(column, node, depth, toggle, most),
  });
  flame.put(pathForest(records, true));
}

const PATH_SAYS = { total_s: "host time", device_s: "device time of the kernels under it" };

// The same paths as a picture: what lies under a frame was called by it, or launched.
function drawPathPicture(box, page) {
  const state = { kind: "flame", metric: "total_s", forest: [], root: null, at: null };
  const table = page.tables.call_paths;
  const column = (key) => table.columns.find((one) => one.key === key);
  const hasDevice = table.rows.some((row) => row[table.columns.indexOf(column("device_s"))] > 0);
  const chart = el("div", { class: "chart" }), way = el("div", { class: "breadcrumb" }), aside = el("aside");
  append(box, [
    el("div", { class: "tools" }, choice("drawing of the paths", PICTURES, state.kind, (kind) => { state.kind = kind; redraw(); }),
      hasDevice ? choice("time", [["total_s", "host time"], ["device_s", "device time"]], state.metric, (metric) => { state.metric = metric; grow(); redraw(); }) : null,
      el("ul", { class: "legend" }, Object.entries(PATH_COLOURS).map(([kind, colour]) => el("li", {}, swatch(colour), kind === "function" ? "own function" : kind)), el("li", {}, swatch("var(--builtin)"), "library function"))),
    way, el("div", { class: "call-view" }, chart, aside)]);
  const share = (node) => formatPercent(node.value / (state.root.value || 1)) + " of all paths";
  const rows = (node) => [[PATH_SAYS[state.metric], formatSeconds(node.value) + ", " + share(node)],
    ...["self_s", "device_s", "calls"].filter((key) => node.record && isNumber(node.record[key])).map((key) => [column(key).label, formatValue(node.record[key], column(key).unit)]), ["this is", provenance(column(state.metric))]];
  const open = (node) => { state.at = node.rest ? node.parent : node; redraw(); };
  const tell = (node) => {
    aside.replaceChildren();
    const record = node.record;
    append(aside, [el("h3", {}, node.name), record && record.file ? el("p", { class: "quiet place" }, functionFile(record)) : null, record && record.kind === "operator" ? el("p", {}, linkTo("operators", record.name, "its row among the operators")) : null,
      record && record.kind === "kernel" ? el("p", {}, linkTo("kernels", record.name, "its row among the kernels")) : null, pairs(rows(node)), insideList(node, node.value || 1, (child) => figure(child.value, "s", RAW_TORCH), open)]);
  };
  const draw = drawHierarchy({
    box: chart, kind: () => state.kind, areas: () => largestAreas(state.at), marked: () => null, label: () => "call paths by " + PATH_SAYS[state.metric] + ", " + state.kind,
    tip: (area) => (area.node.rest ? [area.name + " ones", [[PATH_SAYS[state.metric], formatSeconds(area.value)]]] : [area.name, rows(area.node)]),
    seen: (area) => tell(area && !area.node.rest ? area.node : state.at), open: (area) => open(area.node === state.at && state.at.parent ? state.at.parent : area.node),
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
  return { put: (forest) => { state.forest = forest; grow(); redraw(); } };
}

// Rows of the tree as nodes of the picture; without recursion, paths can be long.
function pathNodes(forest, metric) {
  const root = { name: "all paths", record: null, parent: null, children: [], colour: "var(--lane)", count: 0 };
  const order = [root];
  const add = (twig, parent) => {
    const record = twig.record;
    const node = { name: record.name, record, parent, children: [], colour: pathColour(record), count: 1, twig };
    parent.children.push(node);
    order.push(node);
  };
  for (const twig of forest) add(twig, root);
  for (let at = 1; at < order.length; at += 1) for (const twig of order[at].twig.children) add(twig, order[at]);
  for (const node of order.slice().reverse()) {
    const inside = node.children.reduce((sum, child) => sum + child.value, 0);
    // Sums of rounded times may be longer than the whole in their last digit.
    node.value = Math.max(node.record ? node.record[metric] || 0 : 0, inside);
    node.told = formatSeconds(node.value);
    node.children.sort((a, b) => b.value - a.value);
  }
  return root;
}

// Why a table is not there that one kind of the torch layer's slices gives: it had no such slice,
// or that slice left nothing. Without that layer there is nothing to say here.
function lackingTable(box, page, title, mode, did) {
  const torch = (page.facts.layers || []).find((layer) => layer.name === "torch");
  if (!torch || torch.status !== "recorded") { box.remove(); return; }
  const had = page.slices.some((slice) => slice.layer === "torch" && slice.mode === mode);
  box.append(el("h3", {}, title), el("p", { class: "quiet" }, had ? "The slice in which the torch layer " + did + " left nothing to show; the warnings say more, where more is known."
    : "No slice of the torch layer " + did + " in this run: it ended before that slice had its turn, or the slice was left out."));
}

// How much slower the steps with stacks were; measured, where their slices have a step time.
function tracerWords(page) {
  const median = page.facts.benchmark.median_s;
  const traced = settledSlices(page, (slice) => slice.mode === "stacks");
  const words = "The stack tracer slows every Python call, so these times are longer than clean ones";
  if (!traced.length || !median) return words + ".";
  return words + ": the median step took " + formatFactor(Math.max(...traced.map((slice) => slice.step_median_s)) / median) + " times the clean one. Times below are means.";
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
      if (above) above.record = { ...above.record, self_s: sumOrNull(above.record.self_s, record.self_s) };
      continue;
    }
    const node = makeNode({ ...record }, above, record.node, [record.name, record.file, record.kind].join(" "));
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
    folded.forEach((node, other) => { if ((node.record.total_s || 0) > (folded[at].record.total_s || 0)) at = other; });
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
    const place = record.kind === "function" && record.file && record.file !== "~" ? record.file + ":" + record.line : null;
    return twigCell(node, depth, toggle, [record.name, place].filter(Boolean).join("\n"), swatch(pathColour(record)),
      el("span", { class: record.own ? "own-name" : null }, record.name));
  }
  if (column.key === "file") return el("td", { class: "text", title: record.file }, record.file === null ? none(column.cell_reason || "an operator or a kernel has no source line here") : functionFile(record));
  const reason = column.reason || column.cell_reason || (record.kind === "kernel" ? "a kernel runs on the device: it has no host time" : "not measured on this path");
  if (column.key === "total_s" || column.key === "self_s") return barCell(value, "s", value / most, "var(--self)", reason);
  return plainCell(column, value, reason);
}
