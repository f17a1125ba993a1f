// The view "Source": one file at a time, the user's own first, with the figures of each line beside
// it. Where the text was recorded, lines without figures are shown too, long stretches folded.

import {
  append,
  atLine,
  byId,
  choice,
  el,
  figure,
  formatFactor,
  formatSeconds,
  isNumber,
  none,
  pairs,
  plural,
  provenance,
  quiet,
  RAW_TORCH,
  remark,
  shortPath,
  shown,
} from "./dom.js";
import { isOwn } from "./python.js";
import { asRecords, barCell, emptyColumns, makeTable, whyEmpty, withProvenance } from "./table.js";
import {
  drop,
  filterOf,
  linkFiltered,
  linkTo,
  markElement,
  onFilter,
  onKey,
  settledSlices,
} from "./views.js";

export const sourceView = {
  id: "source",
  title: "Source",
  needs: ["lines", "sources", "module_lines", "functions", "slices"],
  shows: ["lines"],
  parts: [["lines", drawLines]],
};

const LINE_GROUPS = [
  ["main", ["time_s", "backward_s", "device_s", "largest_bytes", "calls"]],
  ["time", ["time_s", "python_s", "operator_s", "backward_s", "device_s", "calls"]],
  [
    "memory",
    [
      "largest_bytes",
      "increment_bytes",
      "allocated_bytes",
      "usage_bytes",
      "occurrences",
      "watch_bytes",
    ],
  ],
  ["watch", ["watch_share", "startup_share", "watch_bytes"]],
];
const LINE_HEADS = {
  python_s: "python",
  operator_s: "operators",
  backward_s: "of it backward",
  device_s: "device",
  largest_bytes: "memory",
  increment_bytes: "RSS growth",
  allocated_bytes: "second source",
  memory_profiler_increment_bytes: "RSS growth (memory_profiler)",
  usage_bytes: "RSS after",
  occurrences: "runs seen",
  watch_share: "watch",
  startup_share: "start-up",
  watch_bytes: "RSS growth (watch)",
  calls: "calls",
};
// The heading of a column; those that a layer adds have theirs with them.
const headOf = (view, key) => LINE_HEADS[key] || view.meta[key].label;
const LINE_SUMS = [
  "time_s",
  "python_s",
  "operator_s",
  "backward_s",
  "device_s",
  "increment_bytes",
  "allocated_bytes",
  "watch_bytes",
  "watch_share",
  "startup_share",
];
// A stretch without figures is folded where it is longer than this, but for some lines at its ends.
const LONGEST_QUIET = 20;
const QUIET_ENDS = 5;
const LINE_COLOURS = { python_s: "var(--file-5)", operator_s: "var(--forward)" };

const lineTime = (record) => (record.python_s || 0) + (record.operator_s || 0);
const timeOf = (lines) => lines.reduce((all, line) => all + lineTime(line), 0);

function drawLines(page) {
  const table = page.tables.lines;
  if (!table) {
    drop("lines");
    return;
  }
  const records = asRecords(table);
  const view = sharedListing(page, table, records);
  drawChooser(view);
  drawColumnChoice(view);
  onKey("source", (key) => findLine(view, key));
  if (view.files.length) openFile(view, view.files[0]);
  drawLineNote(page);
  window.addEventListener("resize", () => {
    if (view.file && view.narrow !== window.innerWidth < NARROW) drawListing(view);
  });
  drawModuleLines(page);
  makeTable(byId("line-table"), {
    table,
    name: "all lines",
    sort: { key: "operator_s", direction: -1 },
    bars: ["python_s", "operator_s"],
    barColour: "var(--self)",
    first: ["file", "line", "source", "python_s", "operator_s", "device_s", "calls"],
    cells: {
      file: (value, record) =>
        el(
          "td",
          { class: "text", title: value },
          linkTo("source", value + ":" + record.line, shortPath(value)),
        ),
      source: (value, _record, one) =>
        el(
          "td",
          { class: "text wide", title: value },
          value === null ? none(whyEmpty(one)) : el("code", {}, value.trimEnd()),
        ),
    },
  });
}

// What all listings share: the files, the columns that any line has, the longest time.
function sharedListing(page, table, records) {
  const byFile = new Map();
  for (const record of records) {
    if (!byFile.has(record.file)) byFile.set(record.file, []);
    byFile.get(record.file).push(record);
  }
  const own = page.sources.map((source) =>
    sourceFile(source.file, byFile.get(source.file) || [], true, source),
  );
  const seen = new Set(own.map((one) => one.file));
  const others = [...byFile]
    .filter(([file]) => !seen.has(file))
    .map(([file, lines]) => sourceFile(file, lines, lines.some(isOwn), null))
    .sort((a, b) => b.seconds - a.seconds);
  const meta = Object.fromEntries(table.columns.map((column) => [column.key, column]));
  const empty = new Set(emptyColumns(table).map((column) => column.key));
  const timed = !empty.has("python_s") || !empty.has("operator_s");
  const joined = new Map();
  for (const column of table.columns.filter((one) => one.joined)) {
    joined.set(column.joined, [...(joined.get(column.joined) || []), column.key]);
  }
  const groups = [...LINE_GROUPS, ...joined]
    .map(([name, keys]) => [
      name,
      keys.filter((key) => (key === "time_s" ? timed : meta[key] && !empty.has(key))),
    ])
    .filter(([, keys]) => keys.length);
  return {
    page,
    table,
    meta,
    groups,
    start: startFolder(page),
    scrolled: null,
    empty,
    columns: groups.length ? groups[0][1] : [],
    most: records.reduce((top, record) => Math.max(top, lineTime(record)), 0) || 1,
    files: [...own, ...others.filter((one) => one.own), ...others.filter((one) => !one.own)],
    file: null,
    unfolded: new Set(),
    open: new Set(),
  };
}

function sourceFile(file, lines, own, source) {
  const text = source && source.text !== null ? source.text.replace(/\n$/, "").split("\n") : null;
  return {
    file,
    own,
    lines,
    text,
    reason: source ? source.reason : null,
    byLine: new Map(lines.map((line) => [line.line, line])),
    seconds: timeOf(lines),
    package: own ? null : lines[0].package,
  };
}

// The folder that paths of own files start from: the working directory, or their common folder.
function startFolder(page) {
  const script = String(page.facts.script || "").replace(/^(\.\/)+/, "");
  const files = page.sources.map((source) => source.file);
  const whole =
    script && !script.startsWith("/") ? files.find((file) => file.endsWith("/" + script)) : null;
  if (whole) return whole.slice(0, -script.length);
  let shared = files.length ? files[0].slice(0, files[0].lastIndexOf("/") + 1) : "";
  while (shared && !files.every((file) => file.startsWith(shared)))
    shared = shared.slice(0, shared.lastIndexOf("/", shared.length - 2) + 1);
  return shared;
}

const toldFrom = (view, file) =>
  view.start && file.startsWith(view.start) ? file.slice(view.start.length) : file;

// Telling lines apart costs time at each of them: how much, where it is known.
function drawLineNote(page) {
  const traced = settledSlices(page, (slice) => slice.mode === "lines" && slice.layer === "torch");
  const median = page.facts.benchmark?.median_s;
  if (!traced.length || !median) return;
  const steps = traced.reduce((sum, slice) => sum + slice.steps, 0);
  const factor = Math.max(...traced.map((slice) => slice.step_median_s)) / median;
  byId("line-note").append(
    "Lines were traced in " +
      plural(steps, "step") +
      ", whose median was " +
      formatFactor(factor) +
      " times the clean one: times here are raw and means over these steps, to be held " +
      "against one another and not against the clean step.",
  );
}

// Own files as cards with their time; those of libraries in a list of their own.
const CARD_FILES = 8;

function drawChooser(view) {
  const own = view.files.filter((one) => one.own);
  const box = byId("source-files");
  const most = Math.max(...view.files.map((one) => one.seconds)) || 1;
  const cards = el(
    "div",
    { class: "file-cards", role: "group", "aria-label": "files" },
    own.slice(0, CARD_FILES).map((file) => {
      const fill = el("span", { class: "fill", "aria-hidden": "true" });
      fill.style.width = (100 * file.seconds) / most + "%";
      file.button = el(
        "button",
        {
          type: "button",
          class: "file-card",
          title: file.file,
          "aria-pressed": "false",
          onclick: () => openFile(view, file),
        },
        fill,
        el("code", {}, shortPath(toldFrom(view, file.file), 2)),
        quiet(fileWords(file)),
      );
      return file.button;
    }),
  );
  append(box, [cards]);
  const rest = [...own.slice(CARD_FILES), ...view.files.filter((one) => !one.own)];
  if (!rest.length) return;
  const groups = new Map();
  for (const file of rest)
    groups.set(file.package || "own files", [
      ...(groups.get(file.package || "own files") || []),
      file,
    ]);
  const list = el(
    "select",
    { "aria-label": "other files" },
    el("option", { value: "" }, rest.length + (rest.length === 1 ? " other file" : " other files")),
    [...groups].map(([name, files]) =>
      el(
        "optgroup",
        { label: name },
        files.map((file) =>
          el(
            "option",
            { value: String(view.files.indexOf(file)) },
            shortPath(file.file, 3) + ", " + fileWords(file),
          ),
        ),
      ),
    ),
  );
  list.addEventListener("change", () => {
    if (list.value !== "") openFile(view, view.files[Number(list.value)]);
  });
  view.list = list;
  cards.append(list);
}

const fileWords = (file) =>
  (file.seconds ? formatSeconds(file.seconds) + " on " : "") +
  file.lines.length +
  (file.lines.length === 1 ? " line" : " lines");

function drawColumnChoice(view) {
  if (view.groups.length > 1) {
    byId("line-tools").append(
      choice(
        "columns",
        view.groups.map(([name]) => [name, name]),
        view.groups[0][0],
        (name) => {
          view.columns = view.groups.find(([group]) => group === name)[1];
          drawListing(view);
        },
      ),
    );
  }
  const absent = [...new Set(LINE_GROUPS.flatMap(([, keys]) => keys))].filter(
    (key) => view.meta[key] && view.empty.has(key),
  );
  const whole = el("input", { type: "checkbox" });
  whole.addEventListener("change", () => {
    view.whole = whole.checked;
    drawListing(view);
  });
  byId("line-tools").append(
    el("label", { class: "field" }, whole, el("span", {}, "whole file")),
    el("span", { class: "count", id: "source-count" }),
  );
  if (absent.length)
    byId("source-listing").after(
      el(
        "p",
        { class: "left-out", id: "absent-columns" },
        "Not shown, since no line has it: ",
        absentWords(view, absent),
        ".",
      ),
    );
}

// Columns that are empty for one reason are together.
function absentWords(view, keys) {
  const reasons = new Map();
  for (const key of keys) {
    const why = whyEmpty(view.meta[key]) || "not measured in this run";
    reasons.set(why, [...(reasons.get(why) || []), headOf(view, key)]);
  }
  return [...reasons].map(([why, names]) => names.join(", ") + " (" + why + ")").join("; ");
}

function openFile(view, file) {
  if (view.file !== file) {
    view.unfolded = new Set();
    view.open = new Set();
  }
  view.file = file;
  for (const other of view.files)
    if (other.button) other.button.setAttribute("aria-pressed", String(other === file));
  if (view.list) view.list.value = file.button ? "" : String(view.files.indexOf(file));
  drawListing(view);
}

// A link's file may be written in another way than the table has it: a part of its path will do.
function findLine(view, key) {
  const [, name, number] = /^(.*?)(?::(\d+))?$/s.exec(key);
  const file =
    view.files.find((one) => one.file === name) ||
    view.files.find((one) => one.file.endsWith("/" + name) || name.endsWith("/" + one.file));
  if (!file) return false;
  const line = number === undefined ? null : Number(number);
  if (
    line !== null &&
    !file.byLine.has(line) &&
    !(file.text && line >= 1 && line <= file.text.length)
  )
    return false;
  if (line !== null) {
    view.open = new Set(file.byLine.has(line) ? [line] : []);
    view.target = line;
  }
  if (view.file !== file) {
    view.unfolded = new Set();
    view.file = null;
  }
  const open = view.open;
  openFile(view, file);
  if (line === null) return true;
  view.open = open;
  drawListing(view);
  const row = byId("source-listing").querySelector('tr[data-line="' + line + '"]');
  if (row) markElement(row);
  return Boolean(row);
}

// Whether a line has a figure in the chosen columns: a line of the start-up has few.
const isTold = (view, record) =>
  view.columns.some((key) =>
    key === "time_s"
      ? isNumber(record.python_s) || isNumber(record.operator_s)
      : isNumber(record[key]),
  );

// The lines to show: [from, to] of those that are shown, and of those that are folded between them.
function stretches(view, file) {
  if (!file.text) return null;
  const last = file.text.length;
  const told = [...file.byLine]
    .filter(([line, record]) => view.open.has(line) || isTold(view, record))
    .map(([line]) => line);
  const marks = [...new Set([...told, ...(view.target ? [view.target] : [])])]
    .filter((line) => line <= last)
    .sort((a, b) => a - b);
  const found = [];
  let at = 1;
  const quiet = (from, to) => {
    const ends = [from === 1 ? 0 : QUIET_ENDS, to === last ? 0 : QUIET_ENDS];
    if (to - from + 1 <= LONGEST_QUIET || view.whole || view.unfolded.has(from)) {
      found.push({ from, to });
      return;
    }
    if (ends[0]) found.push({ from, to: from + ends[0] - 1 });
    found.push({ from: from + ends[0], to: to - ends[1], folded: from });
    if (ends[1]) found.push({ from: to - ends[1] + 1, to });
  };
  for (const mark of [...marks, last + 1]) {
    if (mark > at) quiet(at, mark - 1);
    if (mark <= last) found.push({ from: mark, to: mark });
    at = mark + 1;
  }
  return found;
}

// On a narrow screen the text matters more than all gutters but the first; a line has the others
// when it is opened.
const NARROW = 700;

function drawListing(view) {
  view.narrow = window.innerWidth < NARROW;
  view.shown = view.narrow ? view.columns.slice(0, 1) : view.columns;
  const file = view.file;
  const width = view.shown.length;
  const rows = [];
  const add = (line) => {
    const record = file.byLine.get(line);
    rows.push(lineRow(view, file, line, record));
    if (record && view.open.has(line))
      rows.push(
        el(
          "tr",
          { class: "line-detail" },
          el("td", { colspan: width + 2 }, lineDetail(view, file, record)),
        ),
      );
  };
  const shownStretches = stretches(view, file);
  if (shownStretches) {
    for (const stretch of shownStretches) {
      if (stretch.folded === undefined)
        for (let line = stretch.from; line <= stretch.to; line += 1) add(line);
      else rows.push(foldRow(view, stretch, width));
    }
  } else {
    let before = 0;
    for (const record of file.lines.slice().sort((a, b) => a.line - b.line)) {
      if (record.line > before + 1)
        rows.push(
          el(
            "tr",
            { class: "fold" },
            el("td"),
            el("td", { colspan: width }),
            el(
              "td",
              { class: "quiet" },
              "⋯ " + plural(record.line - before - 1, "line") + " not recorded",
            ),
          ),
        );
      add(record.line);
      before = record.line;
    }
  }
  const doubts = [
    ...new Set(file.lines.map((line) => line.reason || estimated(line)).filter(Boolean)),
  ];
  const before = byId("source-listing").querySelector(".scroll");
  const at = before ? before.scrollTop : 0;
  byId("source-listing").replaceChildren(
    el(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": file.file },
      el(
        "table",
        { class: "listing" },
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            el("th", { class: "number", scope: "col", title: "its number in the file" }, "line"),
            view.shown.map((key) =>
              el(
                "th",
                { class: "number", scope: "col", title: headMeaning(view, key) },
                key === "time_s" ? "time" : headOf(view, key),
              ),
            ),
            el("th", { scope: "col" }, el("code", { title: file.file }, toldFrom(view, file.file))),
          ),
        ),
        el("tbody", {}, rows),
        lineFoot(view, file),
      ),
    ),
    listingNotes(file, doubts),
  );
  byId("source-count").textContent = fileWords(file);
  const box = byId("source-listing").querySelector(".scroll");
  if (view.scrolled === file) box.scrollTop = at;
  else {
    view.scrolled = file;
    toHottest(file, box);
  }
}

// A long file opens where its time goes.
function toHottest(file, box) {
  const hottest = file.lines.reduce(
    (best, line) => (lineTime(line) > (best ? lineTime(best) : 0) ? line : best),
    null,
  );
  const row = hottest ? box.querySelector('tr[data-line="' + hottest.line + '"]') : null;
  if (row && row.offsetTop + row.offsetHeight > 0.8 * box.clientHeight)
    box.scrollTop = row.offsetTop - box.clientHeight / 2;
}

const headMeaning = (view, key) =>
  (key === "time_s"
    ? "host time on the line per step: outside operators and inside them"
    : view.meta[key].meaning) +
  "\n" +
  provenance(lineOrigin(view, key));

function listingNotes(file, doubts) {
  const words = [];
  if (!file.text)
    words.push(
      file.own
        ? "Only lines with figures are shown: the file's text was not kept, since " +
            (file.reason || "it was not seen by the slice that keeps it") +
            "."
        : "Only lines with figures are shown: texts of libraries are not recorded.",
    );
  if (doubts.length) words.push("† not whole: " + doubts.join("; ") + ".");
  return words.length ? el("p", { class: "left-out" }, words.join(" ")) : "";
}

function foldRow(view, stretch, width) {
  const button = el(
    "button",
    {
      type: "button",
      class: "link",
      onclick: () => {
        view.unfolded.add(stretch.folded);
        drawListing(view);
      },
    },
    "⋯ " + plural(stretch.to - stretch.from + 1, "line") + " without figures",
  );
  return el("tr", { class: "fold" }, el("td"), el("td", { colspan: width }), el("td", {}, button));
}

function lineRow(view, file, line, record) {
  const text = file.text ? file.text[line - 1] : record.source;
  const code = el(
    "td",
    { class: "code" },
    text === null || text === undefined ? none(whyEmpty(view.meta.source)) : text,
  );
  if (!record)
    return el(
      "tr",
      { "data-line": line },
      el("td", { class: "number quiet" }, line),
      el("td", { colspan: view.shown.length }),
      code,
    );
  const toggle = () => {
    if (view.open.has(line)) view.open.delete(line);
    else view.open.add(line);
    drawListing(view);
    const again = byId("source-listing").querySelector('tr[data-line="' + line + '"] button');
    if (again) again.focus({ preventScroll: true });
  };
  const number = el(
    "td",
    { class: "number heat" },
    el(
      "button",
      {
        type: "button",
        class: "line-number",
        "aria-expanded": String(view.open.has(line)),
        "aria-label": "line " + line + ": what its time was spent on",
        onclick: toggle,
      },
      line,
    ),
  );
  number.style.setProperty(
    "--heat",
    (100 * Math.sqrt(lineTime(record) / view.most)).toFixed(1) + "%",
  );
  return el(
    "tr",
    { "data-line": line, class: view.open.has(line) ? "opened" : null },
    number,
    view.shown.map((key) => lineCell(view, record, key)),
    code,
  );
}

// How the time of a line with very many runs was estimated; null of others.
function estimated(record) {
  if (record.samples === null || record.samples === undefined) return null;
  return (
    "the line ran too often to time each run: its time is an estimate from " +
    plural(record.samples, "timed run")
  );
}

function lineCell(view, record, key) {
  if (key === "time_s") return timeCell(view, record);
  const meta = view.meta[key];
  const why = record.reason || whyEmpty(meta);
  if (LINE_COLOURS[key])
    return withProvenance(
      barCell(record[key], "s", record[key] / view.most, LINE_COLOURS[key], why),
      meta,
      record,
    );
  const uncounted = record.reason;
  const doubt =
    key === "calls" && uncounted ? el("span", { class: "doubt", title: uncounted }, " †") : null;
  return withProvenance(
    el(
      "td",
      { class: "number" + (key === "calls" ? " quiet" : "") },
      shown(record[key], meta.unit, why),
      doubt,
    ),
    meta,
    record,
  );
}

// Times of a line and their sums are of the slices in which the torch layer traced lines.
const lineOrigin = (view, key) => (key === "time_s" ? RAW_TORCH : view.meta[key]);

// One bar of two colours: outside operators, then inside them.
function timeCell(view, record) {
  const known = isNumber(record.python_s) || isNumber(record.operator_s);
  const cell = el("td", {
    class: "number bar",
    title: known
      ? "python " +
        formatSeconds(record.python_s) +
        ", operators " +
        formatSeconds(record.operator_s) +
        "\n" +
        provenance(RAW_TORCH)
      : null,
  });
  let left = 0;
  for (const key of ["python_s", "operator_s"]) {
    const width = (100 * (record[key] || 0)) / view.most;
    if (!width) continue;
    const bar = el("span", { class: "fill", "aria-hidden": "true" });
    Object.assign(bar.style, {
      left: left.toFixed(2) + "%",
      width: width.toFixed(2) + "%",
      background: LINE_COLOURS[key],
    });
    cell.append(bar);
    left += width;
  }
  cell.append(
    el(
      "span",
      { class: "over" },
      known ? formatSeconds(lineTime(record)) : none(record.reason || whyEmpty(view.meta.python_s)),
    ),
  );
  return cell;
}

function lineFoot(view, file) {
  const sum = (key) => {
    const values = file.lines
      .map((line) =>
        key === "time_s"
          ? isNumber(line.python_s) || isNumber(line.operator_s)
            ? lineTime(line)
            : null
          : line[key],
      )
      .filter(isNumber);
    return LINE_SUMS.includes(key) && values.length
      ? values.reduce((all, value) => all + value, 0)
      : null;
  };
  const unit = (key) => (key === "time_s" ? "s" : view.meta[key].unit);
  return el(
    "tfoot",
    {},
    el(
      "tr",
      {},
      el("td", { class: "number quiet" }, "sum"),
      view.shown.map((key) =>
        el(
          "td",
          { class: "number", "data-sum": key },
          isNumber(sum(key)) ? figure(sum(key), unit(key), lineOrigin(view, key)) : "",
        ),
      ),
      el("td", { class: "quiet" }, "of all lines of this file with figures"),
    ),
  );
}

function drawModuleLines(page) {
  const table = page.tables.module_lines;
  const box = byId("module-line-table");
  if (!table) {
    box.remove();
    return;
  }
  const place = el("div");
  box.append(place);
  makeTable(place, {
    table,
    name: "lines by module",
    view: "source",
    sort: { key: "operator_s", direction: -1 },
    bars: ["python_s", "operator_s", "backward_s"],
    barColour: "var(--self)",
    hidden: ["line"],
    first: ["module", "file", "operator_s", "backward_s", "python_s", "device_s", "calls"],
    cells: {
      module: (value, _record, one) =>
        el(
          "td",
          { class: "text", title: value },
          value === null ? none(whyEmpty(one)) : linkTo("modules", value, value),
        ),
      file: (value, record) =>
        el(
          "td",
          { class: "text", title: atLine(value, record.line) },
          linkTo("source", value + ":" + record.line, atLine(shortPath(value, 2), record.line)),
        ),
    },
  });
  onFilter("source", (filter) => {
    if (filter.module) box.open = true;
  });
  if (filterOf("source").module) box.open = true;
}

// ---------- One line in full ----------

const PARTS_OF_LINE = 12;

// What a line's time was spent on: its modules, and what else is known of it.
function lineDetail(view, file, record) {
  const parts = (view.page.tables.module_lines ? asRecords(view.page.tables.module_lines) : [])
    .filter((one) => one.file === record.file && one.line === record.line)
    .sort((a, b) => lineTime(b) - lineTime(a));
  const around = functionAround(file, record.line);
  const figures = Object.keys(LINE_HEADS)
    .filter((key) => view.meta[key] && isNumber(record[key]))
    .map((key) => [headOf(view, key), figure(record[key], view.meta[key].unit, view.meta[key])]);
  return el(
    "div",
    { class: "line-parts" },
    el(
      "div",
      {},
      el("h4", {}, "by module"),
      parts.length
        ? partList(parts)
        : remark(
            "It is not known which modules its time was spent in: " +
              (isNumber(record.python_s)
                ? "the slice with lines saw none."
                : "it did not run while lines were traced."),
          ),
    ),
    el(
      "div",
      {},
      el("h4", {}, "figures"),
      pairs([
        ...figures,
        record.memory_source ? ["second source is", record.memory_source] : null,
        record.memory_profiler_reason
          ? ["memory_profiler differs", record.memory_profiler_reason]
          : null,
        record.reason ? ["not whole", record.reason] : null,
        estimated(record) ? ["by samples", estimated(record)] : null,
        around ? ["in function", functionLink(view, file, around)] : null,
      ]),
    ),
  );
}

function partList(parts) {
  const most = Math.max(...parts.map(lineTime)) || 1;
  const rows = parts.slice(0, PARTS_OF_LINE).map((part) => {
    const fill = el("span", { class: "fill", "aria-hidden": "true" });
    fill.style.width = (100 * lineTime(part)) / most + "%";
    return el(
      "li",
      {},
      fill,
      el(
        "span",
        { class: "top-name" },
        part.module === null
          ? quiet("outside modules")
          : linkTo("modules", part.module, part.module),
        part.module !== null && !part.module.startsWith("(")
          ? linkFiltered("operators", { module: part.module }, "operators")
          : null,
      ),
      el("span", { class: "top-time" }, figure(lineTime(part), "s", RAW_TORCH)),
      el(
        "span",
        { class: "top-time" },
        part.backward_s ? [figure(part.backward_s, "s", RAW_TORCH), " backward"] : "",
      ),
    );
  });
  return el(
    "ol",
    { class: "parts" },
    rows,
    parts.length > PARTS_OF_LINE
      ? el(
          "li",
          { class: "quiet" },
          plural(parts.length - PARTS_OF_LINE, "more module") + ", in the table below",
        )
      : null,
  );
}

// The function that a line is in, by the indentation of the text above it.
function functionAround(file, line) {
  if (!file.text) return null;
  const indentOf = (text) => text.length - text.trimStart().length;
  let indent = indentOf(file.text[line - 1] || "");
  for (let at = line - 2; at >= 0 && indent > 0; at -= 1) {
    const text = file.text[at];
    if (!text.trim() || /^\s*[)\]}#]/.test(text) || indentOf(text) >= indent) continue;
    indent = indentOf(text);
    const [, name] = /^\s*(?:async\s+)?def\s+(\w+)/.exec(text) || [];
    if (name) return { name, line: at + 1 };
  }
  return null;
}

// Its row in the Python view, where cProfile has one: it begins at its first decorator.
function functionLink(view, file, around) {
  const records = view.page.tables.functions ? asRecords(view.page.tables.functions) : [];
  const row = records.find(
    (one) =>
      one.file === file.file &&
      one.name === around.name &&
      one.line <= around.line &&
      one.line > around.line - 10,
  );
  return row ? linkTo("python", row.file + ":" + row.line + ":" + row.name, row.name) : around.name;
}
