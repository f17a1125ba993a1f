// Source lines: each file as a listing with its times in the gutter, or all lines as a table.
const MOST_LINES = 400;
// What stands between the times and the source, where any line of the file has it.
const LINE_EXTRAS = [["device_s", "device", "s"], ["largest_bytes", "memory", "bytes"], ["watch_share", "watch", "share"], ["startup_share", "start-up", "share"]];

const lineTime = (record) => (record.python_s || 0) + (record.operator_s || 0);

function drawLines(page) {
  const table = page.tables.lines;
  if (!table) { drop("lines"); return; }
  const records = asRecords(table);
  const most = Math.max(...records.map(lineTime), 0) || 1;
  const files = new Map();
  for (const record of records) files.set(record.file, [...(files.get(record.file) || []), record]);
  const sum = (lines) => lines.reduce((all, line) => all + lineTime(line), 0);
  const sorted = [...files].sort((a, b) => sum(b[1]) - sum(a[1]));
  const listing = byId("line-files");
  append(listing, sorted.map(([file, lines], at) => el("details", { class: "source", open: at < 3 },
    el("summary", {}, el("code", { title: file }, shortPath(file, 4)), el("span", { class: "quiet" }, " " + formatSeconds(sum(lines)) + " per step on " + lines.length + (lines.length === 1 ? " line" : " lines"))),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": file }, fileListing(lines, most, table)))));
  const wanted = searchBox("lines", (text) => { for (const row of listing.querySelectorAll("tr[data-text]")) row.hidden = Boolean(text) && !row.dataset.text.includes(text); });
  byId("line-tools").append(wanted);
  makeTable(byId("line-table"), { table, name: "all lines", sort: { key: "operator_s", direction: -1 }, bars: ["python_s", "operator_s"], barColour: "var(--self)",
    first: ["file", "line", "source", "python_s", "operator_s", "calls"],
    cells: { source: (value, record, one) => el("td", { class: "text wide" }, value === null ? none(whyEmpty(one)) : el("code", {}, value.trimEnd())) } });
}

function fileListing(lines, most, table) {
  const reason = Object.fromEntries(table.columns.map((column) => [column.key, whyEmpty(column)]));
  const there = (key) => lines.some((line) => line[key] !== null);
  const meaning = Object.fromEntries(table.columns.map((column) => [column.key, column.meaning]));
  const extra = LINE_EXTRAS.filter(([key]) => there(key));
  const sorted = lines.slice().sort((a, b) => a.line - b.line);
  const shownLines = sorted.slice(0, MOST_LINES);
  let before = null;
  const rows = shownLines.map((line) => {
    const gap = before !== null && line.line > before + 1;
    before = line.line;
    const row = el("tr", { class: gap ? "gap" : null },
      el("td", { class: "number quiet" }, line.line),
      barCell(line.python_s, "s", line.python_s / most, "var(--self)", reason.python_s),
      barCell(line.operator_s, "s", line.operator_s / most, "var(--forward)", reason.operator_s),
      extra.map(([key, , unit]) => el("td", { class: "number" }, shown(line[key], unit, reason[key]))),
      el("td", { class: "number quiet" }, shown(line.calls, "count", reason.calls)),
      el("td", { class: "code" }, line.source === null ? none(reason.source) : line.source));
    row.dataset.text = ((line.source || "") + " " + line.file).toLowerCase();
    return row;
  });
  return el("table", { class: "listing" },
    el("thead", {}, el("tr", {}, el("th", { class: "number" }, "line"), el("th", { class: "number" }, "python"), el("th", { class: "number" }, "operators"), extra.map(([key, name]) => el("th", { class: "number", title: meaning[key] }, name)), el("th", { class: "number" }, "calls"), el("th", {}, "source"))),
    el("tbody", {}, rows),
    sorted.length > MOST_LINES ? el("caption", {}, "the first " + MOST_LINES + " of " + sorted.length + " lines; the others are in the table below") : null);
}

// The lines whose memory was seen, those that took most at once first.
function drawMemoryLines(page) {
  const table = page.tables.memory_lines;
  if (!table) return;
  const box = el("div");
  byId("memory-lines").append(el("h3", {}, "Lines that took memory"), el("p", { class: "lead" },
    "Growth of the resident set while a line ran, over all its runs that the layer saw, the first steps too. The largest growth is that within one run, by either source. Lines over which nothing changed are not here."), box);
  makeTable(box, { table, name: "lines", sort: { key: "largest_bytes", direction: -1 }, bars: ["largest_bytes"], barColour: "var(--accumulate)", hidden: ["line"],
    first: ["file", "source", "largest_bytes", "increment_bytes", "allocated_bytes", "occurrences", "usage_bytes", "watch_bytes"], cells: sourceCells });
}
