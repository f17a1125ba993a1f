// Tables: sorted by any column, searched over all rows, shown a page at a time, copied, and with an
// address for each row; and trees, tables whose rows lie inside one another.

import {
  append,
  atLine,
  el,
  formatValue,
  fullNumber,
  isNumber,
  medianOf,
  none,
  numberTitle,
  originIn,
  provenance,
  quiet,
  remark,
  shortPath,
  showCopied,
  shown,
} from "./dom.js";
import { filterOf, go, isWithin, linkTo, markElement, onFilter, onKey, wayTo } from "./views.js";

const PAGE_ROWS = 20;

export const asRecords = (table) =>
  table.rows.map((row) =>
    Object.fromEntries(table.columns.map((column, at) => [column.key, row[at]])),
  );

export function compareBy(key, direction) {
  // Empty cells stay last whichever way a column is sorted.
  return (left, right) => {
    const a = left[key];
    const b = right[key];
    if (a === null || a === undefined) return b === null || b === undefined ? 0 : 1;
    if (b === null || b === undefined) return -1;
    if (typeof a === "number" && typeof b === "number") return direction * (a - b);
    return direction * String(a).localeCompare(String(b), undefined, { numeric: true });
  };
}

// The columns named first are first: what matters is on screen where the screen is small.
const ordered = (columns, first) => {
  const rank = (column) => (first.includes(column.key) ? first.indexOf(column.key) : first.length);
  return columns.slice().sort((a, b) => rank(a) - rank(b));
};

export const emptyColumns = (table) =>
  table.columns.filter((_column, at) => table.rows.every((row) => row[at] === null));

const isNumeric = (column) => column.unit !== "text" && column.unit !== "flag";

export const columnOf = (table, key) => table.columns.find((column) => column.key === key);

export const columnMedian = (records, key) =>
  medianOf(records.map((record) => record[key]).filter(isNumber));

// Why a cell of this column has nothing in it.
export const whyEmpty = (column) => column.reason || column.cell_reason;

// A column of a table that the page makes itself; `origin` is {layer, kind} as in page_tables.py.
export const ownColumn = (key, label, unit, meaning, cell_reason = null, origin = {}) => ({
  key,
  label,
  unit,
  meaning,
  reason: null,
  cell_reason,
  source: null,
  layer: origin.layer || null,
  kind: origin.kind || null,
  words: origin.words || null,
});

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
  return el(
    "details",
    { class: "empty-note" },
    el("summary", {}, count + ", and why"),
    el(
      "ul",
      {},
      [...reasons].map(([reason, names]) => el("li", {}, names.join(", ") + ": " + reason)),
    ),
    el("label", {}, box, " show these columns"),
  );
}

function headCell(column, sort, onSort) {
  const numeric = isNumeric(column);
  const active = sort.key === column.key;
  const words = [
    column.meaning,
    provenance(column),
    column.kind === "counted" || column.kind === "rate"
      ? null
      : column.source && "from " + column.source,
    column.reason && "(" + column.reason + ")",
  ];
  const cell = el(
    "th",
    {
      scope: "col",
      class: numeric ? "number" : null,
      "aria-sort": active ? (sort.direction > 0 ? "ascending" : "descending") : "none",
    },
    el(
      "button",
      { type: "button", title: words.filter(Boolean).join("\n") },
      column.label,
      el(
        "span",
        { class: "arrow", "aria-hidden": "true" },
        active ? (sort.direction > 0 ? "▲" : "▼") : "",
      ),
    ),
  );
  cell.firstChild.addEventListener("click", () => {
    const direction = active ? -sort.direction : numeric ? -1 : 1;
    onSort({ key: column.key, direction });
  });
  return cell;
}

// Sorting rebuilds the head: call the returned function then, to give the focus back to its button.
function keptFocus(head) {
  const wordsOf = (button) => button.textContent.replace(/[▲▼]/g, "");
  const focused = head.contains(document.activeElement) ? wordsOf(document.activeElement) : null;
  return () => {
    if (focused !== null)
      for (const button of head.querySelectorAll("button"))
        if (wordsOf(button) === focused) button.focus();
  };
}

// A number with a bar behind it, as long as its share of the longest.
export function barCell(value, unit, share, colour, reason) {
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

export const longestOf = (records, keys) =>
  Object.fromEntries(
    keys.map((key) => [
      key,
      records.reduce((most, record) => Math.max(most, record[key] || 0), 0) || 1,
    ]),
  );

// Text that names a row of another view leads there.
export const COLUMN_WAYS = { module: "modules", operator: "operators" };

function textContent(column, value) {
  const view = COLUMN_WAYS[column.key];
  return view && typeof value === "string" && value
    ? linkTo(view, value, value)
    : formatValue(value, column.unit);
}

// A cell with a number or words. The full number and where it comes from are in its title.
export function plainCell(column, value, reason) {
  if (value === null || value === undefined)
    return el("td", { class: isNumeric(column) ? "number" : "text" }, none(reason));
  if (isNumeric(column)) return el("td", { class: "number" }, formatValue(value, column.unit));
  return el(
    "td",
    { class: "text", title: formatValue(value, column.unit) },
    textContent(column, value),
  );
}

function bodyCell(column, record, spec, longest) {
  const value = record[column.key];
  const custom = spec.cells?.[column.key];
  if (custom) return custom(value, record, column);
  if (spec.bars?.includes(column.key)) {
    return barCell(
      value,
      column.unit,
      value / longest[column.key],
      spec.barColour,
      whyEmpty(column),
    );
  }
  return plainCell(column, value, whyEmpty(column));
}

// Whatever made a cell: a number is told in full, with where it comes from.
export function withProvenance(cell, column, record) {
  const value = record[column.key];
  if (isNumeric(column) && isNumber(value) && !cell.title)
    cell.title = numberTitle(value, originIn(column, record));
  return cell;
}

// The address of a row, in its first cell, in sight when the row is pointed at. Its words are in
// attributes: the text of a cell is that of the data alone.
function rowWays(cell, view, key, ways) {
  const links = (ways || []).filter(Boolean);
  for (const link of links) {
    link.dataset.text = link.textContent;
    link.setAttribute("aria-label", link.textContent + " of " + key);
    link.textContent = "";
  }
  links.push(
    el("a", {
      class: "anchor",
      "data-text": "#",
      href: wayTo(view, key),
      title: "address of this row",
      "aria-label": "address of " + key,
    }),
  );
  cell.append(el("span", { class: "row-ways" }, links));
}

const viewAround = (box) => (box.closest(".view") || { dataset: {} }).dataset.view;

// What an address's filter leaves of records that name a module; null where all stay.
// `moduleOf(record)` where no column of the table is one of modules alone.
function moduleFilter(table, filter, moduleOf) {
  if (filter?.module && moduleOf)
    return (record) => moduleOf(record) !== null && isWithin(moduleOf(record), filter.module);
  const column =
    table.columns.find(({ key }) => key === "module") ||
    table.columns.find(({ key }) => key === "path");
  return filter?.module && column
    ? (record) => record[column.key] !== null && isWithin(record[column.key], filter.module)
    : null;
}

// spec: table, name, sort {key, direction}, bars [keys],
// cells {key: (value, record, column) => td}, hidden [keys], first [keys],
// filter(record), plain (few rows: nothing to search),
// keyOf(record) (the row's part of its address), view (default: the one the box lies in),
// reveal(record) (brings the table on screen before one of its rows is marked),
// moduleOf(record) (the module that a filter goes by, or null, where no column is one of modules)
export function makeTable(box, spec) {
  const { table } = spec;
  const view = spec.view || viewAround(box);
  const records = asRecords(table);
  const empty = emptyColumns(table).filter((column) => !(spec.hidden || []).includes(column.key));
  const textOf = (record) =>
    Object.values(record)
      .filter((value) => typeof value === "string")
      .join("\n")
      .toLowerCase();
  const texts = new Map();
  const state = {
    sort: spec.sort,
    wanted: null,
    rows: PAGE_ROWS,
    empty: false,
    only: moduleFilter(table, filterOf(view), spec.moduleOf),
    listed: [],
    columns: [],
  };
  const count = el("span", { class: "count", "aria-live": "polite" });
  const lack = el("span", { class: "lack", "aria-live": "polite" });
  const head = el("thead");
  const body = el("tbody");
  const more = el("div", { class: "more" });
  const scroll = el(
    "div",
    { class: "scroll rows", tabindex: "0", role: "group", "aria-label": "table: " + spec.name },
    el("table", { "aria-label": spec.name }, head, body),
  );

  function matches(record) {
    if (spec.filter && !spec.filter(record)) return false;
    if (state.only && !state.only(record)) return false;
    if (!state.wanted) return true;
    if (!texts.has(record)) texts.set(record, textOf(record));
    return state.wanted(record, texts.get(record));
  }

  function draw() {
    const columns = ordered(table.columns, spec.first || []).filter(
      (column) =>
        !(spec.hidden || []).includes(column.key) && (state.empty || !empty.includes(column)),
    );
    let found = records.filter(matches);
    const longest = longestOf(spec.filter ? records.filter(spec.filter) : records, spec.bars || []);
    // A share's bar is as long as the share.
    for (const column of columns) if (column.unit === "share") longest[column.key] = 1;
    if (state.sort) found = found.slice().sort(compareBy(state.sort.key, state.sort.direction));
    const refocus = keptFocus(head);
    head.replaceChildren(
      el(
        "tr",
        {},
        columns.map((column) =>
          headCell(column, state.sort || {}, (sort) => {
            state.sort = sort;
            draw();
          }),
        ),
      ),
    );
    refocus();
    Object.assign(state, { listed: found, columns });
    body.replaceChildren(
      ...found.slice(0, state.rows).map((record) => tableRow(record, columns, longest)),
    );
    const counted =
      found.length === records.length
        ? records.length + (records.length === 1 ? " row" : " rows")
        : found.length + " of " + records.length + " rows";
    if (count.textContent !== counted) count.textContent = counted;
    drawMore(found.length);
  }

  function tableRow(record, columns, longest) {
    const cells = columns.map((column) =>
      withProvenance(bodyCell(column, record, spec, longest), column, record),
    );
    if (spec.keyOf && view && cells.length) rowWays(cells[0], view, String(spec.keyOf(record)));
    return el("tr", {}, cells);
  }

  function drawMore(found) {
    more.replaceChildren();
    if (found <= state.rows) return;
    const left = found - state.rows;
    const button = (text, rows) =>
      el(
        "button",
        {
          type: "button",
          onclick: () => {
            state.rows = rows;
            draw();
            (more.querySelector("button") || scroll).focus({ preventScroll: true });
          },
        },
        text,
      );
    more.append(button("Show " + Math.min(left, 100) + " more", state.rows + 100));
    if (left > 100) more.append(button("Show all " + found, found));
  }

  // Marks the row of a key: clears the search and shows rows up to it.
  function find(key) {
    const record = records.find((one) => String(spec.keyOf(one)) === key);
    if (!record) return false;
    if (spec.reveal) spec.reveal(record);
    if (!matches(record)) {
      state.wanted = null;
      search.value = lack.textContent = "";
      draw();
    }
    const at = state.listed.indexOf(record);
    if (at < 0) return false;
    if (at >= state.rows) {
      state.rows = at + PAGE_ROWS;
      draw();
    }
    markElement(body.children[at]);
    return true;
  }

  const search = searchBox(
    spec.name,
    (typed) => {
      state.wanted = seeker(typed, table.columns);
      lack.textContent = lacksOf(typed, table.columns);
      state.rows = PAGE_ROWS;
      draw();
    },
    table.columns,
  );
  append(box, [
    el(
      "div",
      { class: "tools" },
      spec.plain ? null : search,
      spec.controls,
      spec.plain ? null : count,
      lack,
      copyButtons(spec.name, () => ({
        columns: state.columns,
        all: state.listed,
        shown: state.listed.slice(0, state.rows),
      })),
    ),
    scroll,
    more,
    table.left_out ? el("p", { class: "left-out" }, table.left_out) : null,
    emptyNote(empty, (show) => {
      state.empty = show;
      draw();
    }),
  ]);
  draw();
  followAddress(table, spec, view, find, (only) => {
    state.only = only;
    state.rows = PAGE_ROWS;
    draw();
  });
  return draw;
}

// What the view's address asks of a table: to find a row, and to keep a module's rows alone.
function followAddress(table, spec, view, find, keep) {
  if (spec.keyOf && view) onKey(view, find);
  if (view && moduleFilter(table, { module: "-" }, spec.moduleOf))
    onFilter(view, (filter) => keep(moduleFilter(table, filter, spec.moduleOf)));
}

// ---------- Search ----------

// What is typed into a table's search: words that must all be there, and conditions on columns.
//
//   conv backward            rows with both words anywhere
//   "aten::add "             a phrase, its spaces included
//   self>1ms calls>=10       conditions: column, one of > >= < <= = != : and a value, with any unit
//   module:encoder           the column holds the text
// A column is named by its heading or its key; where no column has the name, it is plain text.

const CONDITION = /^([\p{L}][\p{L}\d_./-]*)(>=|<=|!=|>|<|=|:)(.+)$/u;
const SEEK_HELP =
  'Words that must all be there, "a phrase" in quotes, and conditions on columns: ' +
  "self>1ms calls>=10 module:encoder";

const UNIT_SCALES = {
  s: { ns: 1e-9, us: 1e-6, µs: 1e-6, μs: 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600 },
  bytes: {
    b: 1,
    kib: 2 ** 10,
    mib: 2 ** 20,
    gib: 2 ** 30,
    tib: 2 ** 40,
    kb: 1e3,
    mb: 1e6,
    gb: 1e9,
    tb: 1e12,
  },
  share: { "%": 0.01 },
};
const COUNT_SCALES = { k: 1e3, m: 1e6, g: 1e9, t: 1e12, p: 1e15 };

// A figure as people write it, in the column's own unit; null for what is none.
function figureOf(text, unit) {
  const parts = /^([-+−]?[\d.]+(?:e[-+]?\d+)?)\s*([^\d\s]*)$/i.exec(text.trim());
  if (!parts) return null;
  const number = Number(parts[1].replace("−", "-"));
  const scale = parts[2] === "" ? 1 : (UNIT_SCALES[unit] || COUNT_SCALES)[parts[2].toLowerCase()];
  return Number.isFinite(number) && scale !== undefined ? number * scale : null;
}

const plainName = (name) => name.toLowerCase().replace(/[\s_/-]/g, "");

function columnCalled(name, columns) {
  const wanted = plainName(name);
  const tries = [
    (column) => plainName(column.label),
    (column) => plainName(column.key),
    (column) => plainName(column.key.replace(/_(s|bytes|flop|mac|share|per_s)$/, "")),
  ];
  for (const one of tries) for (const column of columns) if (one(column) === wanted) return column;
  return null;
}

const unquoted = (text) => text.replaceAll('"', "");

const COMPARE = {
  ">": (a, b) => a > b,
  "<": (a, b) => a < b,
  ">=": (a, b) => a >= b,
  "<=": (a, b) => a <= b,
  "=": (a, b) => a === b,
  "!=": (a, b) => a !== b,
};

// A condition as a function of a record; null where the text is none.
function conditionOf(text, columns) {
  const parts = CONDITION.exec(text);
  const column = parts && columnCalled(parts[1], columns);
  if (!column) return null;
  const [, , sign, rest] = parts;
  const value = unquoted(rest);
  if (isNumeric(column) && sign !== ":") {
    const figure = figureOf(value, column.unit);
    return figure === null
      ? null
      : (record) => isNumber(record[column.key]) && COMPARE[sign](record[column.key], figure);
  }
  const wanted = value.toLowerCase();
  const said = (record) =>
    record[column.key] === null || record[column.key] === undefined
      ? ""
      : formatValue(record[column.key], column.unit).toLowerCase();
  if (sign === ":") return (record) => said(record).includes(wanted);
  return COMPARE[sign] ? (record) => COMPARE[sign](said(record), wanted) : null;
}

const piecesOf = (typed) => typed.match(/(?:[^\s"]|"[^"]*"?)+/g) || [];

// A test of (record, its text in lower case) for what was typed; null where nothing was.
function seeker(typed, columns) {
  const pieces = piecesOf(typed);
  if (!pieces.length) return null;
  const tests = pieces.map((piece) => {
    const condition = conditionOf(piece, columns);
    const word = unquoted(piece).toLowerCase();
    return condition || ((_record, text) => text.includes(word));
  });
  return (record, text) => tests.every((test) => test(record, text));
}

// Why a piece that looks like a condition is sought as text; null where it is a condition or plain.
function lackOf(text, columns) {
  const parts = CONDITION.exec(text);
  if (!parts || conditionOf(text, columns)) return null;
  const column = columnCalled(parts[1], columns);
  // Names hold colons and signs too: only a plain word before one is taken for a column.
  if (!column)
    return /^[\p{L}_]+$/u.test(parts[1]) && !/^[:=]/.test(parts[3])
      ? "no column '" + parts[1] + "' here: sought as text"
      : null;
  return isNumeric(column)
    ? "'" + unquoted(parts[3]) + "' is no figure: sought as text"
    : "'" + parts[1] + "' holds words: = and : find them";
}

// Why what was typed may find nothing, said beside the count of rows.
const lacksOf = (typed, columns) =>
  piecesOf(typed)
    .map((piece) => lackOf(piece, columns))
    .filter(Boolean)
    .join("; ");

export function searchBox(name, onSearch, columns) {
  const example = (columns || []).find((column) => column.unit === "s");
  const hint = example ? ", or " + example.label.replaceAll(" ", "_") + ">1ms" : "";
  const input = el("input", {
    type: "search",
    placeholder: "search " + name + hint,
    "aria-label": "search " + name,
    title: columns ? SEEK_HELP : null,
    autocomplete: "off",
    spellcheck: "false",
  });
  let timer = 0;
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(
      () => onSearch(columns ? input.value.trim() : input.value.trim().toLowerCase()),
      80,
    );
  });
  return input;
}

// ---------- Copying ----------

// Tables for other programs: CSV with full values under the report's own column names, Markdown as
// the page shows them.

// A spreadsheet runs text that begins like a formula: an apostrophe before it prevents that.
const guarded = (text) => (/^[=+\-@\t\r]/.test(text) ? "'" + text : text);

function csvCell(value) {
  if (value === null || value === undefined) return "";
  const text =
    typeof value === "string"
      ? guarded(value)
      : isNumber(value)
        ? fullNumber(value)
        : String(value);
  return /[",\r\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
}

const asCsv = (columns, records) =>
  [
    columns.map((column) => csvCell(column.key)),
    ...records.map((record) => columns.map((column) => csvCell(record[column.key]))),
  ]
    .map((cells) => cells.join(","))
    .join("\n") + "\n";

const markdownCell = (text) =>
  String(text)
    .replaceAll("\\", "\\\\")
    .replaceAll("|", "\\|")
    .replaceAll("<", "&lt;")
    .replace(/\s*[\r\n]+\s*/g, " ");

function asMarkdown(columns, records) {
  const lines = [
    columns.map((column) => markdownCell(column.label)),
    columns.map((column) => (isNumeric(column) ? "---:" : "---")),
    ...records.map((record) =>
      columns.map((column) => markdownCell(formatValue(record[column.key], column.unit))),
    ),
  ];
  return lines.map((cells) => "| " + cells.join(" | ") + " |").join("\n") + "\n";
}

// Buttons that copy a table; `listed()` returns {columns, all (rows that match), shown}.
function copyButtons(name, listed) {
  const button = (text, title, make) =>
    el(
      "button",
      {
        type: "button",
        class: "copy",
        title,
        "aria-label": text + ": " + title,
        onclick: (event) => copyText(make(listed()), event.currentTarget),
      },
      text,
    );
  return el(
    "span",
    { class: "copies" },
    button(
      "CSV",
      "copy all rows of " + name + " that match: whole numbers in full, others to nine digits",
      ({ columns, all }) => asCsv(columns, all),
    ),
    button(
      "Markdown",
      "copy the rows of " + name + " that are listed, as they are shown",
      ({ columns, shown: rows }) => asMarkdown(columns, rows),
    ),
  );
}

// Puts text on the clipboard and says so on the button; where the browser forbids that, shows the
// text selected, to be copied by hand.
async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    showToCopy(text);
    return;
  }
  showCopied(button);
}

function showToCopy(text) {
  const area = el("textarea", { readonly: true, rows: 16, "aria-label": "text to copy" });
  area.value = text;
  const close = el("button", { type: "button" }, "close");
  const box = el(
    "dialog",
    { class: "to-copy", "aria-label": "copy by hand" },
    el(
      "p",
      {},
      "This browser gives the page no clipboard. The text is selected: copy it with Ctrl+C or ⌘C.",
    ),
    area,
    close,
  );
  close.addEventListener("click", () => box.close());
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  area.focus();
  area.select();
}

// ---------- Tables of the page's own, and cells of several views ----------

// A figure of a row that gives its own reason for having none.
export const cellWithReason = (otherwise) => (value, record, column) => {
  const text = shown(value, column.unit, record.reason || otherwise || whyEmpty(column));
  return el("td", { class: column.unit === "text" ? "text" : "number" }, text);
};

// A table of the page's own from records, each of whose columns says where its numbers come from;
// columns without any value stay out of sight with a reason.
export function recordTable(box, records, columns, spec) {
  const rows = records.map((record) => columns.map(({ key }) => record[key] ?? null));
  return makeTable(box, { table: { columns, rows, left_out: null }, plain: true, ...spec });
}

// Why a table is not there that one kind of the torch layer's slices gives: it had no such slice,
// or that slice left nothing. Without that layer there is nothing to say here.
export function lackingTable(box, page, title, mode, did) {
  const torch = (page.facts.layers || []).find((layer) => layer.name === "torch");
  if (torch?.status !== "recorded") {
    box.remove();
    return;
  }
  const had = page.slices.some((slice) => slice.layer === "torch" && slice.mode === mode);
  box.append(
    el("h3", {}, title),
    remark(
      had
        ? "The slice in which the torch layer " +
            did +
            " left nothing to show; the warnings say more, where more is known."
        : "No slice of the torch layer " +
            did +
            " in this run: it ended before that slice had its turn, or the slice was left out.",
    ),
  );
}

export const sourceCells = {
  file: (value, record) => placeCell(value, record.line),
  source: (value, _record, one) =>
    el(
      "td",
      { class: "text wide", title: value },
      value === null ? none(whyEmpty(one)) : el("code", {}, value.trim()),
    ),
};

// Lines of libraries are seldom among those of the source view.
const isLibrary = (file) =>
  /^<|[/\\](site|dist)-packages[/\\]|[/\\]lib(64)?[/\\]python\d/.test(file);

export const placeCell = (file, line) =>
  el(
    "td",
    { class: "text", title: file === null ? null : atLine(file, line) },
    placeContent(file, line),
  );

function placeContent(file, line) {
  if (file === null) return none("no source line is known of it");
  const words = atLine(shortPath(file), line);
  return isLibrary(file) || !isNumber(line) ? words : linkTo("source", file + ":" + line, words);
}

// ---------- Trees ----------
// Tables whose rows lie inside one another: folded at will, sorted within their level, searched
// with the rows around what is found, drawn a stretch at a time, and walked through with the keys:
// up and down, right to unfold or go in, left to fold or go out, Enter for the row's address.

const TREE_ROWS = 200;

// node: {record, children, parent, open, part (is last), key, text (for the search)}
export function makeNode(record, parent, key, text) {
  const node = {
    record,
    parent,
    key,
    text: text.toLowerCase(),
    children: [],
    open: false,
    part: false,
  };
  if (parent) parent.children.push(node);
  return node;
}

function eachNode(nodes, visit, depth = 0) {
  for (const node of nodes) {
    visit(node, depth);
    eachNode(node.children, visit, depth + 1);
  }
}

// spec: table (columns, left_out, total), roots, name, sort, first [keys], hidden [keys],
// inOrder (key whose rising order is that of the table), levels [[text, depth]], controls,
// cell(column, node, depth, toggle) => td, note (said under the table),
// keyOf(record), view, moduleOf(record), reveal(record) (as in makeTable; reveal may change roots),
// ways(node) (links shown in the row's first cell when it is pointed at)
export function makeTree(box, spec) {
  const { table } = spec;
  const hidden = spec.hidden || [];
  const view = spec.view || viewAround(box);
  const empty = emptyColumns(table).filter((column) => !hidden.includes(column.key));
  const state = {
    roots: spec.roots,
    sort: spec.sort,
    wanted: null,
    empty: false,
    rows: TREE_ROWS,
    only: moduleFilter(table, filterOf(view), spec.moduleOf),
    listed: [],
    columns: [],
    active: null,
  };
  const head = el("thead");
  const body = el("tbody");
  const more = el("div", { class: "more" });
  const lack = el("span", { class: "lack", "aria-live": "polite" });
  const count = el("span", { class: "count", "aria-live": "polite" });
  const isCut = () => Boolean(state.wanted || state.only);

  // Without `whole` a folded row hides what is in it; a search opens the ways to what it found.
  function visibleRows(nodes, depth, rows, whole) {
    const { key, direction } = state.sort;
    const sorted =
      key === spec.inOrder && direction > 0
        ? nodes.slice()
        : nodes.slice().sort((a, b) => compareBy(key, direction)(a.record, b.record));
    sorted.sort((a, b) => a.part - b.part);
    for (const node of sorted) {
      if (isCut() && !node.matches) continue;
      rows.push([node, depth]);
      if (node.children.length && (whole || (isCut() ? node.inside : node.open)))
        visibleRows(node.children, depth + 1, rows, whole);
    }
    return rows;
  }

  function mark(nodes) {
    let any = false;
    for (const node of nodes) {
      node.inside = mark(node.children);
      node.matches =
        node.inside ||
        ((!state.only || state.only(node.record)) &&
          (!state.wanted || state.wanted(node.record, node.text)));
      any = any || node.matches;
    }
    return any;
  }

  function draw(focus) {
    if (isCut()) mark(state.roots);
    const columns = ordered(table.columns, spec.first || []).filter(
      (column) => !hidden.includes(column.key) && (state.empty || !empty.includes(column)),
    );
    const rows = visibleRows(state.roots, 0, []);
    const shownRows = rows.slice(0, state.rows);
    Object.assign(state, { listed: shownRows, columns });
    const refocus = keptFocus(head);
    head.replaceChildren(
      el(
        "tr",
        {},
        columns.map((column) =>
          headCell(column, state.sort, (sort) => {
            state.sort = sort;
            draw();
          }),
        ),
      ),
    );
    refocus();
    body.replaceChildren(...shownRows.map(([node, depth]) => treeRow(node, depth, columns)));
    setActive(
      Math.max(
        0,
        shownRows.findIndex(([node]) => node.key === state.active),
      ),
    );
    const counted = shownRows.length + " of " + table.total + " rows shown";
    if (count.textContent !== counted) count.textContent = counted;
    const left = rows.length - shownRows.length;
    more.replaceChildren();
    if (left > 0)
      more.append(
        el(
          "button",
          {
            type: "button",
            onclick: () => {
              state.rows += TREE_ROWS;
              draw();
              setActive(shownRows.length, true);
            },
          },
          "Show " + Math.min(left, TREE_ROWS) + " more",
        ),
      );
    if (left > TREE_ROWS) more.append(quiet(left + " unfolded rows are left"));
    if (focus !== undefined)
      for (const button of body.querySelectorAll("button.twig"))
        if (button.dataset.key === String(focus)) button.focus();
  }

  function treeRow(node, depth, columns) {
    const cells = columns.map((column) =>
      withProvenance(spec.cell(column, node, depth, toggle), column, node.record),
    );
    if (spec.keyOf && view && cells.length && !node.group)
      rowWays(cells[0], view, String(spec.keyOf(node.record)), spec.ways ? spec.ways(node) : null);
    const open = isCut() ? node.inside : node.open;
    return el(
      "tr",
      {
        class: node.group ? "group" : node.part ? "part" : null,
        "aria-level": depth + 1,
        "aria-expanded": node.children.length ? String(Boolean(open)) : null,
        tabindex: "-1",
      },
      cells,
    );
  }

  // One row is in the order of the Tab key, with what can be pressed in it.
  function setActive(at, focus) {
    const row = body.children[at];
    if (!row) return;
    for (const other of body.children) if (other !== row) inOrder(other, false);
    inOrder(row, true);
    state.active = state.listed[at][0].key;
    if (focus) row.focus();
  }

  function inOrder(row, is) {
    row.tabIndex = is ? 0 : -1;
    for (const one of row.querySelectorAll("a, button:not(.twig)")) one.tabIndex = is ? 0 : -1;
  }

  function onArrow(event) {
    const row = event.target.closest("tr");
    if (event.target !== row || event.altKey || event.ctrlKey || event.metaKey) return;
    const at = [...body.children].indexOf(row);
    const [node, depth] = state.listed[at];
    const open = !isCut() && node.open && node.children.length;
    const fold = (wanted) => {
      node.open = wanted;
      draw();
      setActive(
        state.listed.findIndex(([one]) => one === node),
        true,
      );
    };
    const ways = {
      ArrowDown: () => setActive(Math.min(at + 1, body.children.length - 1), true),
      ArrowUp: () => setActive(Math.max(at - 1, 0), true),
      Home: () => setActive(0, true),
      End: () => setActive(body.children.length - 1, true),
      ArrowRight: () => {
        if (node.children.length && !open && !isCut()) fold(true);
        else if (state.listed[at + 1] && state.listed[at + 1][1] > depth) setActive(at + 1, true);
      },
      ArrowLeft: () => {
        if (open) fold(false);
        else if (node.parent)
          setActive(
            Math.max(
              0,
              state.listed.findIndex(([one]) => one === node.parent),
            ),
            true,
          );
      },
      Enter: () => {
        if (spec.keyOf && view && !node.group) go(wayTo(view, String(spec.keyOf(node.record))));
      },
    };
    if (ways[event.key]) {
      event.preventDefault();
      ways[event.key]();
    }
  }

  function toggle(node, open) {
    node.open = open === undefined ? !node.open : open;
    draw(node.key);
  }

  // Marks the row of a key: the rows around it are unfolded and the search is taken off.
  function find(key) {
    let found = null;
    const look = () =>
      eachNode(state.roots, (node) => {
        if (!node.group && !found && String(spec.keyOf(node.record)) === key) found = node;
      });
    look();
    if (!found && !(spec.reveal && table.rows.length)) return false;
    if (spec.reveal) {
      const record = found
        ? found.record
        : asRecords(table).find((one) => String(spec.keyOf(one)) === key);
      if (!record) return false;
      spec.reveal(record);
      found = null;
      look();
    }
    if (!found) return false;
    if (isCut()) {
      mark(state.roots);
      if (!found.matches) {
        state.wanted = null;
        search.value = lack.textContent = "";
      }
    }
    for (let node = found.parent; node; node = node.parent) node.open = true;
    const at = visibleRows(state.roots, 0, []).findIndex(([node]) => node === found);
    if (at < 0) return false;
    state.rows = Math.max(state.rows, at + TREE_ROWS / 4);
    state.active = found.key;
    draw();
    markElement(body.children[at]);
    return true;
  }

  const unfold = (levels) => {
    eachNode(state.roots, (node, depth) => {
      node.open = depth < levels;
    });
    state.rows = TREE_ROWS;
    draw();
  };
  const levels = el(
    "div",
    { class: "choice" },
    (spec.levels || []).map(([text, depth]) =>
      el("button", { type: "button", onclick: () => unfold(depth) }, text),
    ),
  );
  const search = searchBox(
    spec.name,
    (typed) => {
      state.wanted = seeker(typed, table.columns);
      lack.textContent = lacksOf(typed, table.columns);
      state.rows = TREE_ROWS;
      draw();
    },
    table.columns,
  );
  const recordsOf = (rows) => rows.filter(([node]) => !node.group).map(([node]) => node.record);
  body.addEventListener("keydown", onArrow);
  append(box, [
    el(
      "div",
      { class: "tools" },
      search,
      spec.levels ? levels : null,
      spec.controls,
      count,
      lack,
      copyButtons(spec.name, () => ({
        columns: state.columns,
        all: recordsOf(visibleRows(state.roots, 0, [], true)),
        shown: recordsOf(state.listed),
      })),
    ),
    el(
      "div",
      { class: "scroll" },
      el(
        "table",
        {
          class: "tree" + (spec.ways ? " with-ways" : ""),
          role: "treegrid",
          "aria-label": spec.name,
        },
        head,
        body,
      ),
    ),
    more,
    spec.note || null,
    table.left_out ? el("p", { class: "left-out" }, table.left_out) : null,
    table.total > table.rows.length && !table.left_out
      ? el(
          "p",
          { class: "left-out" },
          table.rows.length +
            " of " +
            table.total +
            " rows are on this page (those with the most time); all are in recording.sqlite " +
            "and report.json.",
        )
      : null,
    emptyNote(empty, (show) => {
      state.empty = show;
      draw();
    }),
  ]);
  draw();
  followAddress(table, spec, view, find, (only) => {
    state.only = only;
    state.rows = TREE_ROWS;
    draw();
  });
  return {
    draw,
    unfold,
    put: (roots) => {
      state.roots = roots;
      state.rows = TREE_ROWS;
      draw();
    },
  };
}

// The cell that folds: indented by its depth, then its content.
export function twigCell(node, depth, toggle, title, ...content) {
  const cell = el("td", { class: "text path", title });
  const indent = el("span", { class: "indent" });
  // Deep trees are indented less and less: the name must stay on the screen.
  const wide = depth <= 12 ? 14 * depth : 168 + 3 * (depth - 12);
  indent.style.width = wide + "px";
  // What is before the name: the rest of the cell is the name's.
  cell.style.setProperty("--before", wide + 20 + "px");
  cell.append(indent);
  if (node.children.length) {
    const twig = el(
      "button",
      {
        type: "button",
        class: "twig",
        "aria-expanded": String(node.open),
        "aria-label": (node.open ? "fold " : "unfold ") + node.key,
        tabindex: "-1",
      },
      node.open ? "▾" : "▸",
    );
    twig.dataset.key = String(node.key);
    twig.addEventListener("click", () => toggle(node));
    twig.addEventListener("keydown", (event) => {
      if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
        event.preventDefault();
        toggle(node, event.key === "ArrowRight");
      }
    });
    cell.append(twig);
  } else cell.append(el("span", { class: "twig" }));
  append(cell, content);
  return cell;
}

// The longest known path before this one: rows between may have been left out.
export function nearestParent(path, separator, known) {
  let cut = path.lastIndexOf(separator);
  while (cut > 0) {
    const found = known.get(path.slice(0, cut));
    if (found) return found;
    cut = path.lastIndexOf(separator, cut - 1);
  }
  return null;
}
