// Rate and latency against batch size, a curve per data type, with the knee and the maximum on it.
function drawThroughput(page) {
  const rows = page.facts.benchmark.throughput || [];
  const limits = page.facts.benchmark.throughput_limits || [];
  if (!rows.length && !limits.length) { drop("throughput"); return; }
  const dtypes = [...new Set([...rows, ...limits].map((row) => row.dtype))];
  const look = (dtype) => ({ colour: seriesColour(dtypes.indexOf(dtype)), symbol: MARK_ORDER[dtypes.indexOf(dtype) % MARK_ORDER.length] });
  byId("throughput-legend").append(el("ul", { class: "legend" }, dtypes.map((dtype) => el("li", {}, markSample(look(dtype).symbol, look(dtype).colour), dtype)),
    limits.some((one) => isNumber(one.knee_batch)) ? el("li", {}, markSample("circle-open", "var(--text)"), term("knee")) : null,
    rows.some((row) => row.status !== "measured") ? el("li", {}, markSample("x", "var(--bad)"), "refused or failed") : null));
  const measured = rows.filter((row) => isNumber(row.batch_size) && isNumber(row.items_per_s) && row.items_per_s > 0);
  if (measured.length) {
    const view = { measured, refused: smallestRefusals(rows), limits, dtypes, look };
    const chart = (id, key, label, unit, name, peaks) => plot(byId(id), (theme) => curvesChart(theme, view, { key, label, unit, peaks }), { label: label + " against batch size", says: curvesSay(view, peaks), height: CURVE_HEIGHT, name, tip: (point) => point.customdata });
    chart("rate-chart", "items_per_s", "items per second", "rate", "throughput", true);
    chart("latency-chart", "latency_s", "median time of a batch", "s", "latency", false);
  } else byId("throughput-charts").replaceChildren(el("p", { class: "quiet" }, "No batch was measured: the table says why."));
  drawLimits(byId("throughput-limits"), limits);
  drawThroughputTable(byId("throughput-table"), rows);
}

// Each data type's knee and maximum, or its quickest and its largest batch.
function curvesSay({ measured, limits, dtypes }, peaks) {
  return dtypes.map((dtype) => {
    const own = measured.filter((row) => row.dtype === dtype).sort((a, b) => a.batch_size - b.batch_size);
    if (!own.length) return dtype + ": no batch was measured. ";
    const limit = limits.find((one) => one.dtype === dtype) || {}, last = own[own.length - 1];
    if (!peaks) return [dtype, ": ", formatSeconds(own[0].latency_s), " at a batch of ", own[0].batch_size, ", ", formatSeconds(last.latency_s), " at ", last.batch_size, ". "];
    const most = own.reduce((best, row) => (row.items_per_s > best.items_per_s ? row : best));
    return [dtype, ": at most ", formatCount(most.items_per_s), " items/s, at a batch of ", most.batch_size, isNumber(limit.knee_batch) ? "; the knee is at " + limit.knee_batch : "", ". "];
  });
}

// Between the largest batch and the first refusal many sizes are tried: the smallest refused one says it.
function smallestRefusals(rows) {
  const found = new Map();
  for (const row of rows) {
    if (row.status === "measured" || !isNumber(row.batch_size)) continue;
    if (!found.has(row.dtype) || row.batch_size < found.get(row.dtype).batch_size) found.set(row.dtype, row);
  }
  return [...found.values()];
}

const CURVE_HEIGHT = 310;
const PEAK_READ = { words: "raw: read by profstack while the batches ran; no layer was on" };

function curvesChart(theme, view, shownAs) {
  const points = view.measured.filter((row) => isNumber(row[shownAs.key]) && row[shownAs.key] > 0);
  const sizes = [...new Set([...view.measured, ...view.refused].map((row) => row.batch_size))].sort((a, b) => a - b);
  const [low, high] = around(points.map((row) => row[shownAs.key]), 1.3, 1.7);
  const margin = { l: 66, r: 14, t: 34, b: 44 }, ends = [sizes[0] / 1.15, sizes[sizes.length - 1] * 1.15];
  const frame = logFrame(theme.width - margin.l - margin.r, CURVE_HEIGHT - margin.t - margin.b, ends, [low, high]);
  const taken = points.map((row) => pointBox(frame, row.batch_size, row[shownAs.key], 8));
  const layout = { margin, shapes: [], annotations: [], xaxis: batchAxis(theme, sizes, ends), yaxis: tallAxis(shownAs.unit, low, high, { log: true, width: 250, title: shownAs.label }) };
  const data = [], rings = [], crosses = [];
  view.dtypes.forEach((dtype, at) => {
    const own = points.filter((row) => row.dtype === dtype).sort((a, b) => a.batch_size - b.batch_size);
    const look = view.look(dtype), colour = theme.colour(look.colour);
    if (own.length) data.push({ type: "scatter", mode: "lines+markers", name: plotText(dtype), x: own.map((row) => row.batch_size), y: own.map((row) => row[shownAs.key]), customdata: own.map((row) => batchTip(dtype, row)), line: { color: colour, width: 1.8 }, marker: { color: colour, symbol: look.symbol, size: 8 } });
    const limit = view.limits.find((one) => one.dtype === dtype) || {};
    const knee = own.find((row) => row.batch_size === limit.knee_batch), most = own.find((row) => row.batch_size === limit.max_batch);
    if (knee) rings.push({ row: knee, colour });
    // Below a curve that flattens there is room, as a rule, and above the uppermost.
    const say = (row, words) => { const text = curveWords(theme, frame, taken, row.batch_size, row[shownAs.key], words); if (text) layout.annotations.push(text); };
    if (knee && shownAs.peaks) say(knee, "knee " + knee.batch_size);
    if (most && shownAs.peaks) say(most, "max " + formatCount(limit.max_items_per_s ?? most.items_per_s));
    for (const row of view.refused.filter((one) => one.dtype === dtype)) {
      crosses.push({ row, colour, y: high / (1.16 ** (at + 1)) });
      layout.shapes.push({ type: "line", xref: "x", yref: "paper", x0: row.batch_size, x1: row.batch_size, y0: 0, y1: 1, line: { color: colour, width: 1, dash: "dot" }, opacity: 0.7 });
    }
  });
  if (rings.length) data.push({ type: "scatter", mode: "markers", name: "knee", x: rings.map((one) => one.row.batch_size), y: rings.map((one) => one.row[shownAs.key]), hoverinfo: "skip", marker: { symbol: "circle-open", size: 17, color: rings.map((one) => one.colour), line: { width: 2 } } });
  if (crosses.length) data.push({ type: "scatter", mode: "markers", name: "refused", x: crosses.map((one) => one.row.batch_size), y: crosses.map((one) => one.y), customdata: crosses.map(({ row }) => [row.dtype + ", batch of " + row.batch_size + ": " + row.status, [["why", row.reason || "not told"]]]), marker: { symbol: "x-thin", size: 8, line: { width: 2.4, color: crosses.map((one) => one.colour) } } });
  return { data, layout };
}

// Sizes that were tried stand on the axis, as far as there is room between them.
function batchAxis(theme, sizes, ends) {
  const from = sizes[0] / 1.15, to = sizes[sizes.length - 1] * 1.15, wide = (theme.width - 80) / Math.log(to / from);
  const kept = sizes.filter((size, at) => at === 0 || !sizes.slice(0, at).some((other) => Math.log(size / other) * wide < 30));
  return { type: "log", range: [Math.log10(from), Math.log10(to)], tickmode: "array", tickvals: kept, ticktext: kept.map((size) => tickText(formatCount(size)).replace(" ", "")), showgrid: false, title: axisTitle("batch size") };
}

function curveWords(theme, frame, taken, x, y, words) {
  const wide = widthOf(words), px = frame.x(x), py = frame.y(y);
  const box = (left, middle) => ({ left, right: left + wide, top: middle - 7, bottom: middle + 7 });
  const free = freeBox(frame, taken, [box(px - wide / 2, py - 19), box(px - wide / 2, py + 20), box(px + 13, py + 14), box(px - wide / 2, py + 36), box(px - wide - 12, py - 12), box(px - wide / 2, py - 34)]);
  return free && { xref: "paper", yref: "paper", x: (free.left + free.right) / 2 / frame.width, y: 1 - (free.top + free.bottom) / 2 / frame.height, xanchor: "center", yanchor: "middle", showarrow: false, text: plotText(words), font: { color: theme.text }, borderpad: 0 };
}

const batchTip = (dtype, row) => [dtype + ", batch of " + row.batch_size, [
  ["items/s", formatCount(row.items_per_s)], ["median batch", formatSeconds(row.latency_s)], isNumber(row.latency_p90_s) ? ["p90", formatSeconds(row.latency_p90_s)] : null, ["batches", formatPlain(row.batches)],
  isNumber(row.peak_memory_bytes) ? ["peak memory", formatBytes(row.peak_memory_bytes)] : null, ["measured", "clean, no layer armed"]]];

function drawLimits(box, limits) {
  if (!limits.length) { box.remove(); return; }
  const unknown = "no batch was measured";
  const table = el("div");
  append(box, [el("h3", {}, "Where the search ended"), table]);
  recordTable(table, limits, [
    ownColumn("dtype", "data type", "text", "data type of model and inputs"), ownColumn("largest_batch", "largest batch", "plain", "largest batch that ran", unknown, FACT),
    ownColumn("limited_by", "ended by", "text", "what refused a larger one", "nothing refused: the search's own bound ended it"),
    ownColumn("knee_batch", "knee at", "plain", "batch size from which on a larger one gains little", "no knee was seen in the curve", FACT), ownColumn("knee_items_per_s", "items/s there", "rate", "rate at the knee", "no knee was seen in the curve", CLEAN),
    ownColumn("max_batch", "maximum at", "plain", "batch size of the highest rate", unknown, FACT), ownColumn("max_items_per_s", "items/s", "rate", "highest rate", unknown, CLEAN),
    ownColumn("memory_limit_bytes", "memory limit", "bytes", "memory that the search was allowed", "no limit was set", FACT), ownColumn("search", "search", "text", "how the largest batch was looked for", "it was not told")], { name: "limits", cells: { limited_by: (value) => el("td", { class: "text wrapped" }, shown(value, "text", "nothing refused: the search's own bound ended it")) } });
  const notes = [...new Set(limits.map((one) => one.note).filter(Boolean))];
  append(box, notes.map((note) => el("p", { class: "quiet" }, notes.length > 1 ? limits.filter((one) => one.note === note).map((one) => one.dtype).join(", ") + ": " : "", sentence(note))));
}

function drawThroughputTable(box, rows) {
  if (!rows.length) return;
  const why = cellWithReason("it was not told");
  const figures = ["items_per_s", "latency_s", "latency_p90_s", "peak_memory_bytes", "batches", "total_s"];
  const columns = [
    ownColumn("dtype", "data type", "text", "data type of model and inputs"), ownColumn("batch_size", "batch", "plain", "items of one batch", null, FACT), ownColumn("status", "status", "text", "what became of it"),
    ownColumn("items_per_s", "items/s", "rate", "batches times batch size over the total time", null, CLEAN), ownColumn("latency_s", "median batch", "s", "median time of a batch", null, CLEAN), ownColumn("latency_p90_s", "p90", "s", "nine of ten batches took no longer", null, CLEAN),
    ownColumn("peak_memory_bytes", "peak memory", "bytes", "most memory in use meanwhile", null, PEAK_READ), ownColumn("batches", "batches", "plain", "batches timed", null, OWN_COUNT), ownColumn("total_s", "total", "s", "host time over them all", null, CLEAN), ownColumn("reason", "why not", "text", "why there are no figures", "it has figures")];
  const spec = { name: "batches", plain: false, sort: { key: "batch_size", direction: 1 }, hidden: rows.some((row) => row.reason) ? [] : ["reason"],
    cells: { ...Object.fromEntries(figures.map((key) => [key, why])), status: (value) => el("td", {}, chip(value, value === "measured" ? "complete" : value === "failed" ? "failed" : "partial")), reason: (value) => el("td", { class: "text wrapped" }, shown(value, "text", "it has figures")) } };
  const table = el("div");
  append(box, [el("h3", {}, "Every batch"), table]);
  recordTable(table, rows, columns, spec);
}
