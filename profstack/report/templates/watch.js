// The watch: where start-up went, what ran between the slices, and the steps out of line.
const WATCH_PHASES = [["startup", "start-up"], ["step", "steps"], ["other", "between and after"]];

function drawWatch(page) {
  const facts = page.facts.watch;
  const table = page.tables.watch;
  if (!facts && !table) { drop("watch"); return; }
  if (facts) drawWatchCards(byId("watch-cards"), facts);
  if (table) drawWatchTable(byId("watch-table"), page);
  drawOutliers(byId("watch-outliers"), page);
}

function drawWatchCards(box, facts) {
  box.append(card("samples", figure(facts.samples, "plain", { layer: "watch", kind: "counted", reason: facts.reason }), isNumber(facts.interval_s) ? "one every " + formatSeconds(facts.interval_s) : null));
  box.append(card(["agreement with ", "cprofile"], isNumber(facts.rank_correlation) ? el("span", { class: "figure", title: "raw: from shares of the watch layer and of the cprofile layer" }, facts.rank_correlation.toFixed(2)) : none(facts.reason),
    isNumber(facts.rank_correlation) ? ["rank correlation over " + facts.rank_functions + " functions"] : facts.reason || "not measured"));
}

function drawWatchTable(box, page) {
  const table = page.tables.watch;
  const present = WATCH_PHASES.filter(([phase]) => asRecords(table).some((record) => record.phase === phase));
  const state = { phase: present[0][0] };
  const functions = el("div"), lines = el("div");
  const controls = present.length > 1 ? choice("phase", present, state.phase, (phase) => { state.phase = phase; draw(); }) : null;
  const redraw = makeTable(functions, {
    table, name: "functions", sort: { key: "total_share", direction: -1 }, bars: ["total_share", "self_share"], barColour: "var(--self)", controls,
    hidden: ["phase", "line"], first: ["name", "file", "total_share", "self_share", "samples", "rss_bytes"], filter: (record) => record.phase === state.phase,
    cells: { file: (value, record) => placeCell(value, record.line) },
  });
  function draw() { redraw(); drawWatchLines(lines, page.tables.watch_lines, WATCH_SHARES[state.phase]); }
  append(box, [functions, lines]);
  draw();
}

const WATCH_SHARES = { startup: "startup_share", step: "watch_share" };

// The script's own lines of the chosen phase; a sample counts for the innermost of them.
function drawWatchLines(box, table, key) {
  box.replaceChildren();
  const found = table && key ? table.rows.filter((row) => row[table.columns.findIndex((column) => column.key === key)] !== null) : [];
  if (!found.length) return;
  const own = el("div");
  box.append(el("h3", {}, "By line of the script"), own);
  makeTable(own, { table: { ...table, rows: found }, name: "lines", sort: { key, direction: -1 }, bars: [key], barColour: "var(--self)",
    hidden: ["line", ...Object.values(WATCH_SHARES).filter((other) => other !== key)], first: ["file", key, "source"], cells: sourceCells });
}

const sourceCells = {
  file: (value, record) => placeCell(value, record.line),
  source: (value, record, one) => el("td", { class: "text wide", title: value }, value === null ? none(whyEmpty(one)) : el("code", {}, value.trim())),
};

// Lines of libraries are seldom among those of the source view.
const isLibrary = (file) => /^<|[/\\](site|dist)-packages[/\\]|[/\\]lib(64)?[/\\]python\d/.test(file);
const placeCell = (file, line) => el("td", { class: "text", title: file + ":" + line }, isLibrary(file) ? shortPath(file) + ":" + line : linkTo("source", file + ":" + line, shortPath(file) + ":" + line));

function drawOutliers(box, page) {
  const table = page.tables.outliers;
  box.append(el("h3", {}, "Steps out of line"));
  const rule = (page.facts.watch || {}).outlier_rule;
  if (rule) box.append(el("p", { class: "lead" }, rule[0].toUpperCase() + rule.slice(1) + "."));
  const watched = page.slices.some((slice) => slice.kind === "watch" && slice.steps > 0);
  if (!table) {
    box.append(el("p", { class: "quiet" }, watched ? "No step stands out from the clean ones." : "The run ended while layers still had their turns: no step was left to the watch alone."));
    return;
  }
  makeTable(box, { table, name: "outlier steps", sort: { key: "factor", direction: -1 }, bars: ["wall_s"], barColour: "var(--self)",
    first: ["index", "wall_s", "factor", "doing", "samples", "rss_bytes"],
    cells: { factor: (value, record, one) => el("td", { class: "number" }, isNumber(value) ? formatFactor(value) + " ×" : none(whyEmpty(one))), doing: (value, record, one) => el("td", { class: "text wrapped" }, shown(value, "text", whyEmpty(one))) } });
}
