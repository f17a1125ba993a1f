// What the charts of a benchmark share: colours and marks of series, commands, fine times.
const SERIES = ["var(--kind-clean)", "var(--kind-torch)", "var(--kind-cprofile)", "var(--kind-nvtx)", "var(--kind-memory)", "var(--kind-warmup)"];
const seriesColour = (at) => SERIES[at % SERIES.length];

// Marks are told apart by shape as well as by colour: the library's names and the same beside words.
const MARKS = { circle: "●", square: "■", "triangle-up": "▲", diamond: "◆", x: "✕", "circle-open": "○" };
const MARK_ORDER = ["circle", "square", "triangle-up", "diamond"];
const markSample = (kind, colour) => { const mark = el("span", { class: "mark-sample", "aria-hidden": "true" }, MARKS[kind]); mark.style.color = colour; return mark; };

// A line of a chart's legend that belongs to no part of the drawing alone.
const marksLine = (theme, x, y, words, options = {}) => ({ type: "scatter", mode: "text", x: [x], y: [y], text: [plotText(words)], textfont: { color: theme.text, size: CHART_FONT }, hoverinfo: "skip", cliponaxis: false, ...options });

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
