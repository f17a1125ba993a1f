// Tables whose rows lie inside one another: folded at will, sorted within their level, searched
// with the rows around what is found, and drawn a stretch at a time.
const TREE_ROWS = 200;

// node: {record, children, parent, open, part (stands last), key, text (for the search)}
function makeNode(record, parent, key, text) {
  const node = { record, parent, key, text: text.toLowerCase(), children: [], open: false, part: false };
  if (parent) parent.children.push(node);
  return node;
}

function eachNode(nodes, visit, depth = 0) {
  for (const node of nodes) { visit(node, depth); eachNode(node.children, visit, depth + 1); }
}

// spec: table (columns, left_out, total), roots, name, sort, first [keys], hidden [keys],
// inOrder (key whose rising order is that of the table), levels [[text, depth]], controls,
// cell(column, node, depth, toggle) => td, note (said under the table)
function makeTree(box, spec) {
  const { table } = spec;
  const hidden = spec.hidden || [];
  const empty = emptyColumns(table).filter((column) => !hidden.includes(column.key));
  const state = { roots: spec.roots, sort: spec.sort, wanted: "", empty: false, rows: TREE_ROWS };
  const head = el("thead");
  const body = el("tbody");
  const more = el("div", { class: "more" });
  const count = el("span", { class: "count", "aria-live": "polite" });

  function visibleRows(nodes, depth, rows) {
    const { key, direction } = state.sort;
    const sorted = key === spec.inOrder && direction > 0 ? nodes.slice() : nodes.slice().sort((a, b) => compareBy(key, direction)(a.record, b.record));
    sorted.sort((a, b) => a.part - b.part);
    for (const node of sorted) {
      if (state.wanted && !node.matches) continue;
      rows.push([node, depth]);
      if (node.children.length && (state.wanted ? node.inside : node.open)) visibleRows(node.children, depth + 1, rows);
    }
    return rows;
  }

  function mark(nodes) {
    let any = false;
    for (const node of nodes) {
      node.inside = mark(node.children);
      node.matches = node.inside || node.text.includes(state.wanted);
      any = any || node.matches;
    }
    return any;
  }

  function draw(focus) {
    if (state.wanted) mark(state.roots);
    const columns = ordered(table.columns, spec.first || []).filter((column) => !hidden.includes(column.key) && (state.empty || !empty.includes(column)));
    const rows = visibleRows(state.roots, 0, []);
    const shownRows = rows.slice(0, state.rows);
    head.replaceChildren(el("tr", {}, columns.map((column) => headCell(column, state.sort, (sort) => { state.sort = sort; draw(); }))));
    body.replaceChildren(...shownRows.map(([node, depth]) => el("tr", { class: node.group ? "group" : node.part ? "part" : null }, columns.map((column) => spec.cell(column, node, depth, toggle)))));
    count.textContent = shownRows.length + " of " + table.total + " rows shown";
    const left = rows.length - shownRows.length;
    more.replaceChildren();
    if (left > 0) more.append(el("button", { type: "button", onclick: () => { state.rows += TREE_ROWS; draw(); } }, "Show " + Math.min(left, TREE_ROWS) + " more"));
    if (left > TREE_ROWS) more.append(el("span", { class: "quiet" }, left + " unfolded rows are left"));
    if (focus !== undefined) for (const button of body.querySelectorAll("button.twig")) if (button.dataset.key === String(focus)) button.focus();
  }

  function toggle(node, open) {
    node.open = open === undefined ? !node.open : open;
    draw(node.key);
  }

  const unfold = (levels) => { eachNode(state.roots, (node, depth) => { node.open = depth < levels; }); state.rows = TREE_ROWS; draw(); };
  const levels = el("div", { class: "choice" }, (spec.levels || []).map(([text, depth]) => el("button", { type: "button", onclick: () => unfold(depth) }, text)));
  append(box, [
    el("div", { class: "tools" }, searchBox(spec.name, (wanted) => { state.wanted = wanted; state.rows = TREE_ROWS; draw(); }), spec.levels ? levels : null, spec.controls, count),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": spec.name }, el("table", { class: "tree" }, head, body)),
    more,
    spec.note || null,
    table.left_out ? el("p", { class: "left-out" }, table.left_out) : null,
    table.total > table.rows.length ? el("p", { class: "left-out" }, table.rows.length + " of " + table.total + " rows are on this page (those with the most time); all are in recording.sqlite and report.json.") : null,
    emptyNote(empty, (show) => { state.empty = show; draw(); }),
  ]);
  draw();
  return { draw, unfold, put: (roots) => { state.roots = roots; state.rows = TREE_ROWS; draw(); } };
}

// The cell that folds: indented by its depth, then its content.
function twigCell(node, depth, toggle, title, ...content) {
  const cell = el("td", { class: "text path", title });
  const indent = el("span", { class: "indent" });
  // Deep trees are indented less and less: the name must stay on the screen.
  indent.style.width = (depth <= 12 ? 14 * depth : 168 + 3 * (depth - 12)) + "px";
  cell.append(indent);
  if (node.children.length) {
    const twig = el("button", { type: "button", class: "twig", "aria-expanded": String(node.open), "aria-label": (node.open ? "fold " : "unfold ") + node.key }, node.open ? "▾" : "▸");
    twig.dataset.key = String(node.key);
    twig.addEventListener("click", () => toggle(node));
    twig.addEventListener("keydown", (event) => {
      if (event.key === "ArrowRight" || event.key === "ArrowLeft") { event.preventDefault(); toggle(node, event.key === "ArrowRight"); }
    });
    cell.append(twig);
  } else cell.append(el("span", { class: "twig" }));
  append(cell, content);
  return cell;
}

// A cell with a number or words, as plain tables have them.
function plainCell(column, value, reason) {
  const exact = isNumber(value) && column.unit !== "plain" ? String(value) : null;
  const title = isNumeric(column) ? exact : value === null ? null : formatValue(value, column.unit);
  return el("td", { class: isNumeric(column) ? "number" : "text", title }, shown(value, column.unit, reason));
}
