// Rate and latency against batch size, a curve per data type, with the knee and the maximum on it.
function drawThroughput(page) {
  const rows = page.facts.benchmark.throughput || [];
  const limits = page.facts.benchmark.throughput_limits || [];
  if (!rows.length && !limits.length) { drop("throughput"); return; }
  const dtypes = [...new Set([...rows, ...limits].map((row) => row.dtype))];
  const look = (dtype) => ({ colour: seriesColour(dtypes.indexOf(dtype)), kind: MARK_ORDER[dtypes.indexOf(dtype) % MARK_ORDER.length] });
  byId("throughput-legend").append(el("ul", { class: "legend" }, dtypes.map((dtype) => el("li", {}, markSample(look(dtype).kind, look(dtype).colour, "mark"), dtype)),
    limits.some((one) => isNumber(one.knee_batch)) ? el("li", {}, markSample("circle", "var(--text)", "ring"), term("knee")) : null,
    limits.some((one) => isNumber(one.max_batch)) ? el("li", {}, "▲ maximum") : null,
    rows.some((row) => row.status !== "measured") ? el("li", {}, markSample("cross", "var(--bad)", "refused"), "refused or failed") : null));
  const measured = rows.filter((row) => isNumber(row.batch_size) && isNumber(row.items_per_s) && row.items_per_s > 0);
  if (measured.length) {
    const view = { measured, refused: smallestRefusals(rows), limits, dtypes, look };
    chartIn(byId("rate-chart"), (width) => curvesSvg(width, view, { key: "items_per_s", name: "items per second", format: formatCount, peaks: true }));
    chartIn(byId("latency-chart"), (width) => curvesSvg(width, view, { key: "latency_s", name: "median time of a batch", format: formatSeconds, peaks: false }));
  } else byId("throughput-charts").replaceChildren(el("p", { class: "quiet" }, "No batch was measured: the table says why."));
  drawLimits(byId("throughput-limits"), limits);
  drawThroughputTable(byId("throughput-table"), rows);
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

function curvesSvg(width, view, shownAs) {
  const height = 280;
  const frame = { left: 62, right: width - 16, top: 34, bottom: height - 42 };
  const svg = canvas(width, height, shownAs.name + " against batch size");
  const points = view.measured.filter((row) => isNumber(row[shownAs.key]) && row[shownAs.key] > 0);
  if (!points.length) return svg;
  const sizes = [...new Set([...view.measured, ...view.refused].map((row) => row.batch_size))].sort((a, b) => a - b);
  const x = logScale(sizes, 1.12, 1.12, frame.left, frame.right);
  const y = logScale(points.map((row) => row[shownAs.key]), 1.15, shownAs.peaks ? 2 : 2.4, frame.bottom, frame.top);
  plotAxes(svg, frame, { scale: x, ticks: sizes, format: String, title: "batch size" }, { scale: y, ticks: logTicks(y), format: shownAs.format, title: shownAs.name });
  const taken = points.map((row) => ({ left: x(row.batch_size) - 5, right: x(row.batch_size) + 5, top: y(row[shownAs.key]) - 5, bottom: y(row[shownAs.key]) + 5 }));
  const words = shape("g");
  view.dtypes.forEach((dtype, at) => {
    const own = points.filter((row) => row.dtype === dtype).sort((a, b) => a.batch_size - b.batch_size);
    const { colour, kind } = view.look(dtype);
    if (own.length > 1) svg.append(shape("path", { d: D3.svg.line().x((row) => x(row.batch_size)).y((row) => y(row[shownAs.key]))(own), class: "line curve" }, { stroke: colour }));
    for (const row of own) {
      withTip(svg, drawMark(kind, x(row.batch_size), y(row[shownAs.key]), 3.6, "mark curve-point", { fill: colour }), x(row.batch_size), y(row[shownAs.key]), dtype + ", batch of " + row.batch_size, [
        ["items/s", formatCount(row.items_per_s)], ["median batch", formatSeconds(row.latency_s)], isNumber(row.latency_p90_s) ? ["p90", formatSeconds(row.latency_p90_s)] : null, ["batches", formatPlain(row.batches)], isNumber(row.peak_memory_bytes) ? ["peak memory", formatBytes(row.peak_memory_bytes)] : null]);
    }
    const limit = view.limits.find((one) => one.dtype === dtype);
    if (limit) limitMarks(svg, words, own, limit, shownAs, x, y, colour, { frame, taken });
    for (const row of view.refused.filter((one) => one.dtype === dtype)) {
      const px = x(row.batch_size), py = frame.top + 6 + 16 * at;
      svg.append(shape("line", { x1: px, x2: px, y1: py + 6, y2: frame.bottom, class: "refusal" }, { stroke: colour }));
      withTip(svg, drawMark("cross", px, py, 4, "refused", { stroke: colour }), px, py, dtype + ", batch of " + row.batch_size + ": " + row.status, [["why", row.reason || "not told"]]);
    }
  });
  svg.append(words);
  return svg;
}

function limitMarks(svg, words, own, limit, shownAs, x, y, colour, room) {
  // Below a curve that flattens there is room, as a rule.
  const say = (text, row, places) => {
    const px = x(row.batch_size), py = y(row[shownAs.key]), wide = widthOf(text);
    placeText(words, room.frame, room.taken, text, places.map((place) => ({ below: [px - wide / 2, py + 18], above: [px - wide / 2, py - 15], left: [px - wide - 12, py], right: [px + 12, py + 16], lower: [px - wide / 2, py + 34] })[place]), "label over-chart");
  };
  const at = (size) => own.find((row) => row.batch_size === size);
  const knee = at(limit.knee_batch), most = at(limit.max_batch);
  if (knee) {
    svg.append(drawMark("circle", x(knee.batch_size), y(knee[shownAs.key]), 8, "ring knee", { stroke: colour, fill: "none" }));
    if (shownAs.peaks) say("knee " + knee.batch_size, knee, ["below", "above", "right", "lower", "left"]);
  }
  if (most && shownAs.peaks) say("▲ " + formatCount(limit.max_items_per_s ?? most.items_per_s), most, ["above", "below", "right", "lower", "left"]);
}

function drawLimits(box, limits) {
  if (!limits.length) { box.remove(); return; }
  const unknown = "no batch was measured";
  const table = el("div");
  append(box, [el("h3", {}, "Where the search ended"), table]);
  recordTable(table, limits, [
    ownColumn("dtype", "data type", "text", "data type of model and inputs"), ownColumn("largest_batch", "largest batch", "plain", "largest batch that ran", unknown),
    ownColumn("limited_by", "ended by", "text", "what refused a larger one", "nothing refused: the search's own bound ended it"),
    ownColumn("knee_batch", "knee at", "plain", "batch size from which on a larger one gains little", "no knee was seen in the curve"), ownColumn("knee_items_per_s", "items/s there", "rate", "rate at the knee", "no knee was seen in the curve"),
    ownColumn("max_batch", "maximum at", "plain", "batch size of the highest rate", unknown), ownColumn("max_items_per_s", "items/s", "rate", "highest rate", unknown),
    ownColumn("memory_limit_bytes", "memory limit", "bytes", "memory that the search was allowed", "no limit was set"), ownColumn("search", "search", "text", "how the largest batch was looked for", "it was not told")], { name: "limits", cells: { limited_by: (value) => el("td", { class: "text wrapped" }, shown(value, "text", "nothing refused: the search's own bound ended it")) } });
  const notes = [...new Set(limits.map((one) => one.note).filter(Boolean))];
  append(box, notes.map((note) => el("p", { class: "quiet" }, notes.length > 1 ? limits.filter((one) => one.note === note).map((one) => one.dtype).join(", ") + ": " : "", sentence(note))));
}

function drawThroughputTable(box, rows) {
  if (!rows.length) return;
  const why = cellWithReason("it was not told");
  const figures = ["items_per_s", "latency_s", "latency_p90_s", "peak_memory_bytes", "batches", "total_s"];
  const columns = [
    ownColumn("dtype", "data type", "text", "data type of model and inputs"), ownColumn("batch_size", "batch", "plain", "items of one batch"), ownColumn("status", "status", "text", "what became of it"),
    ownColumn("items_per_s", "items/s", "rate", "batches times batch size over the total time"), ownColumn("latency_s", "median batch", "s", "median time of a batch"), ownColumn("latency_p90_s", "p90", "s", "nine of ten batches took no longer"),
    ownColumn("peak_memory_bytes", "peak memory", "bytes", "most memory in use meanwhile"), ownColumn("batches", "batches", "plain", "batches timed"), ownColumn("total_s", "total", "s", "host time over them all"), ownColumn("reason", "why not", "text", "why there are no figures", "it has figures")];
  const spec = { name: "batches", plain: false, sort: { key: "batch_size", direction: 1 }, hidden: rows.some((row) => row.reason) ? [] : ["reason"],
    cells: { ...Object.fromEntries(figures.map((key) => [key, why])), status: (value) => el("td", {}, chip(value, value === "measured" ? "complete" : value === "failed" ? "failed" : "partial")), reason: (value) => el("td", { class: "text wrapped" }, shown(value, "text", "it has figures")) } };
  const table = el("div");
  append(box, [el("h3", {}, "Every batch"), table]);
  recordTable(table, rows, columns, spec);
}
