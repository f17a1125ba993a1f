// Source lines: each file as a listing with its times in the gutter, or all lines as a table.
const MOST_LINES = 400;

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
    cells: { source: (value) => el("td", { class: "text wide" }, el("code", {}, value === null ? NONE : value.trimEnd())) } });
}

function fileListing(lines, most, table) {
  const reason = Object.fromEntries(table.columns.map((column) => [column.key, column.reason]));
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
      line.device_s === null ? null : el("td", { class: "number" }, formatSeconds(line.device_s)),
      el("td", { class: "number quiet" }, shown(line.calls, "count", reason.calls)),
      el("td", { class: "code" }, line.source === null ? none("the source file was not readable") : line.source));
    row.dataset.text = ((line.source || "") + " " + line.file).toLowerCase();
    return row;
  });
  const device = lines.some((line) => line.device_s !== null);
  return el("table", { class: "listing" },
    el("thead", {}, el("tr", {}, el("th", { class: "number" }, "line"), el("th", { class: "number" }, "python"), el("th", { class: "number" }, "operators"), device ? el("th", { class: "number" }, "device") : null, el("th", { class: "number" }, "calls"), el("th", {}, "source"))),
    el("tbody", {}, rows),
    sorted.length > MOST_LINES ? el("caption", {}, "the first " + MOST_LINES + " of " + sorted.length + " lines; the others are in the table below") : null);
}
