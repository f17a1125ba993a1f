// The module tree: one row holds all that the layers know of a module; parts outside modules last.
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

// The longest known path before this one: rows between may have been left out.
function nearestParent(path, separator, known) {
  let cut = path.lastIndexOf(separator);
  while (cut > 0) {
    const found = known.get(path.slice(0, cut));
    if (found) return found;
    cut = path.lastIndexOf(separator, cut - 1);
  }
  return null;
}

const MODULE_FIRST = ["path", "calibrated_s", "forward_s", "backward_s", "recomputed_s", "self_s", "python_s", "forward_device_s", "backward_device_s", "forward_flop", "backward_flop", "flop_per_s", "host_net_bytes", "host_peak_bytes", "device_net_bytes", "device_peak_bytes", "calls", "parameters", "type"];
const MODULE_HIDDEN = ["instance", "depth", "aliases", "label"];
const MODULE_BARS = { forward_s: "var(--forward)", backward_s: "var(--backward)", recomputed_s: "var(--recomputed)", self_s: "var(--self)", python_s: "var(--file-5)" };

function drawModules(page) {
  const table = page.tables.modules;
  if (!table) { drop("modules"); return; }
  const records = asRecords(table);
  const median = page.facts.benchmark.median_s;
  const most = records.reduce((top, record) => Math.max(top, record.forward_s || 0, record.backward_s || 0, record.self_s || 0), 0) || 1;
  const picture = el("div", { id: "module-picture" });
  byId("module-tree").before(picture);
  const choose = drawModulePicture(picture, page, (node) => { if (node.row) pointAt(byId("module-tree"), wayTo("modules", node.path)); });
  const show = (path) => { if (choose(path)) picture.scrollIntoView({ block: "nearest" }); };
  // First the picture, which lets the table find the row as well.
  onKey("modules", (path) => { choose(path); return false; });
  const tree = makeTree(byId("module-tree"), {
    table, roots: buildForest(table), name: "modules", view: "modules", keyOf: (record) => record.path, sort: { key: "path", direction: 1 }, inOrder: "path", first: MODULE_FIRST, hidden: MODULE_HIDDEN,
    levels: [["roots", 0], ["2 levels", 1], ["3 levels", 2], ["all", 99]], note: sumNote(page.facts.attribution),
    cell: (column, node, depth, toggle) => moduleCell(column, node, depth, toggle, { most, median, show }),
    ways: (node) => (node.part ? null : moduleLinks(node.record.path, page)),
  });
  tree.unfold(table.rows.length > 60 ? 2 : 3);
}

function moduleCell(column, node, depth, toggle, view) {
  const record = node.record;
  if (column.key === "path") return pathCell(node, depth, toggle, view);
  if (column.key === "calibrated_s") return calibratedCell(record, view.median, whyEmpty(column));
  // A part outside modules has no parameters and no calls: no measurement is lacking there.
  const reason = column.reason || (node.part && column.key === "forward_s" ? "it is not a module's forward: its time is in the column self" : node.part ? "a part of the step outside modules" : column.cell_reason);
  const colour = MODULE_BARS[column.key];
  if (colour) return barCell(record[column.key], "s", record[column.key] / view.most, colour, reason);
  return plainCell(column, record[column.key], reason);
}

// The name chooses the module in the picture.
function pathCell(node, depth, toggle, view) {
  const record = node.record;
  const whole = record.path + (record.aliases ? "\nalso " + record.aliases : "");
  return twigCell(node, depth, toggle, whole,
    el("button", { type: "button", class: "link name", title: whole + "\na click shows it in the picture", onclick: () => view.show(record.path) }, node.name), record.label ? el("span", { class: "quiet" }, " = " + record.label) : null);
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
    start.style.background = record.path.startsWith("(") ? partColour({ name: record.path }) : "var(--forward)";
    const rest = el("span", { class: "fill", "aria-hidden": "true" });
    rest.style.left = start.style.width;
    rest.style.width = Math.min(100, Math.max(0, 100 * share * (1 - forward))) + "%";
    rest.style.background = record.path.startsWith("(") ? start.style.background : "var(--backward)";
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
    return el("p", { class: "sum", id: "module-sum" }, "The rows cannot be held against a step: " + (sums.reason || "no slice timed modules") + ".");
  }
  const words = [el("b", {}, "Self times of all rows add up to " + formatSeconds(sums.rows_s) + " of a mean step of " + formatSeconds(sums.step_s)),
    " as the torch layer saw it; ", el("b", {}, isNumber(sums.owned_share) ? exactPercent(sums.owned_share) : none(sums.reason)), " of it ", term("owner", "has an owner"), "."];
  const rest = (sums.unowned || []).filter((row) => row.self_s);
  words.push(rest.length ? [" Not owned: ", rest.map((row, at) => [at ? ", " : "", row.path, " ", formatSeconds(row.self_s), isNumber(row.share) ? " (" + exactPercent(row.share) + ")" : ""]), "."] : " Nothing is left without one.");
  if (isNumber(sums.calibrated_owned_s) && isNumber(sums.clean_median_s) && sums.clean_median_s) {
    words.push(" ", term("calibrated", "Calibrated"), ", the owned rows are " + formatSeconds(sums.calibrated_owned_s) + " of the clean median of " + formatSeconds(sums.clean_median_s) + " (" + exactPercent(sums.calibrated_owned_s / sums.clean_median_s) + ").");
  }
  if (isNumber(sums.backward_attributed_share)) {
    words.push(" Of the backward pass (" + formatSeconds(sums.backward_s) + ") " + exactPercent(sums.backward_attributed_share) + " stands at what its work is for.");
  }
  if (sums.negative_rows) words.push(el("span", { class: "bad-word" }, " " + sums.negative_rows + (sums.negative_rows === 1 ? " row has" : " rows have") + " a self time below 0: the sums above are wrong there."));
  return el("p", { class: "sum", id: "module-sum" }, words);
}

// A share near the whole, told well enough to see what is missing.
const exactPercent = (share) => (isNumber(share) ? (100 * share).toFixed(1) + " %" : NONE);
