// How the benchmark came to its figures: both modes, samples, warm-up, shapes, processes, device.
const ENDED_BY = { interval: "the interval, narrow enough", time: "the time bound", samples: "the largest number of samples", repeat: "the fixed number of samples", interrupt: "an interruption" };
const yesNo = (value, yes, no) => (value === null || value === undefined ? null : value ? yes : no);

// More rows for the statistics of a benchmark; a run's clean steps have none of them.
function measuredFacts(mark) {
  const many = isNumber(mark.outliers) && mark.n ? mark.outliers + " of " + mark.n + (mark.outliers ? ", further than 3 σ out" : "") : none("fewer than 5 samples were measured");
  return [
    ["target", mark.target ? el("code", {}, mark.target) : none("it was given as an object")],
    ["samples", (mark.n ?? 0) + (mark.calls_per_sample > 1 ? ", each the mean of " + mark.calls_per_sample + " calls" : "")],
    ["sampling ended by", mark.stopped_by ? ENDED_BY[mark.stopped_by] || mark.stopped_by : null],
    ["warm-up", mark.warmup_reason || null],
    ["outliers", many],
    ["garbage collection", mark.garbage],
    ["import, then build", isNumber(mark.import_s) && isNumber(mark.build_s) ? formatSeconds(mark.import_s) + ", then " + formatSeconds(mark.build_s) : none("it was not told")],
    ["batch size", isNumber(mark.batch_size) ? mark.batch_size + (mark.batch_size_is ? ", " + mark.batch_size_is : "") : none("the inputs do not tell it, and none was stated")],
    ["gradients", shown(yesNo(mark.gradients, "on", "off"), "text", "the function decides for itself")],
    ["model's mode", shown(yesNo(mark.training, "training", "evaluation"), "text", "there is no model")],
    ["device initialisation", shown(mark.initialisation_s, "s", "there is no device to initialise")],
  ];
}

function drawMeasured(page) {
  const mark = page.facts.benchmark || {};
  drawModes(byId("bench-modes"), mark, page);
  drawSamples(page, mark);
  drawWarmup(page, mark);
  drawBetween(byId("between"), mark, page);
  drawShapes(byId("by-shape"), mark);
  drawDeviceState(byId("device-state"), mark.device_state, String((page.facts.environment || {}).device || "cpu").startsWith("cpu"));
}

// Rows on one zoomed scale: {name, value, low, high, points, colour, words}.
function spanRows(rows) {
  const ends = rows.flatMap((row) => [row.value, row.low, row.high, ...(row.points || [])]).filter(isNumber);
  const room = (Math.max(...ends) - Math.min(...ends)) * 0.08 || Math.max(...ends) * 0.01;
  const from = Math.min(...ends) - room, to = Math.max(...ends) + room;
  const at = (value) => (100 * (value - from)) / (to - from) + "%";
  const piece = (name, left, right, colour) => { const one = el("span", { class: name }); one.style.left = at(left); if (right !== null) one.style.width = `calc(${at(right)} - ${at(left)})`; one.style.background = colour; return one; };
  return el("div", { class: "spans" }, rows.map((row) => el("div", { class: "span-row" }, el("div", { class: "bar-name" }, row.name),
    el("div", { class: "interval wide", "aria-hidden": "true" },
      isNumber(row.low) && isNumber(row.high) ? piece("range", row.low, row.high, row.colour) : null,
      (row.points || []).filter(isNumber).map((point) => piece("dot", point, null, row.colour)), isNumber(row.value) ? piece("point", row.value, null, "var(--text)") : null),
    el("div", { class: "bar-value" }, row.words))),
  el("div", { class: "span-row quiet ends", "aria-hidden": "true" }, el("div"), el("div", { class: "span-ends" }, el("span", {}, fineSeconds([from, to], 0.5)(from)), el("span", {}, fineSeconds([from, to], 0.5)(to))), el("div")));
}

const sentence = (text) => withCommands(text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : "."));

function drawModes(box, mark, page) {
  if (!page.bench.measured) { box.remove(); return; }
  const onCpu = String((page.facts.environment || {}).device || "cpu").startsWith("cpu");
  const rows = ["synchronised", "pipelined"].map((mode, at) => ({ mode, name: [term(mode)], value: mark[mode + "_median_s"], low: mark[mode + "_ci95_low_s"], high: mark[mode + "_ci95_high_s"], colour: seriesColour(at) }));
  const there = rows.filter((row) => isNumber(row.value));
  for (const row of there) row.words = [el("b", {}, spanFormat(row.low, row.high)(row.value)), spanText(row.low, row.high) ? el("span", { class: "quiet" }, " " + spanText(row.low, row.high)) : el("span", { class: "quiet" }, " no interval")];
  box.append(el("h3", {}, "Both ways of timing"));
  if (there.length === 2) {
    const change = rows[1].value / rows[0].value - 1;
    const differ = Math.abs(change) < 0.001 ? "less than 0.1 %" : formatPercent(Math.abs(change));
    box.append(spanRows(rows), el("p", { class: "quiet" }, onCpu ? "The same on a CPU: a call returns when its work is done. Here the two differ by " + differ + ", which is noise or drift."
      : change < 0 ? "A pipeline takes " + differ + " less: that is what waiting for the device after every step costs." : "A pipeline takes " + differ + " more, which is noise or drift."));
    return;
  }
  const missing = mark.modes_note ? sentence(mark.modes_note) : onCpu ? "The other way is the same on a CPU: a call returns when its work is done." : ["The other way was not asked for: ", commandCode("--mode both"), " measures it."];
  append(box, [there.length ? spanRows(there) : null, el("p", { class: "quiet" }, missing)]);
}

function drawSamples(page, mark) {
  const bars = page.bench.histogram;
  if (!bars) { byId("samples").remove(); return; }
  chartIn(byId("samples-chart"), (width) => samplesSvg(width, bars, mark));
  const out = [];
  if (bars.beyond) out.push(bars.beyond + (bars.beyond === 1 ? " sample lies" : " samples lie") + " beyond the right edge, up to " + formatSeconds(bars.most_s));
  if (bars.below) out.push(bars.below + " below the left edge, down to " + formatSeconds(bars.least_s));
  byId("samples-note").append("n = " + (mark.n ?? 0) + (out.length ? "; " + out.join("; ") : "") + ". The line is the median, the band its ", term("interval", "95 % interval"), ".");
}

function samplesSvg(width, bars, mark) {
  const height = 220;
  // Samples beyond the edge have a bar of their own beside the axis.
  const frame = { left: 46, right: width - (bars.beyond ? 58 : 12), top: 26, bottom: height - 42 };
  const svg = canvas(width, height, "histogram of the samples");
  const end = bars.start_s + bars.width_s * bars.counts.length;
  const x = D3.scale.linear().domain([bars.start_s, end]).range([frame.left, frame.right]);
  const y = D3.scale.linear().domain([0, Math.max(...bars.counts, 1)]).range([frame.bottom, frame.top]);
  const places = x.ticks(Math.max(3, Math.round(width / 120)));
  plotAxes(svg, frame, { scale: x, ticks: places.filter((value) => !bars.beyond || x(value) < frame.right - 22), format: fineSeconds(places), title: "time of a step" }, { scale: y, ticks: y.ticks(4).filter(Number.isInteger), format: String });
  const within = (value) => Math.min(Math.max(x(value), frame.left), frame.right);
  if (isNumber(mark.ci95_low_s) && isNumber(mark.ci95_high_s)) {
    svg.append(shape("rect", { x: within(mark.ci95_low_s), width: Math.max(within(mark.ci95_high_s) - within(mark.ci95_low_s), 1.5), y: frame.top - 4, height: frame.bottom - frame.top + 4, class: "interval-band" }));
  }
  bars.counts.forEach((count, at) => {
    const low = bars.start_s + at * bars.width_s;
    const bar = shape("rect", { x: x(low) + 0.5, width: Math.max(x(low + bars.width_s) - x(low) - 1, 0.8), y: y(count), height: frame.bottom - y(count), class: "sample-bar" });
    bar.addEventListener("mousemove", (event) => showTip(event, fineSeconds([low, low + bars.width_s])(low) + " – " + fineSeconds([low, low + bars.width_s])(low + bars.width_s), [["samples", count]]));
    bar.addEventListener("mouseleave", hideTip);
    svg.append(bar);
  });
  if (bars.beyond) svg.append(...beyondBar(bars, frame, y, width));
  if (isNumber(mark.median_s)) {
    const at = within(mark.median_s);
    svg.append(shape("line", { x1: at, x2: at, y1: frame.top - 4, y2: frame.bottom, class: "median" }));
    svg.append(textShape("median " + formatSeconds(mark.median_s), { x: at, y: frame.top - 10, "text-anchor": at > width - 90 ? "end" : at < 110 ? "start" : "middle" }, "label median-label"));
  }
  return svg;
}

function beyondBar(bars, frame, y, width) {
  const top = Math.max(y(bars.beyond), frame.top - 4), left = frame.right + 14;
  const bar = shape("rect", { x: left, width: 26, y: top, height: Math.max(frame.bottom - top, 1), class: "sample-bar beyond" });
  bar.addEventListener("mousemove", (event) => showTip(event, "beyond the axis", [["samples", bars.beyond], ["slowest", formatSeconds(bars.most_s)]]));
  bar.addEventListener("mouseleave", hideTip);
  return [bar, textShape(formatCount(bars.beyond), { x: left + 13, y: top - 4, "text-anchor": "middle" }),
    shape("line", { x1: left - 4, x2: left + 30, y1: frame.bottom, y2: frame.bottom, class: "axis" }), textShape("beyond", { x: Math.min(left + 34, width), y: frame.bottom + 17, "text-anchor": "end" })];
}

function drawWarmup(page, mark) {
  const curve = page.bench.warmup;
  if (!curve) { byId("warmup").remove(); return; }
  chartIn(byId("warmup-chart"), (width) => warmupSvg(width, curve, mark));
  const factor = isNumber(mark.first_step_s) && mark.median_s ? "The first call took " + formatSeconds(mark.first_step_s) + ", " + formatFactor(mark.first_step_s / mark.median_s) + " × the median. " : "";
  append(byId("warmup-note"), [factor, (curve.total === 1 ? "1 call" : curve.total + " calls") + " before the samples", mark.warmup_reason ? ": " + mark.warmup_reason : "", ". ", curve.left_out]);
}

function warmupSvg(width, curve, mark) {
  const height = 220;
  const frame = { left: 62, right: width - 12, top: 26, bottom: height - 42 };
  const svg = canvas(width, height, "time of every call before the samples");
  const points = curve.points.filter(([, wall]) => wall > 0);
  if (!points.length) return svg;
  const many = curve.total > 60;
  const x = many ? D3.scale.log().domain([1, curve.total]) : D3.scale.linear().domain([1, Math.max(curve.total, 2)]);
  x.range([frame.left + 8, frame.right - 8]);
  const y = logScale(points.map(([, wall]) => wall).concat(mark.median_s || []), 1.1, 1.15, frame.bottom, frame.top);
  const calls = many ? logTicks(x) : x.ticks(Math.max(3, Math.round(width / 90))).filter(Number.isInteger);
  plotAxes(svg, frame, { scale: x, ticks: calls, format: String, title: "call" }, { scale: y, ticks: logTicks(y), format: formatSeconds });
  if (isNumber(mark.median_s)) svg.append(shape("line", { x1: frame.left, x2: frame.right, y1: y(mark.median_s), y2: y(mark.median_s), class: "median" }));
  if (isNumber(curve.steps) && curve.steps > 0 && curve.steps <= curve.total) {
    const edge = curve.steps < curve.total ? (x(curve.steps) + x(curve.steps + 1)) / 2 : frame.right;
    svg.append(shape("rect", { x: frame.left, width: edge - frame.left, y: frame.top - 4, height: frame.bottom - frame.top + 4, class: "warm-band" }));
    const late = edge > width * 0.6;
    svg.append(textShape("warm-up ends after call " + curve.steps, { x: edge + (late ? -6 : 6), y: frame.top + 8, "text-anchor": late ? "end" : "start" }));
  }
  for (const [call, wall] of points) {
    const first = call === 1, warm = isNumber(curve.steps) && call > curve.steps;
    withTip(svg, callMark(first, warm, x(call), y(wall)), x(call), y(wall), first ? "first call" : "call " + call, [["took", formatSeconds(wall)], isNumber(mark.median_s) ? ["of the median", formatFactor(wall / mark.median_s) + " ×"] : null, ["counts as", warm ? "warm" : "warm-up"]]);
  }
  return svg;
}

const callMark = (first, warm, x, y) => drawMark(first ? "diamond" : "circle", x, y, first ? 5 : 2.8, "mark call" + (first ? " first" : ""), { fill: warm ? "var(--kind-clean)" : "var(--kind-warmup)" });

function drawBetween(box, mark, page) {
  const between = mark.between_process;
  const medians = between ? (between.medians_s || []).filter(isNumber) : [];
  if (!page.bench.measured && !medians.length) { box.remove(); return; }
  box.append(el("h3", {}, term("between-process", "Between processes")));
  if (medians.length < 2) {
    append(box, [el("p", { class: "quiet" }, between && between.note ? withCommands(between.note) : ["One process was measured. What a fresh one would give is not known, and its spread is the error bar of any comparison: ", commandCode("--processes 5"), " shows it."])]);
    return;
  }
  const inside = isNumber(mark.ci95_low_s) && isNumber(mark.ci95_high_s);
  const wide = Math.max(...medians) - Math.min(...medians), narrow = inside ? mark.ci95_high_s - mark.ci95_low_s : null;
  box.append(spanRows([
    { name: medians.length + " fresh processes", value: between.median_s, low: between.low_s, high: between.high_s, points: medians, colour: seriesColour(1), words: [el("b", {}, formatPercent(between.spread)), el("span", { class: "quiet" }, " lowest to highest")] },
    { name: "within one", value: mark.median_s, low: mark.ci95_low_s, high: mark.ci95_high_s, colour: seriesColour(0), words: inside ? [el("b", {}, formatPercent(narrow / mark.median_s)), el("span", { class: "quiet" }, " 95 % interval")] : "no interval" },
  ]), el("p", {}, "The error bar of a comparison is the upper one", narrow ? [wide > narrow ? ", " + formatFactor(wide / narrow) + " times the lower" : ""] : "", ", since two versions of a program run in two processes. The lower one says only how well this process's own median is known."),
  el("p", { class: "quiet" }, "Medians: " + medians.map(formatSeconds).join(", ") + (isNumber(between.std_s) ? "; standard deviation " + formatSeconds(between.std_s) : "") + "."));
}

function drawShapes(box, mark) {
  const shapes = mark.by_shape || [];
  if (shapes.length < 2) { box.remove(); return; }
  box.append(el("h3", {}, "By input shape"));
  recordTable(box, shapes, [ownColumn("shape", "shapes", "text", "shapes of the inputs"), ownColumn("n", "n", "plain", "samples"), ownColumn("median_s", "median", "s", "median time", "it has no sample"),
    ownColumn("ci95_low_s", "95 % from", "s", "low end of the interval", "fewer than 6 samples"), ownColumn("ci95_high_s", "to", "s", "high end of the interval", "fewer than 6 samples")],
  { name: "by input shape", sort: { key: "median_s", direction: -1 }, bars: ["median_s"], barColour: "var(--self)" });
}

const STATE_UNITS = [[/_hz$/, " clock"], [/_mhz$/, ", MHz"], [/_c$/, ", °C"], [/_w$/, ", W"], [/_percent$/, ", %"]];
const stateName = (key) => STATE_UNITS.reduce((name, [ending, unit]) => name.replace(ending, unit), key).replaceAll("_", " ");

// One entry per device and property, whether one device stands there or a list of them.
function flatState(state) {
  const { devices, ...own } = state || {};
  const several = (devices || []).length > 1;
  for (const [at, device] of (devices || []).entries()) {
    for (const [key, value] of Object.entries(device)) if (key !== "index") own[(several ? "GPU " + (device.index ?? at) + ": " : "") + key] = value;
  }
  return own;
}

// Before beside after: what changed while measuring stands out.
function drawDeviceState(box, state, onCpu) {
  const before = flatState(state && state.before), after = flatState(state && state.after);
  const keys = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  if (!keys.length && (onCpu || !(state && state.reason))) { box.remove(); return; }
  box.append(el("h3", {}, "State of the device"));
  if (!keys.length) { box.append(el("p", { class: "quiet" }, "Not known: " + state.reason + ".")); return; }
  const text = (value, key) => (/_hz$/.test(key) && isNumber(value) ? formatCount(value) + "Hz" : value === null || value === undefined ? none(state.reason || "the driver does not tell") : Array.isArray(value) && !value.length ? "none" : value === true ? "on" : value === false ? "off" : asText(value));
  box.append(el("div", { class: "scroll" }, el("table", { class: "state" }, el("thead", {}, el("tr", {}, ["", "before", "after"].map((name) => el("th", { scope: "col", class: "head-cell" }, name)))),
    el("tbody", {}, keys.map((key) => {
      const changed = JSON.stringify(before[key]) !== JSON.stringify(after[key]);
      return el("tr", { class: changed ? "changed" : null }, el("td", {}, stateName(key)), el("td", {}, text(before[key], key)), el("td", {}, text(after[key], key), changed ? el("span", { class: "quiet" }, " changed") : null));
    })))), state.reason ? el("p", { class: "quiet" }, state.reason) : "");
}
