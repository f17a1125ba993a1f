// Tables: sorted by any column, searched over all rows, shown a page at a time.
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

// A column of a table that the page makes itself.
const ownColumn = (key, label, unit, meaning, cell_reason = null) => ({ key, label, unit, meaning, reason: null, cell_reason, source: null });

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

function searchBox(name, onSearch) {
  const input = el("input", { type: "search", placeholder: "search " + name, "aria-label": "search " + name, autocomplete: "off", spellcheck: "false" });
  let timer = 0;
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => onSearch(input.value.trim().toLowerCase()), 80);
  });
  return input;
}

function headCell(column, sort, onSort) {
  const numeric = isNumeric(column);
  const active = sort.key === column.key;
  const cell = el("th", { scope: "col", class: numeric ? "number" : null, "aria-sort": active ? (sort.direction > 0 ? "ascending" : "descending") : "none" },
    el("button", { type: "button", title: column.meaning + (column.source ? "; from " + column.source : "") + (column.reason ? " (" + column.reason + ")" : "") },
      column.label, el("span", { class: "arrow", "aria-hidden": "true" }, active ? (sort.direction > 0 ? "▲" : "▼") : "")));
  cell.firstChild.addEventListener("click", () => {
    const direction = active ? -sort.direction : numeric ? -1 : 1;
    onSort({ key: column.key, direction });
  });
  return cell;
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

function bodyCell(column, record, spec, longest) {
  const value = record[column.key];
  const custom = spec.cells && spec.cells[column.key];
  if (custom) return custom(value, record, column);
  if (spec.bars && spec.bars.includes(column.key)) {
    return barCell(value, column.unit, value / longest[column.key], spec.barColour, whyEmpty(column));
  }
  const text = shown(value, column.unit, whyEmpty(column));
  const exact = typeof value === "number" && column.unit !== "plain" ? String(value) : null;
  if (isNumeric(column)) return el("td", { class: "number", title: exact }, text);
  return el("td", { class: "text", title: value === null ? null : formatValue(value, column.unit) }, text);
}

// spec: table, name, sort {key, direction}, bars [keys], cells {key: (value, record) => td},
// hidden [keys], first [keys], filter(record), plain (few rows: nothing to search)
function makeTable(box, spec) {
  const table = spec.table;
  const records = asRecords(table);
  const empty = emptyColumns(table).filter((column) => !(spec.hidden || []).includes(column.key));
  const haystacks = new Map(records.map((record) => [record, Object.values(record).filter((value) => typeof value === "string").join("\n").toLowerCase()]));
  const state = { sort: spec.sort, wanted: "", rows: PAGE_ROWS, empty: false };
  const count = el("span", { class: "count", "aria-live": "polite" });
  const head = el("thead");
  const body = el("tbody");
  const more = el("div", { class: "more" });

  function draw() {
    const columns = ordered(table.columns, spec.first || []).filter((column) => !(spec.hidden || []).includes(column.key) && (state.empty || !empty.includes(column)));
    let found = records.filter((record) => (!state.wanted || haystacks.get(record).includes(state.wanted)) && (!spec.filter || spec.filter(record)));
    const longest = longestOf(spec.filter ? records.filter(spec.filter) : records, spec.bars || []);
    // A share's bar is as long as the share.
    for (const column of columns) if (column.unit === "share") longest[column.key] = 1;
    if (state.sort) found = found.slice().sort(compareBy(state.sort.key, state.sort.direction));
    const focused = head.contains(document.activeElement) ? document.activeElement.textContent.replace(/[▲▼]/g, "") : null;
    head.replaceChildren(el("tr", {}, columns.map((column) => headCell(column, state.sort || {}, (sort) => { state.sort = sort; draw(); }))));
    if (focused) for (const button of head.querySelectorAll("button")) if (button.textContent.replace(/[▲▼]/g, "") === focused) button.focus();
    body.replaceChildren(...found.slice(0, state.rows).map((record) => el("tr", {}, columns.map((column) => bodyCell(column, record, spec, longest)))));
    count.textContent = found.length === records.length ? records.length + (records.length === 1 ? " row" : " rows") : found.length + " of " + records.length + " rows";
    drawMore(found.length);
  }

  function drawMore(found) {
    more.replaceChildren();
    if (found <= state.rows) return;
    const left = found - state.rows;
    const button = (text, rows) => el("button", { type: "button", onclick: () => { state.rows = rows; draw(); } }, text);
    more.append(button("Show " + Math.min(left, 100) + " more", state.rows + 100));
    if (left > 100) more.append(button("Show all " + found, found));
  }

  const search = searchBox(spec.name, (wanted) => { state.wanted = wanted; state.rows = PAGE_ROWS; draw(); });
  append(box, [
    spec.plain ? null : el("div", { class: "tools" }, search, spec.controls, count),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": spec.name }, el("table", {}, head, body)),
    more,
    table.left_out ? el("p", { class: "left-out" }, table.left_out) : null,
    emptyNote(empty, (show) => { state.empty = show; draw(); }),
  ]);
  draw();
  return draw;
}
