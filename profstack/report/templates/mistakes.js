// The same model timed wrong, beside the right value; and what each part of timing right is worth.
const WRONG = "var(--kind-torch)", RIGHT = "var(--kind-clean)";
const AS_MISTAKEN = { words: "raw: timed as the mistake has it; no layer was on" };
const TIMED_SO = { words: "raw: timed in this way; no layer was on" };
const WRONG_OVER_RIGHT = { words: "raw: the time as the mistake has it, over the clean one" };

function drawMistakes(page) {
  const mistakes = page.facts.benchmark.mistakes || [];
  if (!mistakes.length) { drop("mistakes"); return; }
  const spread = (row, side) => (isNumber(row[side + "_std_s"]) ? " ± " + formatSeconds(row[side + "_std_s"]) : "");
  const bar = (row, side, colour) => ({
    value: row[side + "_s"], colour, name: side, low: isNumber(row[side + "_std_s"]) ? row[side + "_s"] - row[side + "_std_s"] : null, high: isNumber(row[side + "_std_s"]) ? row[side + "_s"] + row[side + "_std_s"] : null,
    short: side + " " + formatSeconds(row[side + "_s"]), text: formatSeconds(row[side + "_s"]) + spread(row, side),
    tip: [row.title + ", " + side, [["mean", formatSeconds(row[side + "_s"])], ["deviation", isNumber(row[side + "_std_s"]) ? formatSeconds(row[side + "_std_s"]) : "one sample has none"], ["n", formatPlain(row["n_" + side])], isNumber(row.factor) ? ["wrong over right", formatFactor(row.factor) + " ×"] : null]],
  });
  const isMeasured = (row) => row.applies && !row.error && isNumber(row.wrong_s) && isNumber(row.right_s);
  const measured = mistakes.filter(isMeasured);
  const chart = el("div", { class: "chart" });
  if (measured.length) append(byId("mistakes-bars"), [el("ul", { class: "legend" }, [["wrong", WRONG], ["right", RIGHT]].map(([name, colour]) => el("li", {}, swatch(colour), name)), el("li", { class: "quiet" }, "whiskers: standard deviation")), chart]);
  barChart(chart, measured.map((row) => ({ name: row.title, bars: [bar(row, "wrong", WRONG), bar(row, "right", RIGHT)] })), { label: "wrong and right, side by side", name: "mistakes", unseen: true,
    says: measured.map((row, at) => (at ? "; " : "") + row.title + ": wrong " + formatSeconds(row.wrong_s) + ", right " + formatSeconds(row.right_s)).join("") + "." });
  // What can be compared stands first; the rest says in words why not.
  const words = (row) => [row.error ? el("code", {}, row.error) : null, row.error && row.note ? " " : null, row.note ? withCommands(row.note) : null];
  const said = [...measured, ...mistakes.filter((row) => !isMeasured(row))].filter((row) => row.error || row.note);
  if (said.length) byId("mistakes-bars").append(el("ul", { class: "names" }, said.map((row) => el("li", { class: isMeasured(row) ? null : "quiet" }, el("b", {}, row.title), ": ", words(row)))));
  drawMistakeTable(byId("mistakes-table"), mistakes);
}

const mistakeStatus = (row) => (row.error ? "failed" : row.applies ? "differs" : "cannot differ here");

function drawMistakeTable(box, mistakes) {
  const columns = [
    ownColumn("title", "mistake", "text", "what is done wrong"), ownColumn("state", "here", "text", "whether it can differ on this device"),
    ownColumn("wrong_s", "wrong", "s", "mean and deviation as the mistake has it", null, AS_MISTAKEN), ownColumn("right_s", "right", "s", "mean and deviation, timed right", null, CLEAN),
    ownColumn("factor", "wrong over right", "count", "the factor with its 95 % interval", null, WRONG_OVER_RIGHT), ownColumn("n_wrong", "n wrong", "plain", "samples of the wrong way", null, OWN_COUNT), ownColumn("n_right", "n right", "plain", "samples of the right way", null, OWN_COUNT)];
  const records = mistakes.map((row) => ({ ...row, state: mistakeStatus(row), why: [row.error, row.note].filter(Boolean).join("; ") || null }));
  const of = (record) => records.find((row) => row.title === record.title) || {};
  const why = (row) => (row.applies ? row.why : "it cannot differ here: " + (row.note || "no reason was told"));
  const mean = (side) => (value, record) => { const row = of(record), std = row[side + "_std_s"]; return el("td", { class: "number" }, shown(value, "s", why(row)), isNumber(std) ? el("span", { class: "quiet" }, " ± " + formatSeconds(std)) : null); };
  const plain = (value, record) => el("td", { class: "number" }, shown(value, "plain", why(of(record))));
  recordTable(box, records, columns, { name: "timing mistakes", cells: {
    state: (value, record) => { const row = of(record); return el("td", {}, row.error ? chip("failed", "failed") : row.applies ? verdictChip(row) : el("span", { class: "quiet" }, "cannot differ")); },
    wrong_s: mean("wrong"), right_s: mean("right"), n_wrong: plain, n_right: plain,
    factor: (value, record) => { const row = of(record); return el("td", { class: "number" }, isNumber(value) ? formatFactor(value) + " ×" : none(why(row)), isNumber(row.ci95_low) && isNumber(row.ci95_high) ? el("span", { class: "quiet" }, " " + formatFactor(row.ci95_low) + " – " + formatFactor(row.ci95_high)) : null); },
  } });
}

// An interval that holds 1 tells no difference, and a wide one nothing; without an interval nothing is claimed.
function verdictChip(row) {
  if (!isNumber(row.factor)) return none(row.note || "it was not measured");
  if (!isNumber(row.ci95_low) || !isNumber(row.ci95_high)) return el("span", { class: "quiet" }, "no interval");
  return row.ci95_low <= 1 && row.ci95_high >= 1 ? (row.ci95_high > 1.2 * row.ci95_low ? chip("from " + formatFactor(row.ci95_low) + " to " + formatFactor(row.ci95_high) + " ×", "partial") : chip("no difference seen", "complete")) : chip(formatPercent(Math.abs(row.factor - 1)) + (row.factor > 1 ? " too long" : " too short"), "failed");
}

const WAYS = [["host", true], ["host", false], ["events", true], ["events", false]];

function drawAblation(page) {
  const cells = page.facts.benchmark.ablation || [];
  if (!cells.length) { drop("ablation"); return; }
  append(byId("ablation-grids"), [...new Set(cells.map((cell) => cell.variant))].map((variant) => ablationGrid(variant, cells.filter((cell) => cell.variant === variant))));
}

// Notes stand once under the grid, by number: most cells have the same.
function ablationGrid(variant, cells) {
  const find = (timing, synchronise, warmup) => cells.find((cell) => cell.timing === timing && cell.synchronise === synchronise && cell.warmup === warmup);
  const reference = find("host", true, true);
  const notes = [...new Set(WAYS.flatMap((way) => [true, false].map((warmup) => (find(...way, warmup) || {}).note)).filter(Boolean))];
  const clock = (timing, synchronise) => [el("b", {}, timing === "host" ? "host clock" : "device events"), el("div", { class: "quiet" }, synchronise ? "synchronised" : "not synchronised")];
  const chart = el("div", { class: "chart" });
  ablationBars(chart, variant, WAYS.map((way) => [way, find(...way, true), find(...way, false)]));
  return el("div", {}, el("h3", {}, variant), chart, el("div", { class: "scroll" }, el("table", { class: "ablation" },
    el("thead", {}, el("tr", {}, ["timed by", "after warm-up", "without warm-up"].map((name) => el("th", { scope: "col", class: "head-cell" }, name)))),
    el("tbody", {}, WAYS.map(([timing, synchronise]) => el("tr", {}, el("th", { scope: "row", class: "head-cell" }, clock(timing, synchronise)), [true, false].map((warmup) => ablationCell(find(timing, synchronise, warmup), reference, notes))))))),
  notes.length ? el("ol", { class: "names quiet" }, notes.map((note) => el("li", {}, withCommands(note)))) : null);
}

const wayName = ([timing, synchronise]) => (timing === "host" ? "host clock" : "device events") + ", " + (synchronise ? "synchronised" : "not synchronised");

// What has a figure as bars: after a warm-up and without one. The table beside it says why others have none.
function ablationBars(box, variant, ways) {
  const bar = (way, cell, name, colour) => {
    const low = isNumber(cell.std_s) ? cell.mean_s - cell.std_s : null, high = isNumber(cell.std_s) ? cell.mean_s + cell.std_s : null;
    return { value: cell.mean_s, low, high, colour, name, short: formatSeconds(cell.mean_s), text: formatSeconds(cell.mean_s),
      tip: [variant + ", " + wayName(way), [["timed", name], ["mean", formatSeconds(cell.mean_s)], isNumber(cell.std_s) ? ["deviation", formatSeconds(cell.std_s)] : null, ["n", formatPlain(cell.n)], cell.note ? ["note", cell.note] : null]] };
  };
  const has = (cell) => cell && cell.valid && !cell.error && isNumber(cell.mean_s);
  const rows = ways.map(([way, warm, cold]) => ({ name: wayName(way), bars: [has(warm) ? bar(way, warm, "warm", RIGHT) : null, has(cold) ? bar(way, cold, "cold", "var(--kind-warmup)") : null].filter(Boolean) }));
  const says = rows.filter((row) => row.bars.length).map((row, at) => (at ? "; " : "") + row.name + ": " + row.bars.map((one) => one.name + " " + one.text).join(", ")).join("") + ".";
  barChart(box, rows, { label: "what each way of timing gives, " + variant, name: "ablation", unseen: true, says });
}

function ablationCell(cell, reference, notes) {
  if (!cell) return el("td", {}, none("this cell was not measured"));
  const note = cell.note ? el("sup", { title: cell.note }, String(notes.indexOf(cell.note) + 1)) : null;
  if (!cell.valid || cell.error) return el("td", { class: "invalid" }, el("b", {}, cell.valid ? "failed" : "invalid"), note, cell.error ? el("code", {}, cell.error) : null);
  if (!isNumber(cell.mean_s)) return el("td", {}, el("span", { class: "quiet" }, "no figure of its own"), note);
  const base = reference && isNumber(reference.mean_s) ? reference.mean_s : null;
  return el("td", { class: cell === reference ? "reference" : null },
    el("b", {}, figure(cell.mean_s, "s", cell === reference ? CLEAN : TIMED_SO)), isNumber(cell.std_s) ? el("span", { class: "quiet" }, " ± " + formatSeconds(cell.std_s)) : null, note,
    el("div", { class: "quiet" }, cell === reference ? "the right way, " : base ? formatFactor(cell.mean_s / base) + " ×, " : "", "n = " + formatPlain(cell.n)));
}
