// The module tree: folded at will, siblings in the order of any column, parts outside modules last.
function buildForest(table) {
  const roots = [];
  const known = new Map();
  for (const record of asRecords(table)) {
    const node = { record, children: [], open: false, part: record.path.startsWith("(") };
    const cut = record.path.lastIndexOf(".");
    const parent = node.part || record.depth === 0 ? null : nearestParent(record.path, cut, known);
    node.parent = parent;
    node.name = parent ? record.path.slice(parent.record.path.length + 1) : record.path;
    known.set(record.path, node);
    (parent ? parent.children : roots).push(node);
  }
  return roots;
}

// The longest known path before this one: rows between may have been left out.
function nearestParent(path, cut, known) {
  while (cut > 0) {
    const found = known.get(path.slice(0, cut));
    if (found) return found;
    cut = path.lastIndexOf(".", cut - 1);
  }
  return null;
}

function eachNode(nodes, visit, depth = 0) {
  for (const node of nodes) { visit(node, depth); eachNode(node.children, visit, depth + 1); }
}

const MODULE_FIRST = ["path", "calibrated_s", "forward_s", "backward_s", "self_s", "forward_flop", "backward_flop", "flop_per_s", "host_net_bytes", "calls", "type"];
const MODULE_HIDDEN = ["instance", "depth", "aliases", "label"];

function drawModules(page) {
  const table = page.tables.modules;
  if (!table) { drop("modules"); return; }
  const roots = buildForest(table);
  const empty = emptyColumns(table).filter((column) => !MODULE_HIDDEN.includes(column.key));
  const state = { sort: { key: "path", direction: 1 }, wanted: "", empty: false };
  const median = page.facts.benchmark.median_s;
  const head = el("thead");
  const body = el("tbody");
  const count = el("span", { class: "count", "aria-live": "polite" });
  const most = Math.max(...table.rows.map((row) => Math.max(...["forward_s", "backward_s", "self_s"].map((key) => row[table.columns.findIndex((column) => column.key === key)] || 0))), 0) || 1;
  const unfold = (levels) => { eachNode(roots, (node, depth) => { node.open = depth < levels; }); draw(); };

  function visibleRows(nodes, depth, rows) {
    const { key, direction } = state.sort;
    const sorted = key === "path" && direction > 0 ? nodes.slice() : nodes.slice().sort((a, b) => compareBy(key, direction)(a.record, b.record));
    sorted.sort((a, b) => a.part - b.part);
    for (const node of sorted) {
      const matches = !state.wanted || node.matches;
      if (!matches) continue;
      rows.push([node, depth]);
      if (node.children.length && (state.wanted ? node.inside : node.open)) visibleRows(node.children, depth + 1, rows);
    }
    return rows;
  }

  function mark(nodes) {
    let any = false;
    for (const node of nodes) {
      node.inside = mark(node.children);
      node.matches = node.inside || (node.record.path + " " + (node.record.type || "")).toLowerCase().includes(state.wanted);
      any = any || node.matches;
    }
    return any;
  }

  function draw(focus) {
    if (state.wanted) mark(roots);
    const columns = ordered(table.columns, MODULE_FIRST).filter((column) => !MODULE_HIDDEN.includes(column.key) && (state.empty || !empty.includes(column)));
    const rows = visibleRows(roots, 0, []);
    head.replaceChildren(el("tr", {}, columns.map((column) => headCell(column, state.sort, (sort) => { state.sort = sort; draw(); }))));
    body.replaceChildren(...rows.map(([node, depth]) => el("tr", { class: node.part ? "part" : null }, columns.map((column) => moduleCell(column, node, depth, { most, median, toggle })))));
    count.textContent = rows.length + " of " + table.total + " rows shown";
    if (focus) for (const button of body.querySelectorAll("button.twig")) if (button.dataset.path === focus) button.focus();
  }

  function toggle(node, open) {
    node.open = open === undefined ? !node.open : open;
    draw(node.record.path);
  }

  const levels = el("div", { class: "choice" }, [["roots", 0], ["2 levels", 1], ["3 levels", 2], ["all", 99]].map(([text, depth]) => el("button", { type: "button", onclick: () => unfold(depth) }, text)));
  append(byId("module-tree"), [
    el("div", { class: "tools" }, searchBox("modules", (wanted) => { state.wanted = wanted; draw(); }), levels, count),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "modules" }, el("table", { class: "tree" }, head, body)),
    table.left_out ? el("p", { class: "left-out" }, table.left_out) : null,
    table.total > table.rows.length ? el("p", { class: "left-out" }, table.rows.length + " of " + table.total + " modules are on this page (those with the most time); all are in recording.sqlite and report.json.") : null,
    emptyNote(empty, (show) => { state.empty = show; draw(); }),
  ]);
  unfold(table.rows.length > 60 ? 2 : 3);
}

function moduleCell(column, node, depth, view) {
  const record = node.record;
  if (column.key === "path") return pathCell(node, depth, view.toggle);
  if (column.key === "calibrated_s") return calibratedCell(record, view.median, whyEmpty(column));
  const colours = { forward_s: "var(--forward)", backward_s: "var(--backward)", self_s: "var(--self)" };
  // A part outside modules has no parameters and no calls: no measurement is lacking there.
  const reason = column.reason || (node.part ? "a part of the step outside modules" : column.cell_reason);
  if (colours[column.key]) return barCell(record[column.key], "s", record[column.key] / view.most, colours[column.key], reason);
  const text = shown(record[column.key], column.unit, reason);
  const exact = isNumber(record[column.key]) ? String(record[column.key]) : null;
  return el("td", { class: column.unit === "text" ? "text" : "number", title: exact }, text);
}

function pathCell(node, depth, toggle) {
  const record = node.record;
  const cell = el("td", { class: "text path", title: record.path + (record.aliases ? "\nalso " + record.aliases : "") });
  const indent = el("span", { class: "indent" });
  indent.style.width = 14 * depth + "px";
  cell.append(indent);
  if (node.children.length) {
    const twig = el("button", { type: "button", class: "twig", "aria-expanded": String(node.open), "aria-label": (node.open ? "fold " : "unfold ") + record.path }, node.open ? "▾" : "▸");
    twig.dataset.path = record.path;
    twig.addEventListener("click", () => toggle(node));
    twig.addEventListener("keydown", (event) => {
      if (event.key === "ArrowRight" || event.key === "ArrowLeft") { event.preventDefault(); toggle(node, event.key === "ArrowRight"); }
    });
    cell.append(twig);
  } else cell.append(el("span", { class: "twig" }));
  cell.append(el("span", {}, node.name));
  if (record.label) cell.append(el("span", { class: "quiet" }, " = " + record.label));
  return cell;
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
