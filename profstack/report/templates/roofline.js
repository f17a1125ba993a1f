// What the step, its modules and operators reach under the roofs of the machine.
const BOUNDS = { compute: ["triangle", "var(--kind-clean)"], memory: ["circle", "var(--kind-torch)"], overhead: ["square", "var(--kind-nvtx)"] };
const MOST_NAMES = 10;
const boundLook = (bound) => BOUNDS[bound] || ["diamond", "var(--soft)"];
const boundWords = (bound) => (BOUNDS[bound] ? bound + "-bound" : "not told");
const formatRate = (value) => (isNumber(value) ? formatCount(value) + "FLOP/s" : NONE).replace(/^([\d.]+)FLOP/, "$1 FLOP");
const formatBandwidth = (value) => (isNumber(value) ? formatCount(value) + "B/s" : NONE).replace(/^([\d.]+)B/, "$1 B");
const hasPoint = (point) => isNumber(point.intensity) && point.intensity > 0 && isNumber(point.flop_per_s) && point.flop_per_s > 0;

function drawRoofline(page) {
  const facts = page.roofline;
  if (!facts) { drop("roofline"); return; }
  const flops = (facts.peaks.flop_per_s || []).filter((peak) => isNumber(peak.value) && peak.value > 0);
  const bytes = (facts.peaks.bytes_per_s || []).filter((peak) => isNumber(peak.value) && peak.value > 0);
  drawMfu(byId("roofline-cards"), facts, flops, bytes);
  if (facts.reason) byId("roofline-reason").append(el("p", { class: "quiet" }, withCommands(facts.reason)));
  const points = facts.points.filter(hasPoint);
  const kinds = ["operator", "module"].filter((kind) => points.some((point) => point.kind === kind));
  if (points.length) drawRooflineChart(facts, points, kinds, flops, bytes);
  else byId("roofline-chart").append(el("p", { class: "quiet" }, facts.points.length ? "Nothing has a place in the plot: the table says why." : "There is no point to plot."));
  drawPlaceless(byId("roofline-placeless"), facts);
  drawRooflineTable(byId("roofline-table"), facts);
}

function drawMfu(box, facts, flops, bytes) {
  for (const one of facts.mfu) {
    const over = isNumber(one.value) && one.value > 1;
    box.append(card([term("mfu", "MFU"), " of the " + one.source + " peak" + (one.dtype ? ", " + one.dtype : "")], [isNumber(one.value) ? formatPercent(one.value) : none(one.warning || "operations, time or peak are not known"), over ? [" ", chip("above 100 %", "failed")] : ""],
      one.warning ? withCommands(one.warning) : over ? "the count, the time or the peak is wrong" : formatCount(one.flop) + " FLOP in " + formatSeconds(one.seconds), over ? "wrong" : "main"));
  }
  for (const peak of flops) box.append(card("peak, " + peak.dtype, formatRate(peak.value), [peak.source, peak.how ? ": " + peak.how : ""]));
  for (const peak of bytes) box.append(card("memory", formatBandwidth(peak.value), [peak.source, peak.how ? ": " + peak.how : ""]));
  const where = facts.peaks;
  const known = [where.device, isNumber(where.threads) ? where.threads + (where.threads === 1 ? " thread" : " threads") : null, where.torch ? "torch " + where.torch : null, where.measured_at ? "measured " + where.measured_at : null].filter(Boolean);
  if (known.length) byId("roofline-where").append(known.join(", ") + ".");
}

function drawRooflineChart(facts, points, kinds, flops, bytes) {
  const state = { kind: kinds[0] || "step" };
  const redraw = chartIn(byId("roofline-chart"), (width) => rooflineSvg(width, points.filter((point) => point.kind === state.kind || point.kind === "step"), points, flops, bytes));
  if (kinds.length > 1) byId("roofline-tools").append(choice("what to plot", kinds.map((kind) => [kind, kind + "s"]), state.kind, (kind) => { state.kind = kind; redraw(); }));
  const bounds = [...new Set(points.map((point) => (BOUNDS[point.bound] ? point.bound : null)))].sort();
  byId("roofline-legend").append(el("ul", { class: "legend" }, bounds.map((bound) => el("li", {}, markSample(...boundLook(bound), "mark"), bound ? term(bound + "-bound") : boundWords(bound))),
    points.some((point) => point.kind === "step") ? el("li", {}, markSample("circle", "var(--text)", "ring"), "the whole step") : null,
    [...flops, ...bytes].some((peak) => peak.source === "measured") ? el("li", { class: "quiet" }, "— measured roof") : null, [...flops, ...bytes].some((peak) => peak.source === "datasheet") ? el("li", { class: "quiet" }, "- - datasheet") : null));
}

function rooflineSvg(width, shownPoints, all, flops, bytes) {
  const height = Math.min(440, Math.max(320, width * 0.5));
  const frame = { left: 74, right: width - 14, top: 26, bottom: height - 42 };
  const svg = canvas(width, height, "rate against arithmetic intensity, under the roofs");
  const ridges = bytes.flatMap((one) => flops.map((peak) => peak.value / one.value));
  const x = logScale(all.map((point) => point.intensity).concat(ridges), 2.5, 2.5, frame.left, frame.right);
  const y = logScale(all.map((point) => point.flop_per_s).concat(flops.map((peak) => peak.value)), 2.5, 2.2, frame.bottom, frame.top);
  plotAxes(svg, frame, { scale: x, ticks: logTicks(x), format: formatCount, title: "arithmetic intensity, FLOP per byte" }, { scale: y, ticks: logTicks(y), format: formatCount, title: "FLOP/s" });
  const around = (px, py) => ({ left: px - 6, right: px + 6, top: py - 6, bottom: py + 6 });
  const taken = shownPoints.map((point) => around(x(point.intensity), y(point.flop_per_s)));
  drawRoofs(svg, frame, x, y, flops, bytes, taken);
  const before = taken.length, names = shape("g");
  svg.append(names);
  // The heaviest get their names first, as far as there is room.
  const ordered = shownPoints.slice().sort((a, b) => (b.seconds || 0) - (a.seconds || 0));
  for (const point of ordered) {
    const [kind, colour] = boundLook(point.bound);
    const px = x(point.intensity), py = y(point.flop_per_s);
    if (point.kind === "step") svg.append(drawMark("circle", px, py, 9, "ring", { stroke: colour, fill: "none" }));
    withTip(svg, drawMark(kind, px, py, 4.6, "mark roof-point", { fill: colour }), px, py, point.name, [
      ["bound", boundWords(point.bound)], ["intensity", formatCount(point.intensity) + " FLOP/byte"], ["rate", formatRate(point.flop_per_s)], isNumber(point.share_of_peak) ? ["of its roof", formatPercent(point.share_of_peak)] : null,
      ["time", formatSeconds(point.seconds) + (point.seconds_is ? ", " + point.seconds_is : "")], ["FLOP", formatCount(point.flop)], ["moved", formatBytes(point.moved_bytes)], point.reason ? ["why", point.reason] : null]);
    if (taken.length < before + MOST_NAMES) nameMark(names, frame, taken, px, py, point.kind === "operator" ? point.name.split(" in ")[0] : point.name);
  }
  return svg;
}

// Beside, above or below its mark, wherever nothing stands yet.
function nameMark(svg, frame, taken, px, py, name) {
  const text = name.length > 30 ? "…" + name.slice(-29) : name;
  const wide = widthOf(text);
  placeText(svg, frame, taken, text, [[px + 11, py], [px - 11 - wide, py], [px - wide / 2, py - 13], [px - wide / 2, py + 14], [px + 6, py - 13], [px - 6 - wide, py - 13], [px + 6, py + 13]], "label over-chart");
}

function drawRoofs(svg, frame, x, y, flops, bytes, taken) {
  const dashed = (peak) => (peak.source === "datasheet" ? "roof datasheet" : "roof");
  const [low, high] = x.domain(), floor = y.domain()[0];
  const best = (source) => Math.max(...flops.filter((peak) => peak.source === source).map((peak) => peak.value), -Infinity);
  for (const one of bytes) {
    const top = best(one.source) > 0 ? best(one.source) : Math.max(...flops.map((peak) => peak.value), -Infinity);
    const end = Math.min(high, top > 0 ? top / one.value : high), start = Math.max(low, floor / one.value);
    if (end <= start) continue;
    svg.append(shape("line", { x1: x(start), y1: y(start * one.value), x2: x(end), y2: y(Math.min(end * one.value, y.domain()[1])), class: dashed(one) }));
    const slope = (Math.atan2(y(end * one.value) - y(start * one.value), x(end) - x(start)) * 180) / Math.PI;
    const at = Math.sqrt(start * end);
    svg.append(textShape("memory " + formatBandwidth(one.value), { x: x(at), y: y(at * one.value) - 7, "text-anchor": "middle", transform: `rotate(${slope} ${x(at)} ${y(at * one.value)})` }, "label roof-label"));
  }
  // No words are to lie on a roof.
  for (const peak of flops) taken.push({ left: frame.left, right: frame.right, top: y(peak.value) - 1, bottom: y(peak.value) + 1 });
  for (const peak of flops.slice().sort((a, b) => b.value - a.value)) {
    const slopes = bytes.filter((one) => one.source === peak.source);
    const band = Math.max(...(slopes.length ? slopes : bytes).map((one) => one.value), -Infinity);
    const start = x(band > 0 ? Math.max(low, peak.value / band) : low), height = y(peak.value);
    svg.append(shape("line", { x1: frame.left, x2: start, y1: height, y2: height, class: "roof beyond" }), shape("line", { x1: start, x2: frame.right, y1: height, y2: height, class: dashed(peak) }));
    const text = peak.dtype + " " + formatRate(peak.value);
    const right = frame.right - widthOf(text);
    placeText(svg, frame, taken, text, [[right, height - 9], [right, height + 10], [start + 4, height - 9], [start + 4, height + 10], [frame.left + 4, height - 9]], "label roof-label");
  }
}

// What has no place in the plot, by reason.
function drawPlaceless(box, facts) {
  const without = facts.points.filter((point) => !hasPoint(point));
  if (!without.length) { box.remove(); return; }
  const reasons = new Map();
  for (const point of without) {
    const reason = point.reason || (isNumber(point.moved_bytes) ? "its rate is not known" : "the bytes it moves are not known");
    reasons.set(reason, [...(reasons.get(reason) || []), point.name]);
  }
  append(box, [el("details", {}, el("summary", {}, without.length + " of " + facts.points.length + " have no point, and why"),
    el("ul", { class: "names" }, [...reasons].map(([reason, names]) => el("li", {}, reason + ": ", names.slice(0, 40).map((name, at) => [at ? ", " : "", el("code", {}, name)]), names.length > 40 ? " and " + (names.length - 40) + " more" : ""))))]);
}

function drawRooflineTable(box, facts) {
  if (!facts.points.length) return;
  const columns = [
    ownColumn("name", "name", "text", "what ran"), ownColumn("kind", "kind", "text", "step, module or operator"), ownColumn("bound", "bound", "text", "what holds it back"), ownColumn("share_of_peak", "of its roof", "share", "its rate over the roof above it"),
    ownColumn("intensity", "FLOP/byte", "count", "operations per byte moved"), ownColumn("flop_per_s", "FLOP/s", "rate", "operations per second"), ownColumn("seconds", "time", "s", "its time per step"), ownColumn("seconds_is", "which is", "text", "clean: measured without a layer; calibrated: the layer's share of it; device: the device's own time"),
    ownColumn("reason", "why", "text", "why it has no place, or is bound as it is", "there is nothing to add"), ownColumn("flop", "FLOP", "flop", "operations per step"), ownColumn("moved_bytes", "moved", "bytes", "bytes read and written per step"), ownColumn("dtype", "data type", "text", "data type")];
  const why = cellWithReason("it was not told");
  const share = (value, record, column) => (isNumber(value) && value > 1 ? el("td", { class: "number" }, chip(formatPercent(value), "failed")) : isNumber(value) ? barCell(value, column.unit, value, "var(--self)") : why(value, record, column));
  const rows = facts.points.map((record) => columns.map(({ key }) => record[key] ?? null));
  makeTable(box, { table: { columns, rows, left_out: facts.left_out }, name: "points", sort: { key: "seconds", direction: -1 }, cells: {
    ...Object.fromEntries(["intensity", "flop_per_s", "seconds", "flop", "moved_bytes", "dtype", "seconds_is"].map((key) => [key, why])), share_of_peak: share,
    bound: (value, record) => el("td", {}, value ? [markSample(...boundLook(value), "mark"), boundWords(value)] : none(record.reason || "it was not told")),
    reason: (value) => el("td", { class: "text wrapped" }, value ? withCommands(value) : none("there is nothing to add")),
  } });
}
