// What the charts of a benchmark share: colours and marks of series, commands, fine times.
const SERIES = ["var(--kind-clean)", "var(--kind-torch)", "var(--kind-cprofile)", "var(--kind-nvtx)", "var(--kind-memory)", "var(--kind-warmup)"];
const seriesColour = (at) => SERIES[at % SERIES.length];

// Marks are told apart by shape as well as by colour: the library's names and the same beside words.
const MARKS = { circle: "●", square: "■", "triangle-up": "▲", diamond: "◆", x: "✕", "circle-open": "○" };
const MARK_ORDER = ["circle", "square", "triangle-up", "diamond"];
const markSample = (kind, colour) => { const mark = el("span", { class: "mark-sample", "aria-hidden": "true" }, MARKS[kind]); mark.style.color = colour; return mark; };

// Commands in a text: between backticks or quotes, and options that stand alone with their values.
const COMMANDS = /`([^`]+)`|(?<!\w)'([a-z][^'\n]* [^'\n]*)'(?!\w)|(?<![\w-])(--(?:layers|skip|mode|compare|search|dtype|input|device) [\w,:.]*\w|--[a-z][a-z-]*[a-z](?:[ =]\d[\w.]*\w|[ =]\d)?)/g;

// A short one stays in one piece: "--" at the end of a line reads as a dash.
const commandCode = (text) => el("code", { class: text.length < 40 ? "whole" : null }, text);

function withCommands(text) {
  const found = [], whole = String(text);
  let last = 0;
  for (const match of whole.matchAll(COMMANDS)) {
    found.push(whole.slice(last, match.index), commandCode(match[1] || match[2] || match[3]));
    last = match.index + match[0].length;
  }
  found.push(whole.slice(last));
  return found;
}

// Times that lie close together, with as many digits as tell them apart: at most `most` decimals.
function fineSeconds(values, more = 0, most = 6) {
  const sorted = values.filter(isNumber).sort((a, b) => a - b);
  const gaps = sorted.slice(1).map((value, at) => value - sorted[at]).filter((gap) => gap > 0);
  if (!gaps.length) return formatSeconds;
  const largest = sorted[sorted.length - 1];
  const [scale, unit] = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]].find(([one]) => largest >= one) || [1e-9, "ns"];
  const digits = Math.min(most, Math.max(0, Math.ceil(-Math.log10(Math.min(...gaps) / scale) + more - 1e-9)));
  return (value) => (value / scale).toFixed(digits) + " " + unit;
}

// Both ends of an interval; the median may want to be written as they are.
const spanFormat = (low, high) => (isNumber(low) && isNumber(high) && high > low && high < 59.95 && high - low < 0.1 * high ? fineSeconds([low, high], 0.5) : formatSeconds);
const spanText = (low, high) => (isNumber(low) && isNumber(high) ? spanFormat(low, high)(low) + " – " + spanFormat(low, high)(high) : null);

// A figure of a row that gives its own reason for having none.
const cellWithReason = (otherwise) => (value, record, column) => {
  const text = shown(value, column.unit, record.reason || otherwise || whyEmpty(column));
  return el("td", { class: column.unit === "text" ? "text" : "number" }, text);
};

// A table of the page's own from records, each of whose columns says where its numbers come from;
// columns without any value stay out of sight with a reason.
function recordTable(box, records, columns, spec) {
  const rows = records.map((record) => columns.map(({ key }) => record[key] ?? null));
  return makeTable(box, { table: { columns, rows, left_out: null }, plain: true, ...spec });
}

// Rows are {name, bars: [{value, low, high, points, colour, name, text, tip}]}; a whisker beyond the
// scale is cut there and its value says so. `label` and `says` as for any chart; `name` of the picture.
function barChart(box, rows, options) {
  const there = rows.filter((row) => row.bars.length);
  if (!there.length) return;
  plot(box, (theme) => barsChart(theme, there), { tip: (point) => point.customdata, height: (width) => barsHeight(there, width), ...options });
}

const BAR_ROOM = 22;
const widthOf = (text) => String(text).length * 6.8;
const widest = (texts) => Math.max(...texts.map(widthOf));
// Room for names beside the bars; none in a narrow chart, where they stand above them.
const nameWidth = (rows, width) => (width < 460 ? 0 : Math.min(Math.round(width * 0.24), Math.ceil(widest(rows.map((row) => row.name))) + 12));

// Where names have no room beside their bars, each stands above its own.
function barsHeight(rows, width) {
  return BAR_EDGES.t + BAR_EDGES.b + placeBars(rows, nameWidth(rows, width) > 0).height;
}

const BAR_EDGES = { t: 28, b: 40 };
const valueText = (bar, narrow) => (narrow ? bar.short || bar.text : (bar.name ? bar.name + " " : "") + bar.text);

function barsChart(theme, rows) {
  const bars = rows.flatMap((row) => row.bars), names = nameWidth(rows, theme.width), placed = placeBars(rows, names > 0);
  const longest = Math.max(...bars.map((bar) => bar.value));
  const reach = Math.max(...bars.flatMap((bar) => [bar.value, bar.high || 0, ...(bar.points || [])]));
  const end = (Math.min(reach, 1.8 * longest) || 1) * 1.03;
  const margin = { ...BAR_EDGES, l: names ? names + 12 : 10, r: widest(bars.map((bar) => valueText(bar, theme.narrow))) + 18 };
  const layout = { margin, shapes: [], annotations: [] };
  const words = (x, y, text, options) => layout.annotations.push({ xref: "paper", x, yref: "y", y, showarrow: false, text, font: { color: theme.text }, ...options });
  for (const { row, top, bottom, middle } of placed.rows) {
    if (names) words(0, middle, wrapped(row.name, Math.floor(names / 6.4)), { xanchor: "right", xshift: -8, align: "right", font: { color: theme.text, size: 13 } });
    else words(0, top + 11, wrapped(row.name, 60), { xanchor: "left", align: "left", font: { color: theme.text, size: 13 } });
    if (bottom < placed.height) layout.shapes.push({ type: "line", xref: "paper", yref: "y", x0: 0, x1: 1, y0: bottom, y1: bottom, line: { color: theme.line, width: 1 } });
  }
  for (const { bar, y } of placed.bars) {
    words(1, y, plotText(valueText(bar, theme.narrow)), { xanchor: "left", xshift: 8, align: "left" });
    if (bar.high > end) words(1, y, "›", { xanchor: "right", font: { color: theme.text, size: 16 } });
  }
  const points = placed.bars.flatMap(({ bar, y }) => (bar.points || []).map((x) => ({ x, y, tip: [bar.tip[0], [["a fresh process", formatSeconds(x)]]] })));
  const data = [barTrace(theme, placed.bars)];
  if (points.length) data.push({ type: "scatter", mode: "markers", name: "fresh processes", x: points.map((one) => one.x), y: points.map((one) => one.y), customdata: points.map((one) => one.tip), marker: { color: theme.ground, size: 8, line: { color: theme.text, width: 1.5 } } });
  return { data, layout: { ...layout, bargap: 0, xaxis: axis("s", 0, end, { width: theme.width - margin.l - margin.r }), yaxis: { range: [placed.height, 0], fixedrange: true, showticklabels: false, showgrid: false, ticks: "" } } };
}

function barTrace(theme, placed) {
  const known = ({ bar }) => isNumber(bar.low) && isNumber(bar.high);
  return { type: "bar", orientation: "h", name: "times", x: placed.map(({ bar }) => bar.value), y: placed.map(({ y }) => y), width: placed.map(() => BAR_ROOM - 5), customdata: placed.map(({ bar }) => bar.tip), marker: { color: placed.map(({ bar }) => theme.colour(bar.colour)), opacity: 0.72 },
    error_x: { type: "data", symmetric: false, array: placed.map((one) => (known(one) ? one.bar.high - one.bar.value : null)), arrayminus: placed.map((one) => (known(one) ? one.bar.value - one.bar.low : null)), color: theme.text, thickness: 1.5, width: 5 } };
}

// Places down the chart in pixels: rows one under the other, their bars within them.
function placeBars(rows, beside) {
  const found = { rows: [], bars: [], height: 0 };
  for (const row of rows) {
    const top = found.height, first = top + (beside ? 7 : 25), height = row.bars.length * BAR_ROOM;
    row.bars.forEach((bar, at) => found.bars.push({ bar, y: first + (at + 0.5) * BAR_ROOM }));
    found.height = first + height + 7;
    found.rows.push({ row, top, bottom: found.height, middle: first + height / 2 });
  }
  return found;
}

// A name over as many lines as it needs, each escaped by itself.
function wrapped(text, most) {
  const lines = [""];
  for (const word of String(text).split(/\s+/)) {
    const line = lines[lines.length - 1];
    if (line && line.length + word.length >= most) lines.push(word); else lines[lines.length - 1] = line ? line + " " + word : word;
  }
  return lines.map((line) => plotName(line, most + 12)).join("<br>");
}
