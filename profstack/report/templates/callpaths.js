// Ways from a Python function over operators to kernels: exact paths, unfolded from the outside in.
const PATH_ROWS = 60; // as many rows are unfolded from the start, along the heaviest ways
const PATH_COLOURS = { function: "var(--file-2)", operator: "var(--forward)", kernel: "var(--backward)" };

function drawCallPaths(page) {
  const box = byId("call-paths");
  const table = page.tables.call_paths;
  if (!box) return;
  if (!table) { lackingTable(box, page, "From function to operator to kernel", "stacks", "noted the Python stack"); return; }
  const share = ownColumn("share", "share", "share", "time with callees over that of all paths", "its time was not measured");
  const columns = [...table.columns, share];
  const records = asRecords(table);
  const whole = records.filter((record) => record.parent === null).reduce((sum, record) => sum + (record.total_s || 0), 0);
  for (const record of records) record.share = isNumber(record.total_s) && whole ? record.total_s / whole : null;
  const rows = records.map((record) => columns.map((column) => record[column.key]));
  const place = el("div");
  box.append(el("h3", {}, "From function to operator to kernel"),
    el("p", { class: "lead" }, "Exact ", term("call-path", "paths"), " per ", term("step", "step"), ", of a slice in which the torch layer noted the Python stack too. ", tracerWords(page), " Compare rows with one another, not with the clean step."), place);
  const most = whole || 1;
  const tree = makeTree(place, {
    table: { ...table, columns, rows }, roots: pathForest(records, true), name: "call paths", sort: { key: "total_s", direction: -1 },
    first: ["name", "total_s", "self_s", "share", "device_s", "calls", "kind", "file"], hidden: ["node", "parent", "line", "own"],
    controls: choice("frames", [["all", "all frames"], ["own", "own files, operators, kernels"]], "all", (kind) => tree.put(pathForest(records, kind === "all"))),
    levels: [["fold all", 0], ["unfold all", 9999]],
    cell: (column, node, depth, toggle) => pathNodeCell(column, node, depth, toggle, most),
  });
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
  const traced = page.slices.filter((slice) => slice.mode === "stacks" && isNumber(slice.step_median_s));
  const words = "The stack tracer slows every Python call, so these times are longer than clean ones";
  if (!traced.length || !median) return words + ".";
  return words + ": a step took " + formatFactor(Math.max(...traced.map((slice) => slice.step_median_s)) / median) + " times a clean one.";
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
    return twigCell(node, depth, toggle, [record.name, place].filter(Boolean).join("\n"), swatch(PATH_COLOURS[record.kind] || "var(--builtin)"),
      el("span", { class: record.own ? "own-name" : null }, record.name));
  }
  if (column.key === "file") return el("td", { class: "text", title: record.file }, record.file === null ? none(column.cell_reason || "an operator or a kernel has no source line here") : functionFile(record));
  const reason = column.reason || column.cell_reason || (record.kind === "kernel" ? "a kernel runs on the device: it has no host time" : "not measured on this path");
  if (column.key === "total_s" || column.key === "self_s") return barCell(value, "s", value / most, "var(--self)", reason);
  return plainCell(column, value, reason);
}
