// The charts over steps and over time: step series, slices, memory.
const D3 = window.d3 || null;
const SVG = "http://www.w3.org/2000/svg";
const NO_D3 = "The charts need d3 from the snakeviz package: install snakeviz and write this page again with 'profstack report'.";

const noCharts = (box) => box.append(el("p", { class: "quiet" }, NO_D3));

function shape(tag, attributes, styles) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  for (const [name, value] of Object.entries(styles || {})) element.style.setProperty(name, value);
  return element;
}

function textShape(text, attributes, className) {
  const element = shape("text", { ...attributes, class: className || "label" });
  element.textContent = text;
  return element;
}

const canvas = (width, height, label) => shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });

// Round values for an axis; on a logarithmic one 1, 2 and 5 of each decade.
function ticks(scale, log, count) {
  if (!log) return scale.ticks(count);
  const [low, high] = scale.domain();
  const found = [];
  for (let decade = Math.floor(Math.log10(low)); decade <= Math.ceil(Math.log10(high)); decade += 1) {
    for (const digit of [1, 2, 5]) {
      const value = digit * 10 ** decade;
      if (value >= low && value <= high) found.push(value);
    }
  }
  return found.length > 8 ? found.filter((value) => Math.abs(Math.log10(value) % 1) < 1e-9) : found;
}

// Axis values are round: 50 ms and 1.5 s say it without idle zeros.
const tickText = (text) => text.replace(/(\.\d*?)0+(?=\s|$)/, "$1").replace(/\.(?=\s|$)/, "");

// Round sizes are round in their own unit: 320 MiB, not 300,000,000 bytes.
function byteTicks(scale) {
  const [low, high] = scale.domain();
  const unit = 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(high, 1)) / 10));
  return D3.scale.linear().domain([low / unit, high / unit]).ticks(5).map((value) => value * unit);
}

function axes(svg, frame, x, y, xFormat, yFormat, log) {
  for (const value of y ? (yFormat === formatBytes ? byteTicks(y) : ticks(y, log, 5)) : []) {
    svg.append(shape("line", { x1: frame.left, x2: frame.right, y1: y(value), y2: y(value), class: "grid" }));
    svg.append(textShape(tickText(yFormat(value)), { x: frame.left - 8, y: y(value) + 4, "text-anchor": "end" }));
  }
  for (const value of ticks(x, false, Math.max(3, Math.round((frame.right - frame.left) / 110)))) {
    svg.append(shape("line", { x1: x(value), x2: x(value), y1: frame.bottom, y2: frame.bottom + 4, class: "axis" }));
    svg.append(textShape(tickText(xFormat(value)), { x: x(value), y: frame.bottom + 17, "text-anchor": "middle" }));
  }
  svg.append(shape("line", { x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom, class: "axis" }));
}

// The colours of the kinds present, each a switch for showing or hiding its marks.
function kindLegend(kinds, hidden, redraw) {
  return el("ul", { class: "legend" }, kinds.map((kind) => {
    const button = el("button", { type: "button", "aria-pressed": "true", title: "show or hide" }, swatch(kindColour(kind)), kind);
    button.addEventListener("click", () => {
      if (!hidden.delete(kind)) hidden.add(kind);
      button.setAttribute("aria-pressed", String(!hidden.has(kind)));
      redraw();
    });
    return el("li", {}, button);
  }));
}

function drawSteps(page) {
  const points = page.steps.points.map(([index, wall, slice, cpu, wait, phase, flags, counted, outlier]) => ({ index, wall, slice, cpu, wait, phase, flags, counted, outlier }));
  // A benchmark alone has no steps beside its samples.
  if (!points.length && page.bench.measured) { drop("steps"); return; }
  if (!points.length) { byId("steps-chart").append(el("p", { class: "quiet" }, "No step was found in this run.")); return; }
  if (!D3) { noCharts(byId("steps-chart")); return; }
  const slices = new Map(page.slices.map((slice) => [slice.index, slice]));
  const kindOf = (point) => (slices.get(point.slice) || {}).kind || "watch";
  const kinds = [...new Set(page.slices.map((slice) => slice.kind))].filter((kind) => points.some((point) => kindOf(point) === kind));
  const walls = points.map((point) => point.wall).filter((wall) => wall > 0);
  const state = { log: Math.max(...walls) > 8 * (page.facts.benchmark.median_s || D3.median(walls)) };
  const hidden = new Set();
  const box = byId("steps-chart");
  const redraw = drawAtWidth(box, (width) => box.replaceChildren(stepsSvg(width, points, { kindOf, hidden, log: state.log, median: page.facts.benchmark.median_s, slices })));
  byId("steps-tools").append(choice("scale", [["linear", "linear"], ["log", "log"]], state.log ? "log" : "linear", (value) => { state.log = value === "log"; redraw(); }));
  byId("steps-legend").append(kindLegend(kinds, hidden, redraw), el("p", { class: "quiet marks" }, "◆ flagged, kept out of medians   ○ more than twice its slice's median"));
  if (page.steps.left_out) byId("steps-legend").append(el("p", { class: "left-out" }, page.steps.left_out));
}

function stepsSvg(width, points, view) {
  const seen = points.filter((point) => point.wall > 0 && !view.hidden.has(view.kindOf(point)));
  const height = 270;
  const frame = { left: 62, right: width - 12, top: 12, bottom: height - 40 };
  const svg = canvas(width, height, "wall time of each step");
  const walls = seen.map((point) => point.wall).concat(view.median || []);
  if (!walls.length) return svg;
  const x = D3.scale.linear().domain([points[0].index, Math.max(points[points.length - 1].index, points[0].index + 1)]).range([frame.left + 6, frame.right - 6]);
  const top = Math.max(...walls);
  const y = view.log ? D3.scale.log().domain([Math.min(...walls) / 1.15, top * 1.15]) : D3.scale.linear().domain([0, top * 1.05]);
  y.range([frame.bottom, frame.top]);
  axes(svg, frame, x, y, (value) => (Number.isInteger(value) ? String(value) : ""), formatSeconds, view.log);
  svg.append(textShape("step", { x: frame.right, y: height - 4, "text-anchor": "end" }, "label quiet"));
  for (const point of seen) svg.append(stepMark(point, x, y, view));
  if (view.median) {
    svg.append(shape("line", { x1: frame.left, x2: frame.right, y1: y(view.median), y2: y(view.median), class: "median" }));
    svg.append(textShape("clean median " + formatSeconds(view.median), { x: frame.right, y: y(view.median) - 6, "text-anchor": "end" }, "label median-label"));
  }
  nearest(svg, seen, x, y, (point, event) => showTip(event, "step " + point.index, [
    ["slice", view.kindOf(point) + " (" + point.slice + ")"], ["phase", point.phase], ["wall", formatSeconds(point.wall)],
    isNumber(point.cpu) ? ["CPU", formatSeconds(point.cpu)] : null, isNumber(point.wait) ? ["wait", formatSeconds(point.wait)] : null,
    point.flags ? ["kept out of medians", point.flags] : null, point.counted ? ["counts", "in the clean median"] : null]));
  return svg;
}

function stepMark(point, x, y, view) {
  const colour = kindColour(view.kindOf(point));
  const cx = x(point.index), cy = y(point.wall);
  if (point.flags) return shape("path", { d: `M${cx} ${cy - 5.5}l5.5 5.5l-5.5 5.5l-5.5 -5.5z`, class: "mark flagged" }, { fill: colour });
  if (point.outlier) return shape("circle", { cx, cy, r: 4.5, class: "mark outlier" }, { stroke: colour });
  return shape("circle", { cx, cy, r: 2.6, class: "mark" }, { fill: colour });
}

// Details of the mark next to the pointer: marks are too small to be hit themselves.
function nearest(svg, points, x, y, show) {
  svg.addEventListener("mousemove", (event) => {
    const box = svg.getBoundingClientRect();
    const px = event.clientX - box.left, py = event.clientY - box.top;
    let best = null, least = 30 ** 2;
    for (const point of points) {
      const distance = (x(point.index) - px) ** 2 + ((y(point.wall) - py) / 2) ** 2;
      if (distance < least) { best = point; least = distance; }
    }
    if (best) show(best, event); else hideTip();
  });
  svg.addEventListener("mouseleave", hideTip);
}

function drawTimeline(page) {
  const box = byId("timeline");
  const slices = page.slices.filter((slice) => isNumber(slice.started_s) && isNumber(slice.wall_s));
  if (!slices.length) { box.append(el("p", { class: "quiet" }, "No slice was recorded.")); return; }
  if (!D3) { noCharts(box); return; }
  const end = Math.max(...slices.map((slice) => slice.started_s + slice.wall_s + (slice.stop_s || 0)));
  const narrowest = Math.min(...slices.filter((slice) => slice.layer).map((slice) => slice.wall_s), end);
  const state = { order: narrowest < 0.008 * end };
  const redraw = drawAtWidth(box, (width) => box.replaceChildren(timelineSvg(width, slices, end, state.order)));
  byId("timeline-tools").append(choice("width of a slice", [["time", "to scale"], ["order", "equal widths"]], state.order ? "order" : "time", (value) => { state.order = value === "order"; redraw(); }));
}

function timelineSvg(width, slices, end, inOrder) {
  const lanes = [...new Set(slices.map((slice) => slice.kind))];
  const row = 22;
  const height = lanes.length * row + 30;
  const frame = { left: 78, right: width - 12, top: 0, bottom: lanes.length * row };
  const svg = canvas(width, height, "slices over the time of the run");
  // Layers that shared their steps stand above one another.
  const starts = [...new Set(slices.map((slice) => slice.started_s))];
  const x = D3.scale.linear().domain([0, inOrder ? starts.length : end]).range([frame.left, frame.right]);
  lanes.forEach((lane, at) => {
    if (at % 2 === 0) svg.append(shape("rect", { x: 0, y: at * row, width, height: row, class: "lane" }));
    svg.append(textShape(lane, { x: frame.left - 10, y: at * row + 15, "text-anchor": "end" }));
  });
  axes(svg, frame, x, null, inOrder ? (value) => (starts[value] === undefined ? "" : formatSeconds(starts[value])) : formatSeconds);
  slices.forEach((slice) => {
    const at = starts.indexOf(slice.started_s);
    const y = lanes.indexOf(slice.kind) * row + 4;
    const left = x(inOrder ? at : slice.started_s);
    const right = x(inOrder ? at + 0.9 : slice.started_s + slice.wall_s);
    const bar = shape("rect", { x: left, y, width: Math.max(right - left, 2), height: row - 8, rx: 1.5, class: "slice", tabindex: "0", role: "img", "aria-label": slice.kind + ", " + slice.steps + " steps, " + formatSeconds(slice.wall_s) }, { fill: kindColour(slice.kind) });
    bar.addEventListener("mousemove", (event) => sliceTip(event, slice));
    bar.addEventListener("mouseleave", hideTip);
    svg.append(bar);
    if (slice.stop_s && !inOrder) svg.append(shape("rect", { x: right, y: y + 5, width: Math.max(x(slice.stop_s) - x(0), 1), height: row - 18, class: "pause" }));
  });
  return svg;
}

const sliceTip = (event, slice) => showTip(event, slice.kind + (slice.mode ? " (" + slice.mode + ")" : ""), [
  ["slice", slice.index], slice.round ? ["round", slice.round] : null, ["steps", slice.steps ? slice.steps + " from " + slice.first_step : 0],
  isNumber(slice.step_median_s) ? ["median step", formatSeconds(slice.step_median_s)] : null,
  ["wall", formatSeconds(slice.wall_s)], isNumber(slice.stop_s) ? ["pause to take in the data", formatSeconds(slice.stop_s)] : null]);

const MEMORY_LINES = [["rss_bytes", "resident set", "var(--rss)"], ["device_allocated_bytes", "device allocated", "var(--allocated)"], ["device_reserved_bytes", "device reserved", "var(--reserved)"]];

function drawMemory(page) {
  const table = page.tables.memory;
  if (!table) {
    if (!["memory_lines", "memory_owners", "peak_holders"].some((name) => page.tables[name])) drop("memory");
    else byId("memory-chart").append(el("p", { class: "quiet" }, "No sample of the process's memory was taken."));
    return;
  }
  const records = asRecords(table).filter((record) => isNumber(record.t_s));
  const lines = MEMORY_LINES.filter(([key]) => records.some((record) => isNumber(record[key])));
  byId("memory-legend").append(el("ul", { class: "legend" }, MEMORY_LINES.map(([key, name, colour]) => {
    const column = table.columns.find((one) => one.key === key);
    const there = lines.some(([other]) => other === key);
    return el("li", {}, there ? swatch(colour) : null, name, there ? null : [" ", none(whyEmpty(column))]);
  })));
  const box = byId("memory-chart");
  if (!D3) noCharts(box);
  else drawAtWidth(box, (width) => box.replaceChildren(memorySvg(width, records, lines, page.slices)));
  makeTable(byId("memory-table"), { table, name: "memory samples", sort: { key: "t_s", direction: 1 } });
}

function memorySvg(width, records, lines, slices) {
  const height = 230;
  const frame = { left: 72, right: width - 12, top: 10, bottom: height - 30 };
  const svg = canvas(width, height, "memory over the time of the run");
  const values = records.flatMap((record) => lines.map(([key]) => record[key]).filter(isNumber));
  if (!values.length) return svg;
  const span = Math.max(...values) - Math.min(...values) || Math.max(...values) * 0.1 || 1;
  const x = D3.scale.linear().domain(D3.extent(records, (record) => record.t_s)).range([frame.left, frame.right]);
  const y = D3.scale.linear().domain([Math.max(0, Math.min(...values) - 0.1 * span), Math.max(...values) + 0.1 * span]).range([frame.bottom, frame.top]);
  const clamp = (value) => Math.min(Math.max(value, frame.left), frame.right);
  for (const slice of slices) {
    const left = clamp(x(slice.started_s)), right = clamp(x(slice.started_s + slice.wall_s));
    svg.append(shape("rect", { x: left, y: frame.top, width: Math.max(right - left, 0.5), height: frame.bottom - frame.top, class: "band" }, { fill: kindColour(slice.kind) }));
  }
  axes(svg, frame, x, y, formatSeconds, formatBytes, false);
  for (const [key, , colour] of lines) {
    const line = D3.svg.line().defined((record) => isNumber(record[key])).x((record) => x(record.t_s)).y((record) => y(record[key]));
    svg.append(shape("path", { d: line(records), class: "line" }, { stroke: colour }));
  }
  const cursor = shape("line", { y1: frame.top, y2: frame.bottom, class: "cursor", visibility: "hidden" });
  svg.append(cursor);
  svg.addEventListener("mousemove", (event) => {
    const at = x.invert(event.clientX - svg.getBoundingClientRect().left);
    const found = records.reduce((best, record) => (Math.abs(record.t_s - at) < Math.abs(best.t_s - at) ? record : best));
    cursor.setAttribute("visibility", "visible");
    cursor.setAttribute("x1", x(found.t_s));
    cursor.setAttribute("x2", x(found.t_s));
    const slice = slices.find((one) => at >= one.started_s && at <= one.started_s + one.wall_s);
    showTip(event, formatSeconds(found.t_s), [found.step === null ? null : ["step", found.step], slice ? ["slice", slice.kind] : null, ...lines.map(([key, name]) => [name, formatBytes(found[key])])]);
  });
  svg.addEventListener("mouseleave", () => { hideTip(); cursor.setAttribute("visibility", "hidden"); });
  return svg;
}
