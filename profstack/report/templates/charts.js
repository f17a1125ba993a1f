// Charts: the library, loaded when the first chart scrolls into view, what all charts share, and
// pictures of hierarchies.

import {
  announce,
  append,
  byId,
  el,
  FORMATS,
  factsElsewhere,
  fineSeconds,
  formatPercent,
  formatSeconds,
  formatWhole,
  hideTip,
  isNumber,
  kindColour,
  quiet,
  remark,
  showTip,
  swatch,
  visible,
} from "./dom.js";
import { inFrame, unpack } from "./views.js";

const noPlotly = () =>
  "Charts need the package plotly when the page is written: install plotly and write this " +
  "page again with 'profstack " +
  document.body.dataset.command +
  "'.";
const CHART_TOOLS = ["zoom2d", "pan2d", "resetScale2d", "toImage"];
export const CHART_FONT = 12;

let chartLibraryIs = null;

// Resolves to the library; the same promise for all charts.
function chartLibrary() {
  chartLibraryIs = chartLibraryIs || startChartLibrary();
  return chartLibraryIs;
}

// The page's policy allows this text by its hash, as it does the page's own inline script.
async function startChartLibrary() {
  const script = el("script");
  script.textContent = await unpack("plotly");
  document.head.append(script);
  script.remove();
  if (!window.Plotly) throw new Error("the library of the charts did not start");
  return window.Plotly;
}

const hasChartLibrary = () => byId("pack-plotly") !== null;

// Whatever a program could have named: the library reads <b> and &amp; in texts as markup, so that
// both signs are written out. Every text that goes into a chart passes through here.
export const plotText = (text) =>
  visible(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

// The last part of a long name is what tells it from others.
export const plotName = (text, most = 30) =>
  plotText(String(text).length > most ? "…" + String(text).slice(1 - most) : text);

// Colours and fonts of the page as they are now; `colour` takes "var(--name)" or any colour.
function chartTheme(box) {
  const style = getComputedStyle(document.documentElement);
  const body = getComputedStyle(document.body);
  const variable = (name) => style.getPropertyValue(name).trim();
  const colour = (value) => {
    const found = /^var\((--[\w-]+)\)$/.exec(value);
    return found ? variable(found[1]) : value;
  };
  return {
    colour,
    faint: (value, opacity) => faint(colour(value), opacity),
    width: Math.max(box.clientWidth, 240),
    narrow: box.clientWidth < 460,
    dark: document.documentElement.dataset.theme === "dark",
    ground: variable("--ground"),
    raised: variable("--raised"),
    lane: variable("--lane"),
    line: variable("--line"),
    strongLine: variable("--strong-line"),
    text: variable("--text"),
    soft: variable("--soft"),
    accent: variable("--accent"),
    font: body.fontFamily,
    mono: variable("--mono"),
  };
}

function faint(colour, opacity) {
  const parts = /^#(..)(..)(..)$/.exec(colour);
  return parts
    ? "rgba(" +
        parts
          .slice(1)
          .map((part) => parseInt(part, 16))
          .join(", ") +
        ", " +
        opacity +
        ")"
    : colour;
}

// Draws a chart in `box` when it scrolls into view, and again when the theme or its width changes.
// `build` takes the theme and returns {data, layout}. Returns a function that redraws. Options:
//   label     the chart's name, for screen readers
//   says      a sentence on what the chart shows
//   unseen    the sentence is for screen readers alone: the drawing has its words
//   height    pixels, or a function of the width
//   tip       from a point under the pointer to [title, [[name, value]]]
//   onClick   called with the point
//   name      file name of a saved picture
//   config    more of the library's own options
//   drawn     called with the chart's element
export function plot(box, build, options) {
  const says = options.says
    ? el("p", { class: options.unseen ? "unseen" : "quiet chart-says" }, options.says)
    : null;
  if (!hasChartLibrary()) {
    box.replaceChildren(remark(noPlotly()));
    append(box, [says]);
    return () => {};
  }
  const surface = el("div", { class: "plot", role: "group", "aria-label": options.label });
  const chart = {
    surface,
    build,
    options,
    seen: false,
    stale: true,
    width: 0,
    busy: false,
    said: says,
  };
  box.replaceChildren(surface);
  append(box, [says]);
  surface.style.height = chartHeight(chart) + "px";
  CHARTS.set(surface, chart);
  chartsInSight.observe(surface);
  chartWidths.observe(surface);
  return () => renewChart(chart);
}

const CHARTS = new Map();
const chartsInSight = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      const chart = CHARTS.get(entry.target);
      chart.seen = entry.isIntersecting;
      if (chart.seen && chart.stale) drawChart(chart);
    }
  },
  { rootMargin: "120px 0px" },
);
const chartWidths = new ResizeObserver((entries) => {
  for (const entry of entries) {
    const chart = CHARTS.get(entry.target);
    const width = Math.round(entry.contentRect.width);
    // Out of sight it has no width; a chart that was not drawn yet takes the width it then has.
    if (width && chart.width && width !== chart.width)
      requestAnimationFrame(() => renewChart(chart));
  }
});
new MutationObserver(() => {
  hideTip();
  for (const chart of CHARTS.values()) renewChart(chart);
}).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
// Paper is white, and shows what was not scrolled to as well, as far as the library is there.
let themeOnScreen = null;
window.addEventListener("beforeprint", () => {
  const root = document.documentElement;
  themeOnScreen = root.dataset.theme;
  root.dataset.theme = "light";
  if (window.Plotly)
    for (const chart of CHARTS.values()) {
      if (themeOnScreen !== "light") chart.stale = true;
      if (chart.stale && chart.surface.clientWidth) drawChart(chart);
    }
});
window.addEventListener("afterprint", () => {
  if (themeOnScreen) document.documentElement.dataset.theme = themeOnScreen;
});

function renewChart(chart) {
  chart.stale = true;
  if (!chart.surface.isConnected) {
    forgetChart(chart);
    return;
  }
  if (chart.seen) drawChart(chart);
}

function forgetChart(chart) {
  chartsInSight.unobserve(chart.surface);
  chartWidths.unobserve(chart.surface);
  CHARTS.delete(chart.surface);
  if (window.Plotly) window.Plotly.purge(chart.surface);
}

const chartHeight = ({ surface, options }) =>
  typeof options.height === "function"
    ? options.height(Math.max(surface.clientWidth, 240))
    : options.height || 270;

// One drawing at a time; what became stale meanwhile is drawn after it.
async function drawChart(chart) {
  if (chart.busy) return;
  chart.busy = true;
  try {
    const library = window.Plotly || (await chartLibrary());
    while (chart.stale && chart.surface.clientWidth) {
      chart.stale = false;
      await drawNow(library, chart);
    }
  } catch (error) {
    console.error(error);
    chart.surface.replaceChildren(
      el(
        "p",
        { class: "broken" },
        "This chart could not be drawn: " + error.message + factsElsewhere(),
      ),
    );
    chart.surface.style.height = "";
  } finally {
    chart.busy = false;
  }
}

async function drawNow(library, chart) {
  const { surface, options } = chart;
  const theme = chartTheme(surface);
  const height = chartHeight(chart);
  chart.width = surface.clientWidth;
  surface.style.height = height + "px";
  const { data, layout } = chart.build(theme);
  const first = !surface.layout;
  // What the page shows at the pointer is its own: one look everywhere, and names that are text.
  const traces = data.map((trace) => ({ hoverinfo: options.tip ? "none" : "skip", ...trace }));
  await library.react(surface, traces, chartLayout(layout, theme, height), chartConfig(options));
  if (first) listenToChart(surface, options);
  renewTicks(surface);
  describeChart(surface, options, chart.said);
  if (options.drawn) options.drawn(surface);
  surface.dataset.drawn = String(Number(surface.dataset.drawn || 0) + 1);
}

function chartLayout(layout, theme, height) {
  const { xaxis, yaxis, margin, ...rest } = layout;
  const styled = (axis) => axis && { ...axisStyle(theme), ...axis };
  return {
    autosize: false,
    width: theme.width,
    height,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    showlegend: false,
    uirevision: "kept",
    hovermode: "closest",
    hoverdistance: 24,
    dragmode: "zoom",
    font: { family: theme.font, size: CHART_FONT, color: theme.soft },
    margin: { l: 62, r: 14, t: 26, b: 42, pad: 0, ...margin },
    modebar: {
      bgcolor: theme.ground,
      color: theme.soft,
      activecolor: theme.accent,
      orientation: "h",
    },
    ...rest,
    ...(xaxis ? { xaxis: styled(xaxis) } : {}),
    ...(yaxis ? { yaxis: styled(yaxis) } : {}),
  };
}

export const axisStyle = (theme) => ({
  gridcolor: theme.line,
  linecolor: theme.strongLine,
  zeroline: false,
  tickcolor: theme.strongLine,
  automargin: false,
  fixedrange: false,
  title: { standoff: 6 },
});

function chartConfig(options) {
  return {
    displaylogo: false,
    responsive: false,
    displayModeBar: "hover",
    modeBarButtons: [CHART_TOOLS],
    showTips: false,
    doubleClick: "reset",
    typesetMath: false,
    plotGlPixelRatio: 1,
    toImageButtonOptions: { format: "png", filename: options.name || "chart", scale: 2 },
    ...options.config,
  };
}

function listenToChart(surface, options) {
  if (options.tip) {
    surface.on("plotly_hover", (found) => {
      const told = found.event && options.tip(found.points[0], found.points);
      if (told) showTip(found.event, ...told);
    });
    surface.on("plotly_unhover", hideTip);
    surface.addEventListener("mouseleave", hideTip);
  }
  if (options.onClick)
    surface.on("plotly_click", (found) => {
      hideTip();
      options.onClick(found.points[0]);
    });
  surface.on("plotly_relayout", () => renewTicks(surface));
}

// The drawing is one picture to a screen reader; its tools are buttons beside it.
function describeChart(surface, options, says) {
  surface.querySelectorAll("svg.main-svg").forEach((drawing, at) => {
    if (at) {
      drawing.setAttribute("aria-hidden", "true");
      return;
    }
    drawing.setAttribute("role", "img");
    drawing.setAttribute("aria-label", options.label + (says ? ": " + says.textContent : ""));
  });
  for (const bar of surface.querySelectorAll(".modebar"))
    bar.setAttribute("aria-label", "tools of the chart: " + options.label);
}

// ---------- Axes ----------

// The library knows no bytes and no milliseconds: tick values are chosen here, round in the page's
// units, and again after every zoom.

const MINUTES = [60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
const BYTE_STEP = 1024;

// From `from` to `to` in `unit` (s, bytes, count, plain, share). Options: log, title, width (in
// pixels, which limit the number of ticks), until (no tick beyond it), and the library's own.
export function axis(unit, from, to, options = {}) {
  const { log, title, width, ...more } = options;
  const range = log ? [Math.log10(from), Math.log10(to)] : [from, to];
  const made = {
    type: log ? "log" : "linear",
    range,
    unit,
    most: Math.max(2, Math.floor((width || 400) / 66)),
    tickmode: "array",
    ...more,
  };
  return { ...made, ...ticksOf(made), ...(title ? { title: axisTitle(title) } : {}) };
}

export const axisTitle = (text) => ({
  text: plotText(text),
  standoff: 6,
  font: { size: CHART_FONT },
});

// How many values have room beside a vertical axis.
export const tallAxis = (unit, from, to, options = {}) =>
  axis(unit, from, to, { ...options, width: (options.width || 220) * 1.9 });

// The range of a logarithmic axis around positive values; the room on each side is a factor.
export const around = (values, low, high = low) => [
  Math.min(...values) / low,
  Math.max(...values) * high,
];

function ticksOf(axisLike) {
  const log = axisLike.type === "log";
  const ends = axisLike.range.map((end) => (log ? 10 ** end : end));
  const low = Math.min(...ends);
  const high = Math.max(...ends);
  let values = log ? decades(low, high, axisLike.most) : [];
  if (values.length < 2) values = roundValues(low, high, axisLike.unit, axisLike.most);
  // Beyond `until` the axis has something else.
  if (isNumber(axisLike.until)) values = values.filter((value) => value <= axisLike.until);
  return { tickvals: values, ticktext: tickTexts(values, axisLike.unit, log) };
}

// 1, 2 and 5 of each decade, or as many of the decades as have room.
function decades(low, high, most) {
  const first = Math.floor(Math.log10(low));
  const last = Math.ceil(Math.log10(high));
  const inside = (value) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9);
  const all = [];
  for (let decade = first; decade <= last; decade += 1)
    for (const digit of [1, 2, 5]) all.push(Number((digit * 10 ** decade).toPrecision(12)));
  const fine = all.filter(inside);
  if (fine.length <= most + 1) return fine;
  const whole = fine.filter(
    (value) => Math.abs(Math.log10(value) % 1) < 1e-9 || Math.abs(Math.log10(value) % 1) > 1 - 1e-9,
  );
  // Within less than two decades 1, 2 and 5 are too many and the decades too few: every other one.
  if (whole.length < 2)
    return fine.filter((_value, at) => at % Math.ceil(fine.length / most) === 0);
  return whole.filter((_value, at) => at % Math.ceil(whole.length / most) === 0);
}

export function roundValues(low, high, unit, most) {
  const step = roundStep((high - low) / most, unit, high);
  const values = [];
  for (
    let at = Math.ceil(low / step - 1e-9);
    at * step <= high + 1e-9 * step && values.length < 40;
    at += 1
  )
    values.push(Number((at * step).toPrecision(12)));
  return values;
}

function roundStep(least, unit, high) {
  if (unit === "s" && least > 30)
    return MINUTES.find((one) => one >= least) || 86400 * Math.ceil(least / 86400);
  // Round sizes are round in their own unit: 320 MiB, not 300,000,000 bytes.
  const scale =
    unit === "bytes" ? BYTE_STEP ** Math.max(0, Math.floor(Math.log2(Math.max(high, 1)) / 10)) : 1;
  const power = 10 ** Math.floor(Math.log10(least / scale));
  const step = [1, 2, 5, 10]
    .map((digit) => digit * power)
    .find((one) => one >= (least / scale) * (1 - 1e-9));
  return unit === "plain" ? Math.max(1, Math.round(step)) : step * scale;
}

function tickTexts(values, unit, log) {
  const largest = Math.max(...values.map(Math.abs));
  // One unit along a linear axis of times, with the digits that tell its values apart.
  const format =
    unit === "s" && !log && largest < 60
      ? fineSeconds(values.length > 1 ? values : [0, ...values])
      : FORMATS[unit] || String;
  return values.map((value) => plotText(value === 0 ? "0" : tickText(format(value))));
}

// Axis values are round: 50 ms and 1.5 s say it without idle zeros.
export const tickText = (text) =>
  text.replace(/(\.\d*?)0+(?=\s|$)/, "$1").replace(/\.(?=\s|$)/, "");

// After a zoom other values are in sight.
function renewTicks(surface) {
  const changed = {};
  for (const [key, one] of Object.entries(surface.layout || {})) {
    if (!/^[xy]axis/.test(key) || !one?.unit || !one.range) continue;
    const { tickvals, ticktext } = ticksOf(one);
    if (JSON.stringify(tickvals) === JSON.stringify(one.tickvals)) continue;
    changed[key + ".tickvals"] = tickvals;
    changed[key + ".ticktext"] = ticktext;
  }
  if (Object.keys(changed).length) window.Plotly.relayout(surface, changed);
}

// Pixel positions in a frame with two logarithmic axes, for placing labels apart from each other.
export function logFrame(width, height, xs, ys) {
  const part = (value, [from, to]) => Math.log(value / from) / Math.log(to / from);
  return {
    width,
    height,
    x: (value) => part(value, xs) * width,
    y: (value) => (1 - part(value, ys)) * height,
  };
}

export function pointBox(frame, x, y, size) {
  const px = frame.x(x);
  const py = frame.y(y);
  return { left: px - size, right: px + size, top: py - size, bottom: py + size };
}

// Takes the first of some boxes that lies in the frame and on nothing; null where there is none.
export function freeBox(frame, taken, boxes) {
  const free = boxes.find(
    (box) =>
      box.left >= 0 &&
      box.right <= frame.width &&
      box.top >= -4 &&
      box.bottom <= frame.height &&
      !taken.some(
        (other) =>
          box.left < other.right &&
          box.right > other.left &&
          box.top < other.bottom &&
          box.bottom > other.top,
      ),
  );
  if (free) taken.push(free);
  return free || null;
}

// ---------- Slices and levels behind a chart ----------

const MOST_BANDS = 150;

// A band over a range of the x axis, behind the marks.
export const band = (from, to, colour) => ({
  type: "rect",
  layer: "below",
  xref: "x",
  yref: "paper",
  x0: from,
  x1: to,
  y0: 0,
  y1: 1,
  line: { width: 0 },
  fillcolor: colour,
});

// Slices as a background: ranges are [from, to, slice] in the units of the x axis.
export function sliceBands(theme, ranges) {
  if (ranges.length > MOST_BANDS) return [];
  return ranges.map(([from, to, slice]) =>
    band(from, to, theme.faint(kindColour(slice.kind), theme.dark ? 0.16 : 0.1)),
  );
}

// A level through the whole chart, labelled where there is room. On a logarithmic axis the library
// takes the logarithm of a label's position, but the plain value of a line's.
const LEVEL_ROOM = 88;
export const levelRoom = (theme, value) => (isNumber(value) && !theme.narrow ? LEVEL_ROOM : 14);

export function levelLine(theme, value, words, log) {
  if (!isNumber(value)) return { shapes: [], annotations: [] };
  return {
    shapes: [
      {
        type: "line",
        xref: "paper",
        yref: "y",
        x0: 0,
        x1: 1,
        y0: value,
        y1: value,
        line: { color: theme.text, width: 1, dash: "dash" },
        opacity: 0.65,
      },
    ],
    annotations: theme.narrow
      ? []
      : [
          {
            xref: "paper",
            yref: "y",
            x: 1,
            y: log ? Math.log10(value) : value,
            xanchor: "left",
            yanchor: "middle",
            align: "left",
            xshift: 4,
            showarrow: false,
            text: words.map(plotText).join("<br>"),
            font: { color: theme.text, size: CHART_FONT },
          },
        ],
  };
}

// ---------- Bars ----------

const SERIES = [
  "var(--kind-clean)",
  "var(--kind-torch)",
  "var(--kind-cprofile)",
  "var(--kind-nvtx)",
  "var(--kind-memory)",
  "var(--kind-warmup)",
];
export const seriesColour = (at) => SERIES[at % SERIES.length];

// Marks differ in shape as well as in colour: the library's names, and the same signs for text.
const MARKS = {
  circle: "●",
  square: "■",
  "triangle-up": "▲",
  diamond: "◆",
  x: "✕",
  "circle-open": "○",
};
export const MARK_ORDER = ["circle", "square", "triangle-up", "diamond"];
export const markSample = (kind, colour) => {
  const mark = el("span", { class: "mark-sample", "aria-hidden": "true" }, MARKS[kind]);
  mark.style.color = colour;
  return mark;
};

// Rows are {name, bars: [{value, low, high, points, colour, name, text, tip}]}. A whisker beyond
// the scale is cut at its end and marked. Options are those of plot().
export function barChart(box, rows, options) {
  const there = rows.filter((row) => row.bars.length);
  if (!there.length) return;
  plot(box, (theme) => barsChart(theme, there), {
    tip: (point) => point.customdata,
    height: (width) => barsHeight(there, width),
    ...options,
  });
}

const BAR_ROOM = 22;
export const widthOf = (text) => String(text).length * 6.8;
const widest = (texts) => Math.max(...texts.map(widthOf));
// Room for names beside the bars; none in a narrow chart, where they are above them.
const nameWidth = (rows, width) =>
  width < 460
    ? 0
    : Math.min(Math.round(width * 0.24), Math.ceil(widest(rows.map((row) => row.name))) + 12);

// Where names have no room beside their bars, each is above its own.
function barsHeight(rows, width) {
  return BAR_EDGES.t + BAR_EDGES.b + placeBars(rows, nameWidth(rows, width) > 0).height;
}

const BAR_EDGES = { t: 28, b: 40 };
const valueText = (bar, narrow) =>
  narrow ? bar.short || bar.text : (bar.name ? bar.name + " " : "") + bar.text;

function barsChart(theme, rows) {
  const bars = rows.flatMap((row) => row.bars);
  const names = nameWidth(rows, theme.width);
  const placed = placeBars(rows, names > 0);
  const longest = Math.max(...bars.map((bar) => bar.value));
  const reach = Math.max(
    ...bars.flatMap((bar) => [bar.value, bar.high || 0, ...(bar.points || [])]),
  );
  const end = (Math.min(reach, 1.8 * longest) || 1) * 1.03;
  const margin = {
    ...BAR_EDGES,
    l: names ? names + 12 : 10,
    r: widest(bars.map((bar) => valueText(bar, theme.narrow))) + 18,
  };
  const layout = { margin, shapes: [], annotations: [] };
  const words = (x, y, text, options) =>
    layout.annotations.push({
      xref: "paper",
      x,
      yref: "y",
      y,
      showarrow: false,
      text,
      font: { color: theme.text },
      ...options,
    });
  for (const { row, top, bottom, middle } of placed.rows) {
    if (names)
      words(0, middle, wrapped(row.name, Math.floor(names / 6.4)), {
        xanchor: "right",
        xshift: -8,
        align: "right",
        font: { color: theme.text, size: 13 },
      });
    else
      words(0, top + 11, wrapped(row.name, 60), {
        xanchor: "left",
        align: "left",
        font: { color: theme.text, size: 13 },
      });
    if (bottom < placed.height)
      layout.shapes.push({
        type: "line",
        xref: "paper",
        yref: "y",
        x0: 0,
        x1: 1,
        y0: bottom,
        y1: bottom,
        line: { color: theme.line, width: 1 },
      });
  }
  for (const { bar, y } of placed.bars) {
    words(1, y, plotText(valueText(bar, theme.narrow)), {
      xanchor: "left",
      xshift: 8,
      align: "left",
    });
    if (bar.high > end)
      words(1, y, "›", { xanchor: "right", font: { color: theme.text, size: 16 } });
  }
  const points = placed.bars.flatMap(({ bar, y }) =>
    (bar.points || []).map((x) => ({
      x,
      y,
      tip: [bar.tip[0], [["a fresh process", formatSeconds(x)]]],
    })),
  );
  const data = [barTrace(theme, placed.bars)];
  if (points.length)
    data.push({
      type: "scatter",
      mode: "markers",
      name: "fresh processes",
      x: points.map((one) => one.x),
      y: points.map((one) => one.y),
      customdata: points.map((one) => one.tip),
      marker: { color: theme.ground, size: 8, line: { color: theme.text, width: 1.5 } },
    });
  return {
    data,
    layout: {
      ...layout,
      bargap: 0,
      xaxis: axis("s", 0, end, { width: theme.width - margin.l - margin.r }),
      yaxis: {
        range: [placed.height, 0],
        fixedrange: true,
        showticklabels: false,
        showgrid: false,
        ticks: "",
      },
    },
  };
}

function barTrace(theme, placed) {
  const known = ({ bar }) => isNumber(bar.low) && isNumber(bar.high);
  return {
    type: "bar",
    orientation: "h",
    name: "times",
    x: placed.map(({ bar }) => bar.value),
    y: placed.map(({ y }) => y),
    width: placed.map(() => BAR_ROOM - 5),
    customdata: placed.map(({ bar }) => bar.tip),
    marker: { color: placed.map(({ bar }) => theme.colour(bar.colour)), opacity: 0.72 },
    error_x: {
      type: "data",
      symmetric: false,
      array: placed.map((one) => (known(one) ? one.bar.high - one.bar.value : null)),
      arrayminus: placed.map((one) => (known(one) ? one.bar.value - one.bar.low : null)),
      color: theme.text,
      thickness: 1.5,
      width: 5,
    },
  };
}

// Places down the chart in pixels: rows one under the other, their bars within them.
function placeBars(rows, beside) {
  const found = { rows: [], bars: [], height: 0 };
  for (const row of rows) {
    const top = found.height;
    const first = top + (beside ? 7 : 25);
    const height = row.bars.length * BAR_ROOM;
    for (const [at, bar] of row.bars.entries())
      found.bars.push({ bar, y: first + (at + 0.5) * BAR_ROOM });
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
    if (line && line.length + word.length >= most) lines.push(word);
    else lines[lines.length - 1] = line ? line + " " + word : word;
  }
  return lines.map((line) => plotName(line, most + 12)).join("<br>");
}

// ---------- Intervals without the library ----------

// Rows on one zoomed scale: {name, value, low, high, points, colour, words}.
export function spanRows(rows) {
  const ends = rows
    .flatMap((row) => [row.value, row.low, row.high, ...(row.points || [])])
    .filter(isNumber);
  const room = (Math.max(...ends) - Math.min(...ends)) * 0.08 || Math.max(...ends) * 0.01;
  const from = Math.min(...ends) - room;
  const to = Math.max(...ends) + room;
  const at = (value) => (100 * (value - from)) / (to - from) + "%";
  const piece = (name, left, right, colour) => {
    const one = el("span", { class: name });
    one.style.left = at(left);
    if (right !== null) one.style.width = `calc(${at(right)} - ${at(left)})`;
    one.style.background = colour;
    return one;
  };
  return el(
    "div",
    { class: "spans" },
    rows.map((row) =>
      el(
        "div",
        { class: "span-row" },
        el("div", { class: "bar-name" }, row.name),
        el(
          "div",
          { class: "interval wide", "aria-hidden": "true" },
          isNumber(row.low) && isNumber(row.high)
            ? piece("range", row.low, row.high, row.colour)
            : null,
          (row.points || []).filter(isNumber).map((point) => piece("dot", point, null, row.colour)),
          isNumber(row.value) ? piece("point", row.value, null, "var(--text)") : null,
        ),
        el("div", { class: "bar-value" }, row.words),
      ),
    ),
    el(
      "div",
      { class: "span-row quiet ends", "aria-hidden": "true" },
      el("div"),
      el(
        "div",
        { class: "span-ends" },
        el("span", {}, fineSeconds([from, to], 0.5)(from)),
        el("span", {}, fineSeconds([from, to], 0.5)(to)),
      ),
      el("div"),
    ),
  );
}

// ---------- Hierarchies ----------
// Pictures of hierarchies: icicle, flame (an icicle that grows upwards), sunburst and treemap.
//
// An area is a node's value; the values of what lies in a node never add up to more than its own.
// The caller gives `areas`, a list with each parent before its children: {name, value, parent (its
// index, -1 for the first), colour, node}. It also handles clicks and tooltips: the library's own
// zoom is not used, since it can only show what was drawn before.

export const PICTURES = [
  ["icicle", "icicle"],
  ["flame", "flame"],
  ["sunburst", "sunburst"],
  ["treemap", "treemap"],
];
const MOST_AREAS = 700;
export const LEAST_AREA = 0.0005; // of the whole picture: less than a pixel's width
const LETTER = 6.6; // pixels, of the page's text at the size of the labels
const ICICLE_ROW = 26;

// spec: box, label(), kind(), areas() (called by redraw), tip(area) => [title, lines], open(area),
// seen(area) (under the pointer or the keys; null: none), marked(area) => "match" | "other" | null
export function drawHierarchy(spec) {
  const state = { areas: [], cursor: -1 };
  const options = {
    label: "",
    name: "hierarchy",
    config: { modeBarButtons: [["toImage"]] },
    height: (width) => pictureHeight(spec.kind(), state.areas, width),
    tip: (point) => {
      const area = state.areas[point.pointNumber];
      return area && spec.tip(area);
    },
    drawn: listen,
  };
  let renew = null;
  const listening = new WeakSet();

  function listen(surface) {
    if (listening.has(surface)) return;
    listening.add(surface);
    for (const type of ["icicle", "sunburst", "treemap"]) {
      surface.on("plotly_" + type + "click", (event) => {
        const area = state.areas[event.points[0].pointNumber];
        hideTip();
        if (area) spec.open(area);
        return false; // no zoom of the library's own
      });
    }
    surface.on("plotly_hover", (found) =>
      spec.seen(state.areas[found.points[0].pointNumber] || null),
    );
    surface.on("plotly_unhover", () => spec.seen(state.areas[state.cursor] || null));
  }

  function redraw() {
    state.areas = spec.areas();
    if (state.cursor >= state.areas.length) state.cursor = -1;
    options.label = spec.label();
    if (renew) renew();
    else renew = plot(spec.box, (theme) => picture(spec, state, theme), options);
    spec.box.setAttribute(
      "aria-label",
      options.label + ". Arrow keys move, Enter opens, Backspace goes up.",
    );
  }

  function move(at) {
    if (at === undefined || at < 0) return;
    state.cursor = at;
    spec.seen(state.areas[at]);
    tell(state.areas[at]);
    renew();
  }

  const tell = (area) =>
    announce(
      [
        area.name,
        area.told,
        state.areas[0].value > 0
          ? formatPercent(area.value / state.areas[0].value) + " of what is drawn"
          : null,
      ]
        .filter(Boolean)
        .join(", "),
    );
  // What is opened by a key may be its own outermost area, or the one that it was opened from.
  const openBy = (area) => {
    state.cursor = -1;
    spec.open(area);
    tell(state.areas[0]);
  };

  spec.box.setAttribute("tabindex", "0");
  spec.box.setAttribute("role", "group");
  spec.box.addEventListener("keydown", (event) => {
    const at = Math.max(state.cursor, 0);
    const area = state.areas[at];
    const beside = state.areas
      .map((_other, place) => place)
      .filter((place) => state.areas[place].parent === area.parent);
    const ways = {
      ArrowDown: state.areas.findIndex((other) => other.parent === at),
      ArrowUp: area.parent,
      ArrowRight: beside[beside.indexOf(at) + 1],
      ArrowLeft: beside[beside.indexOf(at) - 1],
    };
    const acts = {
      Enter: () => openBy(area),
      " ": () => openBy(area),
      Backspace: () => openBy(state.areas[0]),
      Escape: () => {
        state.cursor = -1;
        spec.seen(null);
        renew();
      },
    };
    if (event.target !== spec.box || !(event.key in ways || event.key in acts)) return;
    event.preventDefault();
    if (event.key in ways) move(state.cursor < 0 ? 0 : ways[event.key]);
    else acts[event.key]();
  });
  return redraw;
}

function levelsOf(areas) {
  const levels = [];
  areas.forEach((area, at) => {
    levels[at] = area.parent < 0 ? 0 : levels[area.parent] + 1;
  });
  return levels;
}

function pictureHeight(kind, areas, width) {
  if (kind === "sunburst") return Math.min(width, 560);
  if (kind === "treemap") return width < 560 ? 460 : 480;
  const levels = levelsOf(areas).reduce((most, level) => Math.max(most, level), 0) + 1;
  return Math.min(Math.max(levels * ICICLE_ROW, 234), 900);
}

function picture(spec, state, theme) {
  const kind = spec.kind();
  const areas = state.areas;
  const whole = areas.length ? areas[0].value : 0;
  const marks = areas.map((area) => spec.marked(area));
  const colour = (area, at) =>
    marks[at] === "other" ? theme.faint(area.colour, 0.28) : theme.colour(area.colour);
  const chosen = (at) => at === state.cursor || marks[at] === "match";
  const trace = {
    type: kind === "flame" ? "icicle" : kind,
    branchvalues: "total",
    sort: false,
    count: "branches",
    ids: areas.map((_area, at) => String(at)),
    labels: areas.map((area) => plotText(area.name)),
    values: areas.map((area) => area.value),
    parents: areas.map((area) => (area.parent < 0 ? "" : String(area.parent))),
    text: pictureTexts(kind, areas, whole, theme),
    textinfo: "text",
    marker: {
      colors: areas.map(colour),
      line: {
        width: areas.map((_area, at) => (chosen(at) ? 2 : 1)),
        color: areas.map((_area, at) => (chosen(at) ? theme.text : theme.ground)),
      },
    },
    textfont: { color: theme.text, size: CHART_FONT, family: theme.font, shadow: "none" },
    domain: { x: [0, 1], y: [0, 1] },
    leaf: { opacity: 1 },
    rotation: 90,
  };
  if (kind !== "sunburst")
    Object.assign(trace, { pathbar: { visible: false }, tiling: tilingOf(kind) });
  if (kind !== "sunburst") delete trace.rotation;
  else trace.insidetextorientation = "auto";
  if (kind === "treemap") trace.marker.pad = { t: 20, l: 2, r: 2, b: 2 };
  if (kind === "icicle" || kind === "flame") trace.textposition = "middle left";
  return {
    data: [trace],
    layout: {
      margin: { l: 0, r: 0, t: 0, b: 0 },
      hovermode: "closest",
      uniformtext: { mode: "hide", minsize: 10 },
    },
  };
}

function tilingOf(kind) {
  if (kind === "treemap") return { packing: "squarify", pad: 2 };
  return { orientation: "v", pad: 1, ...(kind === "flame" ? { flip: "y" } : {}) };
}

// As much of a name as its area has room for, and its value where there is room for both.
function pictureTexts(kind, areas, whole, theme) {
  const levels = levelsOf(areas);
  const rings = levels.reduce((most, level) => Math.max(most, level), 0) + 1;
  const ring = Math.min(theme.width, 560) / 2 / rings;
  return areas.map((area, at) => {
    const share = whole > 0 ? area.value / whole : 0;
    if (kind === "treemap")
      return share * theme.width * 480 > 900
        ? plotText(cutText(area.name, 32)) + (area.told ? "  " + plotText(area.told) : "")
        : "";
    const room =
      kind === "sunburst"
        ? at
          ? share * Math.PI * 2 * ring * (levels[at] + 0.5) > 11
            ? Math.floor((ring - 4) / (LETTER - 0.6))
            : 0
          : Math.floor((ring * 1.7) / LETTER)
        : Math.floor((share * theme.width - 10) / LETTER);
    if (room < 3) return "";
    const full = area.name + "  " + (area.told || "");
    return plotText(
      kind !== "sunburst" && area.told && full.length <= room ? full : cutText(area.name, room),
    );
  });
}

export const cutText = (text, most) => (text.length <= most ? text : text.slice(0, most - 1) + "…");

// Of a tree of nodes ({name, value, children, count}) the areas under `root`: the largest, and what
// is left out of each as one area with its sum. The first node of all is never left out.
export function largestAreas(root, most = MOST_AREAS, least = LEAST_AREA) {
  const order = [];
  const work = [root];
  while (work.length) {
    const node = work.pop();
    if (!(node.value > 0) && node !== root) continue;
    order.push(node);
    for (let at = node.children.length - 1; at >= 0; at -= 1) work.push(node.children[at]);
  }
  const places = new Map(order.map((node, at) => [node, at]));
  const kept = new Set(
    order
      .slice()
      .sort((a, b) => b.value - a.value || places.get(a) - places.get(b))
      .slice(0, most)
      .filter(
        (node) => node === root || (node.kind !== "rest" && node.value >= least * root.value),
      ),
  );
  const areas = [];
  const add = (node, parent) => {
    const at = areas.push({ ...areaOf(node), parent }) - 1;
    const inside = node.children.filter((child) => kept.has(child));
    const left = node.children.filter((child) => child.value > 0 && !kept.has(child));
    for (const child of inside) add(child, at);
    if (left.length === 1 && !left[0].children.length)
      areas.push({ ...areaOf(left[0]), parent: at });
    else if (left.length) areas.push(restArea(left, node, at));
  };
  add(root, -1);
  return areas;
}

// The nodes of a picture as page data has it ({names, parents, kinds, counts}), under one root:
// {root, nodes (each with name, kind, count, parent, children, path), order (parents first)}.
export function pictureNodes(picture) {
  const root = {
    name: "the step",
    path: null,
    kind: "all",
    own: 0,
    parent: null,
    children: [],
    colour: "var(--lane)",
    count: 0,
  };
  const nodes = picture.names.map((name, at) => ({
    name,
    kind: picture.kinds[at],
    count: picture.counts[at],
    children: [],
  }));
  nodes.forEach((node, at) => {
    node.parent = picture.parents[at] < 0 ? root : nodes[picture.parents[at]];
    node.parent.children.push(node);
  });
  const order = [root];
  for (let at = 0; at < order.length; at += 1) order.push(...order[at].children);
  for (const node of order.slice(1)) {
    const rest = node.kind === "rest";
    node.path = rest ? null : node.parent.path ? node.parent.path + "." + node.name : node.name;
    if (rest) node.name = formatWhole(node.count) + " smaller";
  }
  return { root, nodes, order };
}

const areaOf = (node) => ({
  name: node.name,
  value: node.value,
  colour: node.colour,
  told: node.told,
  node,
});

function restArea(left, parent, at) {
  const count = left.reduce((sum, node) => sum + countOf(node), 0);
  const value = left.reduce((sum, node) => sum + node.value, 0);
  return {
    name: formatWhole(count) + " smaller",
    value,
    colour: "var(--builtin)",
    parent: at,
    node: { rest: true, count, parent, value, children: [], name: formatWhole(count) + " smaller" },
  };
}

function countOf(node) {
  let count = 0;
  const work = [node];
  while (work.length) {
    const one = work.pop();
    count += one.count ?? 1;
    work.push(...one.children);
  }
  return count;
}

// The way from the outermost node to this one, as buttons; the last is where the reader is.
export function wayThrough(node, open) {
  const way = [];
  for (let one = node; one; one = one.parent) way.unshift(one);
  return way.flatMap((one, at) => {
    const item =
      one === node
        ? el("b", { "aria-current": "true" }, one.name)
        : el("button", { type: "button", onclick: () => open(one) }, one.name);
    return at ? [quiet(" › "), item] : [item];
  });
}

// What lies in a node as buttons, the largest first: the picture without a mouse.
const MOST_INSIDE = 8;
export function insideList(node, whole, told, open) {
  const inside = node.children.filter((child) => child.value > 0).sort((a, b) => b.value - a.value);
  if (!inside.length) return null;
  const list = el("ul", { class: "inside" });
  const fill = (most) => {
    list.replaceChildren(
      ...inside
        .slice(0, most)
        .map((child) =>
          el(
            "li",
            {},
            el(
              "button",
              { type: "button", class: "link", title: child.name, onclick: () => open(child) },
              swatch(child.colour),
              child.name,
            ),
            el("span", {}, told(child)),
            quiet(formatPercent(child.value / whole)),
          ),
        ),
    );
    if (inside.length > most)
      list.append(
        el(
          "li",
          {},
          el(
            "button",
            { type: "button", class: "link", onclick: () => fill(most + 40) },
            "and " + (inside.length - most) + " more",
          ),
        ),
      );
  };
  fill(MOST_INSIDE);
  return [el("h4", {}, "inside it"), list];
}

// Marks the row of an address and puts the address into the browser's line, without scrolling: the
// reader is looking at the picture.
export function pointAt(box, address) {
  for (const other of document.querySelectorAll(".marked")) other.classList.remove("marked");
  const way = [...box.querySelectorAll("a.anchor")].find(
    (one) => one.getAttribute("href") === address,
  );
  if (way) way.closest("tr").classList.add("marked");
  if (!inFrame)
    try {
      window.history.replaceState(null, "", address);
    } catch {
      /* some frames allow no change of the address */
    }
}
