// Axes of charts in the page's own units: round values of what is in sight, found anew after every zoom.
const MINUTES = [60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
const BYTE_STEP = 1024;

// From `from` to `to` in `unit` (s, bytes, count, plain, share). Options: log, title, width in pixels
// (how many values have room), until (no value beyond it), and what else the library knows of an axis.
function axis(unit, from, to, options = {}) {
  const { log, title, width, ...more } = options;
  const range = log ? [Math.log10(from), Math.log10(to)] : [from, to];
  const made = { type: log ? "log" : "linear", range, unit, most: Math.max(2, Math.floor((width || 400) / 66)), tickmode: "array", ...more };
  return { ...made, ...ticksOf(made), ...(title ? { title: axisTitle(title) } : {}) };
}

const axisTitle = (text) => ({ text: plotText(text), standoff: 6, font: { size: CHART_FONT } });

// How many values have room beside a vertical axis.
const tallAxis = (unit, from, to, options = {}) => axis(unit, from, to, { ...options, width: (options.width || 220) * 1.9 });

// A range around values that are all above 0 for a logarithmic axis, with room as a factor on each side.
const around = (values, low, high = low) => [Math.min(...values) / low, Math.max(...values) * high];

function ticksOf(axisLike) {
  const log = axisLike.type === "log";
  const ends = axisLike.range.map((end) => (log ? 10 ** end : end));
  const low = Math.min(...ends), high = Math.max(...ends);
  let values = log ? decades(low, high, axisLike.most) : [];
  if (values.length < 2) values = roundValues(low, high, axisLike.unit, axisLike.most);
  // Beyond `until` the axis has something else.
  if (isNumber(axisLike.until)) values = values.filter((value) => value <= axisLike.until);
  return { tickvals: values, ticktext: tickTexts(values, axisLike.unit, log) };
}

// 1, 2 and 5 of each decade, or as many of the decades as have room.
function decades(low, high, most) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const inside = (value) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9);
  const all = [];
  for (let decade = first; decade <= last; decade += 1) for (const digit of [1, 2, 5]) all.push(Number((digit * 10 ** decade).toPrecision(12)));
  const fine = all.filter(inside);
  if (fine.length <= most + 1) return fine;
  const whole = fine.filter((value) => Math.abs(Math.log10(value) % 1) < 1e-9 || Math.abs(Math.log10(value) % 1) > 1 - 1e-9);
  // Within less than two decades 1, 2 and 5 are too many and the decades too few: every other one.
  if (whole.length < 2) return fine.filter((value, at) => at % Math.ceil(fine.length / most) === 0);
  return whole.filter((value, at) => at % Math.ceil(whole.length / most) === 0);
}

function roundValues(low, high, unit, most) {
  const step = roundStep((high - low) / most, unit, high);
  const values = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + 1e-9 * step && values.length < 40; at += 1) values.push(Number((at * step).toPrecision(12)));
  return values;
}

function roundStep(least, unit, high) {
  if (unit === "s" && least > 30) return MINUTES.find((one) => one >= least) || 86400 * Math.ceil(least / 86400);
  // Round sizes are round in their own unit: 320 MiB, not 300,000,000 bytes.
  const scale = unit === "bytes" ? BYTE_STEP ** Math.max(0, Math.floor(Math.log2(Math.max(high, 1)) / 10)) : 1;
  const power = 10 ** Math.floor(Math.log10(least / scale));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((one) => one >= (least / scale) * (1 - 1e-9));
  return unit === "plain" ? Math.max(1, Math.round(step)) : step * scale;
}

function tickTexts(values, unit, log) {
  const largest = Math.max(...values.map(Math.abs));
  // One unit along a linear axis of times, with the digits that tell its values apart.
  const format = unit === "s" && !log && largest < 60 ? fineSeconds(values.length > 1 ? values : [0, ...values]) : FORMATS[unit] || String;
  return values.map((value) => plotText(value === 0 ? "0" : tickText(format(value))));
}

// Axis values are round: 50 ms and 1.5 s say it without idle zeros.
const tickText = (text) => text.replace(/(\.\d*?)0+(?=\s|$)/, "$1").replace(/\.(?=\s|$)/, "");

// After a zoom other values are in sight.
function renewTicks(surface) {
  const changed = {};
  for (const [key, one] of Object.entries(surface.layout || {})) {
    if (!/^[xy]axis/.test(key) || !one || !one.unit || !one.range) continue;
    const { tickvals, ticktext } = ticksOf(one);
    if (JSON.stringify(tickvals) === JSON.stringify(one.tickvals)) continue;
    changed[key + ".tickvals"] = tickvals;
    changed[key + ".ticktext"] = ticktext;
  }
  if (Object.keys(changed).length) window.Plotly.relayout(surface, changed);
}

// Where a point is in pixels of a frame whose axes are both logarithmic: what words need to stand apart.
function logFrame(width, height, xs, ys) {
  const part = (value, [from, to]) => Math.log(value / from) / Math.log(to / from);
  return { width, height, x: (value) => part(value, xs) * width, y: (value) => (1 - part(value, ys)) * height };
}

function pointBox(frame, x, y, size) {
  const px = frame.x(x), py = frame.y(y);
  return { left: px - size, right: px + size, top: py - size, bottom: py + size };
}

// Takes the first of some boxes that lies in the frame and on nothing; null where there is none.
function freeBox(frame, taken, boxes) {
  const free = boxes.find((box) => box.left >= 0 && box.right <= frame.width && box.top >= -4 && box.bottom <= frame.height && !taken.some((other) => box.left < other.right && box.right > other.left && box.top < other.bottom && box.bottom > other.top));
  if (free) taken.push(free);
  return free || null;
}
