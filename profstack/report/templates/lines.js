// Source lines: each file as a listing, all that is known of a line side by side; the user's own
// files first, libraries folded. A listing is made when it is opened.
const MOST_LINES = 400;
const FOUND_FILES = 5;
// The columns of a listing, where any line of the page has them: key, heading, unit, bar.
const LINE_COLUMNS = [
  ["python_s", "python", "s", "var(--file-5)"], ["operator_s", "operators", "s", "var(--forward)"], ["backward_s", "of it backward", "s"], ["device_s", "device", "s", "var(--backward)"],
  ["largest_bytes", "memory", "bytes"], ["increment_bytes", "RSS growth", "bytes"], ["watch_share", "watch", "share"], ["startup_share", "start-up", "share"], ["calls", "calls", "count"],
];

const lineTime = (record) => (record.python_s || 0) + (record.operator_s || 0);

function drawLines(page) {
  const table = page.tables.lines;
  if (!table) { drop("lines"); return; }
  const records = asRecords(table);
  const view = { table, most: records.reduce((top, record) => Math.max(top, lineTime(record)), 0) || 1, empty: new Set(emptyColumns(table).map((column) => column.key)), wanted: "" };
  const own = el("div", { class: "own-lines" }), libraries = el("div", { class: "library-lines" });
  const groups = new Map();
  for (const record of records) {
    const key = isOwn(record) ? OWN_FILES : record.package;
    groups.set(key, [...(groups.get(key) || []), record]);
  }
  const sources = [];
  const openFirst = (files, most) => files.slice(0, most).forEach((file) => file.open(true));
  const ownFiles = fileSources(groups.get(OWN_FILES) || [], view, sources);
  append(own, ownFiles.map((file) => file.box));
  openFirst(ownFiles, 3);
  const packages = [...groups].filter(([name]) => name !== OWN_FILES).sort((a, b) => timeOf(b[1]) - timeOf(a[1]));
  const folds = packages.map(([name, lines]) => {
    const files = fileSources(lines, view, sources);
    const fold = el("details", { class: "library" }, el("summary", {}, el("b", {}, name), lineSum(lines)), files.map((file) => file.box));
    return { fold, files };
  });
  append(libraries, folds.map(({ fold }) => fold));
  append(byId("line-files"), [own, libraries, absentNote(view)]);
  byId("line-tools").append(searchBox("lines", (text) => {
    view.wanted = text;
    let opened = 0;
    for (const file of sources) {
      const found = file.matches();
      file.box.hidden = !found;
      if (text) { file.open(found && opened < FOUND_FILES); opened += found ? 1 : 0; } else file.open(false);
    }
    if (!text) openFirst(ownFiles, 3);
    for (const { fold, files } of folds) { fold.hidden = files.every((file) => file.box.hidden); if (text) fold.open = !fold.hidden; }
  }));
  makeTable(byId("line-table"), { table, name: "all lines", sort: { key: "operator_s", direction: -1 }, bars: ["python_s", "operator_s"], barColour: "var(--self)",
    first: ["file", "line", "source", "python_s", "operator_s", "device_s", "calls"],
    cells: { source: (value, record, one) => el("td", { class: "text wide" }, value === null ? none(whyEmpty(one)) : el("code", {}, value.trimEnd())) } });
}

const timeOf = (lines) => lines.reduce((all, line) => all + lineTime(line), 0);
const lineSum = (lines) => el("span", { class: "quiet" }, " " + formatSeconds(timeOf(lines)) + " per step on " + lines.length + (lines.length === 1 ? " line" : " lines"));

// The files of some lines, those with the most time first, each as something to fold.
function fileSources(lines, view, sources) {
  const files = new Map();
  for (const line of lines) files.set(line.file, [...(files.get(line.file) || []), line]);
  return [...files].sort((a, b) => timeOf(b[1]) - timeOf(a[1])).map(([file, own]) => {
    const source = fileSource(file, own.slice().sort((a, b) => a.line - b.line), view);
    sources.push(source);
    return source;
  });
}

function fileSource(file, lines, view) {
  const place = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": file });
  const box = el("details", { class: "source" }, el("summary", {}, el("code", { title: file }, shortPath(file, 4)), lineSum(lines)), place);
  const texts = lines.map((line) => ((line.source || "") + " " + line.file).toLowerCase());
  const found = () => (view.wanted ? lines.filter((line, at) => texts[at].includes(view.wanted)) : lines);
  const redraw = () => place.replaceChildren(...(box.open ? [fileListing(found(), view)] : []));
  box.addEventListener("toggle", redraw);
  return { box, redraw, matches: () => found().length > 0, open: (open) => { box.open = open; redraw(); } };
}

function fileListing(lines, view) {
  const meta = Object.fromEntries(view.table.columns.map((column) => [column.key, column]));
  const columns = LINE_COLUMNS.filter(([key]) => meta[key] && !view.empty.has(key));
  const shownLines = lines.slice(0, MOST_LINES);
  const doubts = [...new Set(shownLines.map((line) => line.reason).filter(Boolean))];
  let before = null;
  const rows = shownLines.map((line) => {
    const gap = before !== null && line.line > before + 1;
    before = line.line;
    const number = el("td", { class: "number quiet heat" }, line.line);
    number.style.setProperty("--heat", (100 * Math.sqrt(lineTime(line) / view.most)).toFixed(1) + "%");
    return el("tr", { class: gap ? "gap" : null }, number,
      columns.map(([key, , unit, colour]) => {
        const why = line.reason || whyEmpty(meta[key]);
        if (colour) return barCell(line[key], unit, line[key] / view.most, colour, why);
        const doubt = key === "calls" && line.reason ? el("span", { class: "doubt", title: line.reason }, " †") : null;
        return el("td", { class: "number" + (key === "calls" ? " quiet" : "") }, shown(line[key], unit, why), doubt);
      }),
      el("td", { class: "code" }, line.source === null ? none(whyEmpty(meta.source)) : line.source));
  });
  return el("table", { class: "listing" },
    el("thead", {}, el("tr", {}, el("th", { class: "number" }, "line"), columns.map(([key, name]) => el("th", { class: "number", title: meta[key].meaning }, name)), el("th", {}, "source"))),
    el("tbody", {}, rows),
    lines.length > MOST_LINES || doubts.length ? el("caption", {},
      lines.length > MOST_LINES ? "The first " + MOST_LINES + " of " + lines.length + " lines; the others are in the table below. " : "",
      doubts.length ? "† not whole: " + doubts.join("; ") + "." : "") : null);
}

// Columns that no line has anything in, each with its reason, once for all listings.
function absentNote(view) {
  const absent = LINE_COLUMNS.filter(([key]) => view.empty.has(key));
  if (!absent.length) return null;
  const meta = Object.fromEntries(view.table.columns.map((column) => [column.key, column]));
  return el("p", { class: "left-out" }, "Not shown, since no line has it: ", absent.map(([key, name], at) => [at ? "; " : "", name, " (", whyEmpty(meta[key]) || "not measured in this run", ")"]), ".");
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
