// What the charts of a benchmark share: scales, axes, marks, bars with their intervals, commands.
const SERIES = ["var(--kind-clean)", "var(--kind-torch)", "var(--kind-cprofile)", "var(--kind-nvtx)", "var(--kind-memory)", "var(--kind-warmup)"];
const seriesColour = (at) => SERIES[at % SERIES.length];

// A scale over values that are all above 0, with room beside the outermost.
function logScale(values, low, high, from, to) {
  return D3.scale.log().domain([Math.min(...values) / low, Math.max(...values) * high]).range([from, to]);
}

const logTicks = (scale) => ticks(scale, true);

// x and y: {scale, ticks, format, title}. Axis values that would overlap are left out.
function plotAxes(svg, frame, x, y) {
  for (const value of y.ticks) {
    svg.append(shape("line", { x1: frame.left, x2: frame.right, y1: y.scale(value), y2: y.scale(value), class: "grid" }));
    svg.append(textShape(tickText(y.format(value)), { x: frame.left - 8, y: y.scale(value) + 4, "text-anchor": "end" }));
  }
  let free = -Infinity;
  for (const value of x.ticks) {
    const at = x.scale(value), text = tickText(x.format(value));
    svg.append(shape("line", { x1: at, x2: at, y1: frame.bottom, y2: frame.bottom + 4, class: "axis" }));
    if (at - 3.4 * text.length < free) continue;
    svg.append(textShape(text, { x: at, y: frame.bottom + 17, "text-anchor": "middle" }));
    free = at + 3.4 * text.length + 4;
  }
  svg.append(shape("line", { x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom, class: "axis" }));
  if (x.title) svg.append(textShape(x.title, { x: frame.right, y: frame.bottom + 34, "text-anchor": "end" }));
  if (y.title) svg.append(textShape(y.title, { x: frame.left - 8, y: frame.top - 8, "text-anchor": "start" }));
}

// Marks are told apart by shape as well as by colour.
const MARKS = {
  circle: (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
  triangle: (r) => `M0 ${-1.25 * r}L${1.15 * r} ${0.8 * r}L${-1.15 * r} ${0.8 * r}z`,
  square: (r) => `M${-0.9 * r} ${-0.9 * r}h${1.8 * r}v${1.8 * r}h${-1.8 * r}z`,
  diamond: (r) => `M0 ${-1.3 * r}L${1.3 * r} 0L0 ${1.3 * r}L${-1.3 * r} 0z`,
  cross: (r) => `M${-r} ${-r}L${r} ${r}M${-r} ${r}L${r} ${-r}`,
};
const MARK_ORDER = ["circle", "square", "triangle", "diamond"];

function drawMark(kind, x, y, size, className, styles) {
  return shape("path", { d: MARKS[kind](size), transform: `translate(${x} ${y})`, class: className }, styles);
}

// The same mark beside words.
function markSample(kind, colour, className) {
  const svg = canvas(14, 12, "");
  svg.setAttribute("class", "mark-sample");
  svg.setAttribute("aria-hidden", "true");
  svg.append(drawMark(kind, 7, 6, 4, className, { fill: kind === "cross" || className === "ring" ? "none" : colour, stroke: colour }));
  return svg;
}

// Details on hovering and on focus; a mark is too small to be hit, so a wider ring around it counts.
function withTip(svg, node, x, y, title, lines) {
  const label = title + ", " + lines.filter(Boolean).map(([name, value]) => name + " " + value).join(", ");
  const ring = shape("circle", { cx: x, cy: y, r: 11, class: "hit", tabindex: "0", role: "img", "aria-label": label });
  ring.addEventListener("mousemove", (event) => showTip(event, title, lines));
  ring.addEventListener("mouseleave", hideTip);
  svg.append(node, ring);
}

const widthOf = (text) => text.length * 6.6;

// Puts a text at the first of some places, each its left end and its middle, where nothing stands.
function placeText(svg, frame, taken, text, places, className) {
  for (const [left, middle] of places) {
    const box = { left, right: left + widthOf(text), top: middle - 6, bottom: middle + 6 };
    const inside = box.left >= frame.left && box.right <= frame.right + 2 && box.top >= frame.top - 4 && box.bottom <= frame.bottom;
    if (!inside || taken.some((other) => box.left < other.right && box.right > other.left && box.top < other.bottom && box.bottom > other.top)) continue;
    taken.push(box);
    svg.append(textShape(text, { x: left, y: middle + 4 }, className));
    return;
  }
}

function chartIn(box, draw) {
  if (!D3) { noCharts(box); return () => {}; }
  return drawAtWidth(box, (width) => box.replaceChildren(draw(width)));
}

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

// Rows of bars from 0 with whiskers and values: rows are {name, bars: [bar], words}, a bar is
// {value, low, high, colour, name, text, points, tip}. A whisker beyond the scale is cut and says so.
function barRows(rows, label) {
  const bars = rows.flatMap((row) => row.bars);
  const longest = Math.max(...bars.map((bar) => bar.value));
  const reach = Math.max(...bars.flatMap((bar) => [bar.value, bar.high || 0, ...(bar.points || [])]));
  const most = Math.min(reach, 1.8 * longest) * 1.02 || 1;
  return el("div", { class: "bar-rows", role: "group", "aria-label": label }, rows.map((row) => el("div", { class: "bar-row" + (row.bars.length ? "" : " quiet") },
    el("div", { class: "bar-name" }, row.name), el("div", { class: "bar-tracks" }, row.bars.map((bar) => barLine(bar, most)), row.words ? el("p", { class: "bar-words quiet" }, row.words) : null))));
}

function barLine(bar, most) {
  const at = (value) => Math.min(100, Math.max(0, (100 * value) / most));
  const piece = (name, styles) => { const one = el("span", { class: name }); Object.assign(one.style, styles); return one; };
  const track = el("div", { class: "bar-track" }, piece("bar-fill", { width: at(bar.value) + "%", background: bar.colour }));
  if (isNumber(bar.low) && isNumber(bar.high)) {
    track.append(piece("bar-whisker" + (bar.high > most ? " cut" : ""), { left: at(bar.low) + "%", width: at(bar.high) - at(bar.low) + "%" }));
  }
  for (const point of bar.points || []) track.append(piece("bar-point", { left: at(point) + "%" }));
  const line = el("div", { class: "bar-line" }, track, el("div", { class: "bar-value" }, bar.name ? el("span", { class: "quiet" }, bar.name + " ") : null, bar.text));
  line.addEventListener("mousemove", (event) => showTip(event, bar.tip[0], bar.tip[1]));
  line.addEventListener("mouseleave", hideTip);
  return line;
}

// A figure of a row that gives its own reason for having none.
const cellWithReason = (otherwise) => (value, record, column) => {
  const text = shown(value, column.unit, record.reason || otherwise || whyEmpty(column));
  return el("td", { class: column.unit === "text" ? "text" : "number" }, text);
};

// A table of the page's own from records; columns without any value stay out of sight with a reason.
function recordTable(box, records, columns, spec) {
  const rows = records.map((record) => columns.map(({ key }) => record[key] ?? null));
  return makeTable(box, { table: { columns, rows, left_out: null }, plain: true, ...spec });
}
