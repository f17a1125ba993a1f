// The Python functions: the user's own files first, libraries folded, or all of them in one list.
viewOf("python").needs.push("module_lines");
const GROUP_SUMS = ["self_s", "calibrated_s", "corrected_self_s", "calls", "primitive_calls", "watch_share"];
const OWN_FILES = "(own files)";
const isOwn = (record) => (record.own === null || record.own === undefined ? record.package === OWN_FILES : record.own);

function drawFunctions(page) {
  const table = page.tables.functions;
  if (!table) {
    if (!page.tables.call_paths) { drop("functions"); return; }
    byId("call-tree").remove();
    byId("function-table").append(el("p", { class: "quiet" }, "The cprofile layer saw no function in this run."));
    return;
  }
  const showRoot = drawCallTree(page);
  const records = asRecords(table);
  const phases = ["step", "startup"].filter((phase) => records.some((record) => record.phase === phase));
  const state = { phase: phases[0], only: null };
  const kept = () => (state.only ? records.filter((record) => state.only.has(recordKey(record))) : records);
  const boxes = { grouped: el("div", { id: "function-groups" }), all: el("div", { id: "function-list", hidden: true }) };
  const rows = choice("rows", [["grouped", "own files and libraries"], ["all", "all functions"]], "grouped", (kind) => {
    for (const [name, box] of Object.entries(boxes)) box.hidden = name !== kind;
  });
  const controls = phases.length > 1 ? choice("phase", phases.map((phase) => [phase, phase === "step" ? "steps" : "start-up"]), state.phase, (phase) => { state.phase = phase; redraw(); tree.put(functionGroups(kept(), phase)); }) : null;
  const said = el("p", { class: "quiet", id: "function-filter", hidden: true });
  append(byId("function-table"), [el("div", { class: "tools" }, rows, controls), said, boxes.grouped, boxes.all]);
  // In the tree of calls and in this table a function is the same one; the table marks its row.
  const known = new Map(records.slice().reverse().map((record) => [recordKey(record), record]));
  onKey("python", (key) => { if (known.has(key)) showRoot(known.get(key)); return false; });
  const reveal = (record) => {
    rows.firstChild.click();
    if (controls && record.phase !== state.phase) controls.children[phases.indexOf(record.phase)].click();
  };
  const nameCell = (record) => el("button", { type: "button", class: "link", title: record.name + "\na click shows it in the call tree, with its callers and callees", onclick: () => { if (showRoot(record)) byId("call-tree").scrollIntoView({ block: "start" }); } }, record.name);
  const first = ["name", "self_s", "total_s", "calibrated_s", "calls"];
  const longest = Object.fromEntries(phases.map((phase) => [phase, longestOf(records.filter((record) => record.phase === phase), ["self_s", "total_s"])]));
  const tree = makeTree(boxes.grouped, {
    table, roots: functionGroups(records, state.phase), name: "functions", sort: { key: "self_s", direction: -1 }, first, hidden: ["phase", "line", "own", "package"], view: "python", keyOf: recordKey, reveal,
    levels: [["fold all", 0], ["unfold all", 1]], cell: (column, node, depth, toggle) => functionCell(column, node, depth, toggle, { most: longest[state.phase], nameCell }),
  });
  const redraw = makeTable(boxes.all, {
    table, name: "functions", sort: { key: "self_s", direction: -1 }, bars: ["self_s", "total_s"], barColour: "var(--self)",
    hidden: ["phase", "line", "own"], first, filter: (record) => record.phase === state.phase && (!state.only || state.only.has(recordKey(record))),
    cells: {
      file: (value, record) => el("td", { class: "text", title: value }, functionFile(record)),
      name: (value, record) => el("td", { class: "text", title: value }, nameCell(record)),
    },
  });
  const keep = ({ module }) => {
    state.only = module ? functionsWithin(page, records, module) : null;
    said.hidden = !module;
    said.replaceChildren(...(module ? ["Functions of the user's own files with lines that ran in ", linkTo("modules", module, module), ": " + formatWhole(state.only.size) + ". The pictures show all functions."] : []));
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
function linesWithin(page, path) {
  moduleLines = moduleLines || (page.tables.module_lines ? asRecords(page.tables.module_lines).filter((line) => line.module !== null) : []);
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
  if (record.file === "~") return el("span", { class: "quiet" }, "built-in");
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
      const node = makeNode({ name, own, file: own ? record.file : null, total_s: null }, null, key, String(name));
      node.group = true;
      node.part = !own;
      node.open = own;
      groups.set(key, node);
    }
    makeNode(record, groups.get(key), key + " " + record.file + ":" + record.line + " " + record.name, record.name + " " + record.file);
  }
  for (const node of groups.values()) {
    for (const key of GROUP_SUMS) {
      const values = node.children.map((child) => child.record[key]).filter(isNumber);
      // A sum of some of the rows would look like that of all: the watch alone leaves rows out by right.
      const whole = values.length === node.children.length || (key === "watch_share" && values.length);
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
    return twigCell(node, depth, toggle, String(record.name), el("b", {}, record.own ? shortPath(record.name) : record.name), el("span", { class: "quiet" }, " " + node.children.length + (node.children.length === 1 ? " function" : " functions")));
  }
  if (column.key === "name") return twigCell(node, depth, toggle, record.name, view.nameCell(record));
  if (column.key === "file") return node.group ? el("td") : el("td", { class: "text", title: record.file }, functionFile(record));
  const reason = node.group ? GROUP_REASONS[column.key] || column.reason || "not known of all its functions" : whyEmpty(column);
  if (column.key === "self_s" || column.key === "total_s") {
    const share = node.group ? null : value / view.most[column.key];
    return barCell(value, "s", share, "var(--self)", reason);
  }
  return plainCell(column, value, reason);
}
