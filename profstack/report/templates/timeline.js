// When each slice was: a lane for each kind of slice over the time of the run.
function drawTimeline(page) {
  const box = byId("timeline");
  const slices = page.slices.filter((slice) => isNumber(slice.started_s) && isNumber(slice.wall_s));
  if (!slices.length) { box.append(el("p", { class: "quiet" }, "No slice was recorded.")); return; }
  const end = Math.max(...slices.map((slice) => slice.started_s + slice.wall_s + (slice.stop_s || 0)));
  const narrowest = Math.min(...slices.filter((slice) => slice.layer).map((slice) => slice.wall_s), end);
  const state = { order: narrowest < 0.008 * end };
  const kinds = [...new Set(slices.map((slice) => slice.kind))];
  const times = kinds.map((kind) => kind + " " + formatSeconds(slices.filter((slice) => slice.kind === kind).reduce((sum, slice) => sum + slice.wall_s, 0)));
  const redraw = plot(box, (theme) => timelineChart(theme, slices, kinds, end, state.order), { label: "slices over the time of the run", says: plural(slices.length, "slice") + " over " + formatSeconds(end) + ": " + times.join(", ") + ".", height: kinds.length * 24 + 70, name: "slices", tip: (point) => sliceTip(point.customdata) });
  byId("timeline-tools").append(choice("width of a slice", [["time", "to scale"], ["order", "equal widths"]], state.order ? "order" : "time", (value) => { state.order = value === "order"; redraw(); }));
}

// A lane for each kind, so that layers that shared their steps stand above one another.
function timelineChart(theme, slices, kinds, end, inOrder) {
  const starts = [...new Set(slices.map((slice) => slice.started_s))].sort((a, b) => a - b);
  const from = (slice) => (inOrder ? starts.indexOf(slice.started_s) : slice.started_s);
  const colours = slices.map((slice) => theme.colour(kindColour(slice.kind)));
  const bars = { type: "bar", orientation: "h", name: "slices", y: slices.map((slice) => kinds.indexOf(slice.kind)), base: slices.map(from), x: slices.map((slice) => (inOrder ? 0.9 : slice.wall_s)), width: 0.64, customdata: slices,
    marker: { color: colours, line: { color: colours, width: inOrder ? 0 : 1.5 } } };
  // The tool stops after its slice: a thin bar behind it.
  const stopped = inOrder ? [] : slices.filter((slice) => slice.stop_s > 0);
  const pauses = { type: "bar", orientation: "h", name: "pauses", y: stopped.map((slice) => kinds.indexOf(slice.kind)), base: stopped.map((slice) => slice.started_s + slice.wall_s), x: stopped.map((slice) => slice.stop_s), width: 0.16, customdata: stopped, marker: { color: theme.soft, line: { color: theme.soft, width: 0.5 } } };
  const every = Math.ceil(starts.length / Math.max(2, Math.floor(theme.width / 96)));
  const order = starts.map((_, at) => at).filter((at) => at % every === 0);
  const xaxis = inOrder ? { range: [-0.1, starts.length], tickmode: "array", tickvals: order, ticktext: order.map((at) => plotText(tickText(formatSeconds(starts[at])))), title: axisTitle("started") } : axis("s", 0, end * 1.01, { width: theme.width, title: "time of the run" });
  const lanes = kinds.flatMap((_, at) => (at % 2 ? [] : [{ type: "rect", layer: "below", xref: "paper", yref: "y", x0: 0, x1: 1, y0: at - 0.5, y1: at + 0.5, line: { width: 0 }, fillcolor: theme.lane }]));
  return { data: stopped.length ? [bars, pauses] : [bars], layout: { uirevision: String(inOrder), barmode: "overlay", bargap: 0, margin: { l: 78 }, shapes: lanes, xaxis: { ...xaxis, showgrid: false },
    yaxis: { range: [kinds.length - 0.5, -0.5], tickmode: "array", tickvals: kinds.map((_, at) => at), ticktext: kinds.map((kind) => plotName(kind, 14)), showgrid: false, fixedrange: true } } };
}

const sliceTip = (slice) => [slice.kind + (slice.mode ? " (" + slice.mode + ")" : ""), [
  ["slice", slice.index], slice.round ? ["round", slice.round] : null, ["steps", slice.steps ? slice.steps + " from " + slice.first_step : 0],
  isNumber(slice.step_median_s) ? ["median step", formatSeconds(slice.step_median_s) + (slice.kind === "clean" ? ", clean" : ", raw")] : null,
  ["wall", formatSeconds(slice.wall_s)], isNumber(slice.stop_s) ? ["pause to take in the data", formatSeconds(slice.stop_s)] : null]];
