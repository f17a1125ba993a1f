// Tables: sorted by any column, searched over all rows, shown a page at a time, copied, and found by
// the address of a row.
const PAGE_ROWS = 20;

const asRecords = (table) =>
  table.rows.map((row) => Object.fromEntries(table.columns.map((column, at) => [column.key, row[at]])));

function compareBy(key, direction) {
  // Empty cells stay last whichever way a column is sorted.
  return (left, right) => {
    const a = left[key], b = right[key];
    if (a === null || a === undefined) return b === null || b === undefined ? 0 : 1;
    if (b === null || b === undefined) return -1;
    if (typeof a === "number" && typeof b === "number") return direction * (a - b);
    return direction * String(a).localeCompare(String(b), undefined, { numeric: true });
  };
}

// The columns named first stand first: what matters is on screen where the screen is small.
const ordered = (columns, first) => {
  const rank = (column) => (first.includes(column.key) ? first.indexOf(column.key) : first.length);
  return columns.slice().sort((a, b) => rank(a) - rank(b));
};

const emptyColumns = (table) =>
  table.columns.filter((column, at) => table.rows.every((row) => row[at] === null));

const isNumeric = (column) => column.unit !== "text" && column.unit !== "flag";

// Why a cell of this column has nothing in it.
const whyEmpty = (column) => column.reason || column.cell_reason;

// A column of a table that the page makes itself; `origin` is {layer, kind} as in provenance.py.
const ownColumn = (key, label, unit, meaning, cell_reason = null, origin = {}) => ({ key, label, unit, meaning, reason: null, cell_reason, source: null, layer: origin.layer || null, kind: origin.kind || null, words: origin.words || null });

// What the hidden columns are and why they are empty, one line per reason.
function emptyNote(columns, onToggle) {
  if (!columns.length) return null;
  const reasons = new Map();
  for (const column of columns) {
    const reason = column.reason || "not measured in this run";
    reasons.set(reason, [...(reasons.get(reason) || []), column.label]);
  }
  const box = el("input", { type: "checkbox" });
  box.addEventListener("change", () => onToggle(box.checked));
  const count = columns.length + (columns.length === 1 ? " empty column" : " empty columns");
  return el("details", { class: "empty-note" },
    el("summary", {}, count + ", and why"),
    el("ul", {}, [...reasons].map(([reason, names]) => el("li", {}, names.join(", ") + ": " + reason))),
    el("label", {}, box, " show these columns"));
}

function headCell(column, sort, onSort) {
  const numeric = isNumeric(column);
  const active = sort.key === column.key;
  const words = [column.meaning, provenance(column), column.kind === "counted" || column.kind === "rate" ? null : column.source && "from " + column.source, column.reason && "(" + column.reason + ")"];
  const cell = el("th", { scope: "col", class: numeric ? "number" : null, "aria-sort": active ? (sort.direction > 0 ? "ascending" : "descending") : "none" },
    el("button", { type: "button", title: words.filter(Boolean).join("\n") },
      column.label, el("span", { class: "arrow", "aria-hidden": "true" }, active ? (sort.direction > 0 ? "▲" : "▼") : "")));
  cell.firstChild.addEventListener("click", () => {
    const direction = active ? -sort.direction : numeric ? -1 : 1;
    onSort({ key: column.key, direction });
  });
  return cell;
}

// A head is made anew when it is sorted by: what is called gives the focus back to the button that had it.
function keptFocus(head) {
  const wordsOf = (button) => button.textContent.replace(/[▲▼]/g, "");
  const focused = head.contains(document.activeElement) ? wordsOf(document.activeElement) : null;
  return () => { if (focused !== null) for (const button of head.querySelectorAll("button")) if (wordsOf(button) === focused) button.focus(); };
}

// A number with a bar behind it, as long as its share of the longest.
function barCell(value, unit, share, colour, reason) {
  const cell = el("td", { class: "number bar" });
  if (isNumber(share) && share > 0) {
    const bar = el("span", { class: "fill", "aria-hidden": "true" });
    bar.style.width = Math.min(100, 100 * share).toFixed(2) + "%";
    if (colour) bar.style.background = colour;
    cell.append(bar);
  }
  cell.append(el("span", { class: "over" }, shown(value, unit, reason)));
  return cell;
}

const longestOf = (records, keys) =>
  Object.fromEntries(keys.map((key) => [key, records.reduce((most, record) => Math.max(most, record[key] || 0), 0) || 1]));

// Text that names a row of another view leads there.
const COLUMN_WAYS = { module: "modules", operator: "operators" };

function textContent(column, value) {
  const view = COLUMN_WAYS[column.key];
  return view && typeof value === "string" && value ? linkTo(view, value, value) : formatValue(value, column.unit);
}

// A cell with a number or words. The full number and where it comes from stand in its title.
function plainCell(column, value, reason) {
  if (value === null || value === undefined) return el("td", { class: isNumeric(column) ? "number" : "text" }, none(reason));
  if (isNumeric(column)) return el("td", { class: "number" }, formatValue(value, column.unit));
  return el("td", { class: "text", title: formatValue(value, column.unit) }, textContent(column, value));
}

function bodyCell(column, record, spec, longest) {
  const value = record[column.key];
  const custom = spec.cells && spec.cells[column.key];
  if (custom) return custom(value, record, column);
  if (spec.bars && spec.bars.includes(column.key)) {
    return barCell(value, column.unit, value / longest[column.key], spec.barColour, whyEmpty(column));
  }
  return plainCell(column, value, whyEmpty(column));
}

// Whatever made a cell: a number is told in full, with where it comes from.
function withProvenance(cell, column, record) {
  const value = record[column.key];
  if (isNumeric(column) && isNumber(value) && !cell.title) cell.title = numberTitle(value, originIn(column, record));
  return cell;
}

// The address of a row, in its first cell, in sight when the row is pointed at. Its words stand in
// attributes: the text of a cell is that of the data alone.
function rowWays(cell, view, key, ways) {
  const links = (ways || []).filter(Boolean);
  for (const link of links) { link.dataset.text = link.textContent; link.setAttribute("aria-label", link.textContent + " of " + key); link.textContent = ""; }
  links.push(el("a", { class: "anchor", "data-text": "#", href: wayTo(view, key), title: "address of this row", "aria-label": "address of " + key }));
  cell.append(el("span", { class: "row-ways" }, links));
}

const viewAround = (box) => (box.closest(".view") || { dataset: {} }).dataset.view;

// What an address's filter leaves of records that name a module; null where all stay.
// `moduleOf(record)` where no column of the table is one of modules alone.
function moduleFilter(table, filter, moduleOf) {
  if (filter && filter.module && moduleOf) return (record) => moduleOf(record) !== null && isWithin(moduleOf(record), filter.module);
  const column = table.columns.find(({ key }) => key === "module") || table.columns.find(({ key }) => key === "path");
  return filter && filter.module && column ? (record) => record[column.key] !== null && isWithin(record[column.key], filter.module) : null;
}

// spec: table, name, sort {key, direction}, bars [keys], cells {key: (value, record, column) => td},
// hidden [keys], first [keys], filter(record), plain (few rows: nothing to search),
// keyOf(record) (the row's part of its address), view (default: the one the box lies in),
// reveal(record) (brings the table on screen before one of its rows is marked),
// moduleOf(record) (the module that a filter goes by, or null, where no column is one of modules)
function makeTable(box, spec) {
  const { table } = spec;
  const view = spec.view || viewAround(box);
  const records = asRecords(table);
  const empty = emptyColumns(table).filter((column) => !(spec.hidden || []).includes(column.key));
  const textOf = (record) => Object.values(record).filter((value) => typeof value === "string").join("\n").toLowerCase();
  const texts = new Map();
  const state = { sort: spec.sort, wanted: null, rows: PAGE_ROWS, empty: false, only: moduleFilter(table, filterOf(view), spec.moduleOf), listed: [], columns: [] };
  const count = el("span", { class: "count", "aria-live": "polite" });
  const lack = el("span", { class: "lack", "aria-live": "polite" });
  const head = el("thead"), body = el("tbody"), more = el("div", { class: "more" });
  const scroll = el("div", { class: "scroll rows", tabindex: "0", role: "group", "aria-label": "table: " + spec.name }, el("table", { "aria-label": spec.name }, head, body));

  function matches(record) {
    if (spec.filter && !spec.filter(record)) return false;
    if (state.only && !state.only(record)) return false;
    if (!state.wanted) return true;
    if (!texts.has(record)) texts.set(record, textOf(record));
    return state.wanted(record, texts.get(record));
  }

  function draw() {
    const columns = ordered(table.columns, spec.first || []).filter((column) => !(spec.hidden || []).includes(column.key) && (state.empty || !empty.includes(column)));
    let found = records.filter(matches);
    const longest = longestOf(spec.filter ? records.filter(spec.filter) : records, spec.bars || []);
    // A share's bar is as long as the share.
    for (const column of columns) if (column.unit === "share") longest[column.key] = 1;
    if (state.sort) found = found.slice().sort(compareBy(state.sort.key, state.sort.direction));
    const refocus = keptFocus(head);
    head.replaceChildren(el("tr", {}, columns.map((column) => headCell(column, state.sort || {}, (sort) => { state.sort = sort; draw(); }))));
    refocus();
    Object.assign(state, { listed: found, columns });
    body.replaceChildren(...found.slice(0, state.rows).map((record) => tableRow(record, columns, longest)));
    const counted = found.length === records.length ? records.length + (records.length === 1 ? " row" : " rows") : found.length + " of " + records.length + " rows";
    if (count.textContent !== counted) count.textContent = counted;
    drawMore(found.length);
  }

  function tableRow(record, columns, longest) {
    const cells = columns.map((column) => withProvenance(bodyCell(column, record, spec, longest), column, record));
    if (spec.keyOf && view && cells.length) rowWays(cells[0], view, String(spec.keyOf(record)));
    return el("tr", {}, cells);
  }

  function drawMore(found) {
    more.replaceChildren();
    if (found <= state.rows) return;
    const left = found - state.rows;
    const button = (text, rows) => el("button", { type: "button", onclick: () => { state.rows = rows; draw(); (more.querySelector("button") || scroll).focus({ preventScroll: true }); } }, text);
    more.append(button("Show " + Math.min(left, 100) + " more", state.rows + 100));
    if (left > 100) more.append(button("Show all " + found, found));
  }

  // Marks the row of a key, wherever it stands: the search is taken off and rows are shown up to it.
  function find(key) {
    const record = records.find((one) => String(spec.keyOf(one)) === key);
    if (!record) return false;
    if (spec.reveal) spec.reveal(record);
    if (!matches(record)) { state.wanted = null; search.value = lack.textContent = ""; draw(); }
    const at = state.listed.indexOf(record);
    if (at < 0) return false;
    if (at >= state.rows) { state.rows = at + PAGE_ROWS; draw(); }
    markElement(body.children[at]);
    return true;
  }

  const search = searchBox(spec.name, (typed) => { state.wanted = seeker(typed, table.columns); lack.textContent = lacksOf(typed, table.columns); state.rows = PAGE_ROWS; draw(); }, table.columns);
  append(box, [
    el("div", { class: "tools" }, spec.plain ? null : search, spec.controls, spec.plain ? null : count, lack,
      copyButtons(spec.name, () => ({ columns: state.columns, all: state.listed, shown: state.listed.slice(0, state.rows) }))),
    scroll,
    more,
    table.left_out ? el("p", { class: "left-out" }, table.left_out) : null,
    emptyNote(empty, (show) => { state.empty = show; draw(); }),
  ]);
  draw();
  if (spec.keyOf && view) onKey(view, find);
  if (view && moduleFilter(table, { module: "-" }, spec.moduleOf)) onFilter(view, (filter) => { state.only = moduleFilter(table, filter, spec.moduleOf); state.rows = PAGE_ROWS; draw(); });
  return draw;
}
