// The charts over steps and over time: step series, slices, memory.

const MOST_BANDS = 150;

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

const plural = (count, word, many) => (count ?? 0).toLocaleString("en") + " " + (count === 1 ? word : many || word + "s");

// Slices as a background: [from, to, slice] in the units of the x axis; `axisIs` names the y axes' whole height.
function sliceBands(theme, ranges) {
  return (ranges.length > MOST_BANDS ? [] : ranges).map(([from, to, slice]) => ({ type: "rect", layer: "below", xref: "x", yref: "paper", x0: from, x1: to, y0: 0, y1: 1, line: { width: 0 }, fillcolor: theme.faint(kindColour(slice.kind), theme.dark ? 0.16 : 0.1) }));
}

// A level that runs through the whole chart, with its words beside it where there is room for them. On
// a logarithmic axis the library wants the logarithm of a text's place, and of a line's not.
const LEVEL_ROOM = 88;
const levelRoom = (theme, value) => (isNumber(value) && !theme.narrow ? LEVEL_ROOM : 14);

function levelLine(theme, value, words, log) {
  return {
    shapes: [{ type: "line", xref: "paper", yref: "y", x0: 0, x1: 1, y0: value, y1: value, line: { color: theme.text, width: 1, dash: "dash" }, opacity: 0.65 }],
    annotations: theme.narrow ? [] : [{ xref: "paper", yref: "y", x: 1, y: log ? Math.log10(value) : value, xanchor: "left", yanchor: "middle", align: "left", xshift: 4, showarrow: false, text: words.map(plotText).join("<br>"), font: { color: theme.text, size: CHART_FONT } }],
  };
}

function drawSteps(page) {
  const points = page.steps.points.map(([index, wall, slice, cpu, wait, phase, flags, counted, outlier]) => ({ index, wall, slice, cpu, wait, phase, flags, counted, outlier }));
  // A benchmark alone has no steps beside its samples.
  if (!points.length && page.bench.measured) { drop("steps"); return; }
  if (!points.length) { byId("steps-chart").append(el("p", { class: "quiet" }, "No step was found in this run.")); return; }
  const slices = new Map(page.slices.map((slice) => [slice.index, slice]));
  const kindOf = (point) => (slices.get(point.slice) || {}).kind || "watch";
  const kinds = [...new Set(page.slices.map((slice) => slice.kind))].filter((kind) => points.some((point) => kindOf(point) === kind));
  const timed = points.filter((point) => point.wall > 0);
  const median = page.facts.benchmark.median_s;
  const slowest = timed.reduce((best, point) => (best && best.wall >= point.wall ? best : point), null);
  const state = { log: Boolean(slowest) && isNumber(median) && slowest.wall > 8 * median };
  const hidden = new Set();
  const view = { points, timed, kinds, kindOf, hidden, state, median, slices: page.slices };
  const redraw = plot(byId("steps-chart"), (theme) => stepsChart(theme, view), { label: "wall time of each step", says: stepsSay(view, slowest), height: 300, name: "steps", tip: (point) => stepTip(point.customdata, kindOf) });
  byId("steps-tools").append(choice("scale", [["linear", "linear"], ["log", "log"]], state.log ? "log" : "linear", (value) => { state.log = value === "log"; redraw(); }));
  byId("steps-legend").append(kindLegend(kinds, hidden, redraw), el("p", { class: "quiet marks" }, "◆ flagged, kept out of medians   ○ more than twice its slice's median"));
  if (page.steps.left_out) byId("steps-legend").append(el("p", { class: "left-out" }, page.steps.left_out));
}

function stepsSay({ points, timed, median }, slowest) {
  if (!slowest) return "No step of this run has a time.";
  const flagged = points.filter((point) => point.flags).length;
  return [plural(points.length, "step"), " drawn; the slowest is step ", slowest.index, " with ", formatSeconds(slowest.wall), isNumber(median) ? [", ", formatFactor(slowest.wall / median), " × the clean median of ", formatSeconds(median)] : "",
    flagged ? [". ", plural(flagged, "step is", "steps are"), " flagged and kept out of medians"] : "", timed.length < points.length ? [". ", points.length - timed.length, " have no time"] : "", "."];
}

function stepsChart(theme, view) {
  const walls = view.timed.map((point) => point.wall).concat(isNumber(view.median) ? view.median : []);
  const log = view.state.log;
  const data = view.kinds.map((kind) => {
    const own = view.timed.filter((point) => view.kindOf(point) === kind), colour = theme.colour(kindColour(kind));
    return { type: "scatter", mode: "markers", name: plotText(kind), visible: !view.hidden.has(kind), x: own.map((point) => point.index), y: own.map((point) => point.wall), customdata: own, cliponaxis: false,
      marker: { color: colour, opacity: 0.88, symbol: own.map(stepSymbol), size: own.map((point) => (point.flags ? 10 : point.outlier ? 9 : 5.5)), line: { width: own.map((point) => (point.outlier && !point.flags ? 2 : point.flags ? 1 : 0)), color: own.map((point) => (point.flags ? theme.ground : colour)) } } };
  });
  const first = view.points[0].index, last = Math.max(view.points[view.points.length - 1].index, first + 1), room = Math.max(0.5, (last - first) * 0.012);
  const level = isNumber(view.median) ? levelLine(theme, view.median, ["clean median", formatSeconds(view.median)], log) : { shapes: [], annotations: [] };
  const bands = view.slices.filter((slice) => slice.steps > 0 && isNumber(slice.first_step)).map((slice) => [slice.first_step - 0.5, slice.first_step + slice.steps - 0.5, slice]);
  const [low, high] = walls.length ? (log ? around(walls, 1.25) : [0, Math.max(...walls) * 1.06]) : [0, 1];
  return { data, layout: { uirevision: log ? "log" : "linear", margin: { r: levelRoom(theme, view.median) }, shapes: [...sliceBands(theme, bands), ...level.shapes], annotations: level.annotations,
    xaxis: { ...axis("plain", first - room, last + room, { title: "step", width: theme.width }), showgrid: false }, yaxis: tallAxis("s", low, high, { log, width: 250 }) } };
}

const stepSymbol = (point) => (point.flags ? "diamond" : point.outlier ? "circle-open" : "circle");

const stepTip = (point, kindOf) => point && ["step " + point.index, [
  ["slice", kindOf(point) + " (" + point.slice + ")"], ["phase", point.phase], ["wall", formatSeconds(point.wall)],
  isNumber(point.cpu) ? ["CPU, to a scheduler tick", formatSeconds(point.cpu)] : null, isNumber(point.wait) ? ["wait", formatSeconds(point.wait)] : null,
  ["measured", kindOf(point) === "clean" ? "clean host time" : "raw host time, under " + kindOf(point)],
  point.flags ? ["kept out of medians", point.flags] : null, point.counted ? ["counts", "in the clean median"] : null]];

const MEMORY_LINES = [["rss_bytes", "resident set", "var(--rss)"], ["device_allocated_bytes", "device allocated", "var(--allocated)"], ["device_reserved_bytes", "device reserved", "var(--reserved)"]];

function drawMemory(page) {
  const table = page.tables.memory;
  if (!table) {
    if (!["memory_lines", "memory_owners", "peak_holders"].some((name) => page.tables[name])) drop("memory");
    else byId("memory-chart").append(el("p", { class: "quiet" }, "No sample of the process's memory was taken."));
    return;
  }
  const records = asRecords(table).filter((record) => isNumber(record.t_s)).sort((a, b) => a.t_s - b.t_s);
  const lines = MEMORY_LINES.filter(([key]) => records.some((record) => isNumber(record[key])));
  byId("memory-legend").append(el("ul", { class: "legend" }, MEMORY_LINES.map(([key, name, colour]) => {
    const column = table.columns.find((one) => one.key === key);
    const there = lines.some(([other]) => other === key);
    return el("li", {}, there ? swatch(colour) : null, name, there ? null : [" ", none(whyEmpty(column))]);
  }), [...new Set(page.slices.map((slice) => slice.kind))].map((kind) => el("li", { class: "quiet" }, swatch(kindColour(kind)), kind))));
  if (lines.length) {
    const view = { records, slices: page.slices.filter((slice) => isNumber(slice.started_s) && isNumber(slice.wall_s)), panels: memoryPanels(lines) };
    plot(byId("memory-chart"), (theme) => memoryChart(theme, view), { label: "memory over the time of the run", says: memorySays(records, lines, view.panels), height: 150 + 130 * view.panels.length, name: "memory", tip: (point) => memoryTip(point, view, lines) });
  } else byId("memory-chart").append(el("p", { class: "quiet" }, "No sample has a figure."));
  makeTable(byId("memory-table"), { table, name: "memory samples", sort: { key: "t_s", direction: 1 } });
}

// The host's memory and the device's are two things: each has its own scale.
const memoryPanels = (lines) => [lines.filter(([key]) => key === "rss_bytes"), lines.filter(([key]) => key !== "rss_bytes")].filter((panel) => panel.length);

// What is in sight of the lines of a panel: as near as its samples lie.
function memoryRange(records, panel) {
  const values = panel.flatMap(([key]) => records.map((record) => record[key]).filter(isNumber));
  const low = Math.min(...values), high = Math.max(...values), span = high - low || high * 0.1 || 1;
  return [Math.max(0, low - 0.1 * span), high + 0.12 * span];
}

function memorySays(records, lines, panels) {
  return [lines.map(([key, name], at) => {
    const known = records.filter((record) => isNumber(record[key]));
    const most = known.reduce((best, record) => (record[key] > best[key] ? record : best));
    return [at ? "; " : "", at ? name : name[0].toUpperCase() + name.slice(1), ": ", formatBytes(known[0][key]), " at first, at most ", formatBytes(most[key]), " after ", formatSeconds(most.t_s), ", ", formatBytes(known[known.length - 1][key]), " at last"];
  }), ". ", panels.some((panel) => memoryRange(records, panel)[0] > 0) ? "The scale does not begin at 0. " : ""];
}

function memoryChart(theme, { records, slices, panels }) {
  const first = records[0].t_s, last = Math.max(records[records.length - 1].t_s, first + 1e-6);
  const data = [], layout = { hovermode: "x", hoverdistance: -1, margin: { l: 76 }, shapes: sliceBands(theme, slices.map((slice) => [Math.max(slice.started_s, first), Math.min(slice.started_s + slice.wall_s, last), slice]).filter(([from, to]) => to > from)) };
  panels.forEach((panel, at) => {
    const name = "y" + (at ? at + 1 : "");
    layout["yaxis" + (at ? at + 1 : "")] = { ...axisStyle(theme), ...tallAxis("bytes", ...memoryRange(records, panel), { width: panels.length > 1 ? 150 : 210 }), domain: panels.length < 2 ? [0, 1] : at ? [0, 0.46] : [0.54, 1] };
    for (const [key, words, colour] of panel) {
      data.push({ type: "scatter", mode: records.length < 40 ? "lines+markers" : "lines", name: words, x: records.map((record) => record.t_s), y: records.map((record) => record[key]), customdata: records, yaxis: name, connectgaps: false, line: { color: theme.colour(colour), width: 1.7 }, marker: { size: 4 } });
    }
  });
  layout.xaxis = { ...axis("s", first, last, { width: theme.width, title: "time of the run" }), showgrid: false, showspikes: true, spikemode: "across", spikethickness: 1, spikedash: "dot", spikecolor: theme.soft, spikesnap: "data", anchor: panels.length > 1 ? "y2" : "y" };
  return { data, layout };
}

function memoryTip(point, { slices }, lines) {
  const record = point.customdata;
  const slice = slices.find((one) => record.t_s >= one.started_s && record.t_s <= one.started_s + one.wall_s);
  return [formatSeconds(record.t_s), [isNumber(record.step) ? ["step", record.step] : null, slice ? ["slice", slice.kind] : null, ...lines.map(([key, name]) => [name, isNumber(record[key]) ? formatBytes(record[key]) : NONE]), ["measured", "raw samples of the whole process"]]];
}
