// Charts: the library, made a script when the first chart comes into sight, and what all charts share.
const NO_PLOTLY = "Charts need the package plotly when the page is written: install plotly and write this page again with 'profstack report'.";
const CHART_TOOLS = ["zoom2d", "pan2d", "resetScale2d", "toImage"];
const CHART_FONT = 12;

let chartLibraryIs = null;

// Resolves to the library; the same promise for all charts.
function chartLibrary() {
  chartLibraryIs = chartLibraryIs || startChartLibrary();
  return chartLibraryIs;
}

// The policy of the page allows this very text by its hash, as an inline script like the page's own.
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
const plotText = (text) => visible(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

// The last part of a long name is what tells it from others.
const plotName = (text, most = 30) => plotText(String(text).length > most ? "…" + String(text).slice(1 - most) : text);

// Colours and fonts of the page as they are now; `colour` takes "var(--name)" or any colour.
function chartTheme(box) {
  const style = getComputedStyle(document.documentElement), body = getComputedStyle(document.body);
  const variable = (name) => style.getPropertyValue(name).trim();
  const colour = (value) => { const found = /^var\((--[\w-]+)\)$/.exec(value); return found ? variable(found[1]) : value; };
  return { colour, faint: (value, opacity) => faint(colour(value), opacity), width: Math.max(box.clientWidth, 240), narrow: box.clientWidth < 460, dark: document.documentElement.dataset.theme === "dark",
    ground: variable("--ground"), raised: variable("--raised"), lane: variable("--lane"), line: variable("--line"), strongLine: variable("--strong-line"), text: variable("--text"), soft: variable("--soft"), accent: variable("--accent"),
    font: body.fontFamily, mono: variable("--mono") };
}

function faint(colour, opacity) {
  const parts = /^#(..)(..)(..)$/.exec(colour);
  return parts ? "rgba(" + parts.slice(1).map((part) => parseInt(part, 16)).join(", ") + ", " + opacity + ")" : colour;
}

// A chart in `box`: drawn when it comes into sight, again when light turns to dark or its width
// changes. `build` takes the theme and gives {data, layout}. Options: label (what it is), says (a
// sentence that tells what it shows, for those who do not see it too), unseen (the sentence is for
// them alone: everybody else reads it in the drawing), height (pixels or a function
// of the width), tip (a point under the pointer to [title, [[name, value]]]), onClick (a point), name
// (of a saved picture), config, drawn (called with the chart's element). Returns a function that redraws.
function plot(box, build, options) {
  const says = options.says ? el("p", { class: options.unseen ? "unseen" : "quiet chart-says" }, options.says) : null;
  if (!hasChartLibrary()) {
    box.replaceChildren(el("p", { class: "quiet" }, NO_PLOTLY));
    append(box, [says]);
    return () => {};
  }
  const surface = el("div", { class: "plot", role: "group", "aria-label": options.label });
  const chart = { surface, build, options, seen: false, stale: true, width: 0, busy: false, said: says };
  box.replaceChildren(surface);
  append(box, [says]);
  surface.style.height = chartHeight(chart) + "px";
  CHARTS.set(surface, chart);
  chartsInSight.observe(surface);
  chartWidths.observe(surface);
  return () => renewChart(chart);
}

const CHARTS = new Map();
const chartsInSight = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const chart = CHARTS.get(entry.target);
    chart.seen = entry.isIntersecting;
    if (chart.seen && chart.stale) drawChart(chart);
  }
}, { rootMargin: "120px 0px" });
const chartWidths = new ResizeObserver((entries) => {
  for (const entry of entries) {
    const chart = CHARTS.get(entry.target), width = Math.round(entry.contentRect.width);
    // Out of sight it has no width; a chart that was not drawn yet takes the width it then has.
    if (width && chart.width && width !== chart.width) requestAnimationFrame(() => renewChart(chart));
  }
});
new MutationObserver(() => { hideTip(); for (const chart of CHARTS.values()) renewChart(chart); }).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
// Paper is white, and shows what was not scrolled to as well, as far as the library is there.
let themeOnScreen = null;
window.addEventListener("beforeprint", () => {
  const root = document.documentElement;
  themeOnScreen = root.dataset.theme;
  root.dataset.theme = "light";
  if (window.Plotly) for (const chart of CHARTS.values()) {
    if (themeOnScreen !== "light") chart.stale = true;
    if (chart.stale && chart.surface.clientWidth) drawChart(chart);
  }
});
window.addEventListener("afterprint", () => { if (themeOnScreen) document.documentElement.dataset.theme = themeOnScreen; });

function renewChart(chart) {
  chart.stale = true;
  if (!chart.surface.isConnected) { forgetChart(chart); return; }
  if (chart.seen) drawChart(chart);
}

function forgetChart(chart) {
  chartsInSight.unobserve(chart.surface);
  chartWidths.unobserve(chart.surface);
  CHARTS.delete(chart.surface);
  if (window.Plotly) window.Plotly.purge(chart.surface);
}

const chartHeight = ({ surface, options }) => (typeof options.height === "function" ? options.height(Math.max(surface.clientWidth, 240)) : options.height || 270);

// One drawing at a time; what became stale meanwhile is drawn after it.
async function drawChart(chart) {
  if (chart.busy) return;
  chart.busy = true;
  try {
    const library = window.Plotly || await chartLibrary();
    while (chart.stale && chart.surface.clientWidth) {
      chart.stale = false;
      await drawNow(library, chart);
    }
  } catch (error) {
    console.error(error);
    chart.surface.replaceChildren(el("p", { class: "broken" }, "This chart could not be drawn: " + error.message + ". The figures are in report.json."));
    chart.surface.style.height = "";
  } finally { chart.busy = false; }
}

async function drawNow(library, chart) {
  const { surface, options } = chart;
  const theme = chartTheme(surface), height = chartHeight(chart);
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
  return { autosize: false, width: theme.width, height, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, uirevision: "kept", hovermode: "closest", hoverdistance: 24, dragmode: "zoom",
    font: { family: theme.font, size: CHART_FONT, color: theme.soft }, margin: { l: 62, r: 14, t: 26, b: 42, pad: 0, ...margin },
    modebar: { bgcolor: theme.ground, color: theme.soft, activecolor: theme.accent, orientation: "h" }, ...rest, ...(xaxis ? { xaxis: styled(xaxis) } : {}), ...(yaxis ? { yaxis: styled(yaxis) } : {}) };
}

const axisStyle = (theme) => ({ gridcolor: theme.line, linecolor: theme.strongLine, zeroline: false, tickcolor: theme.strongLine, automargin: false, fixedrange: false, title: { standoff: 6 } });

function chartConfig(options) {
  return { displaylogo: false, responsive: false, displayModeBar: "hover", modeBarButtons: [CHART_TOOLS], showTips: false, doubleClick: "reset", typesetMath: false, plotGlPixelRatio: 1,
    toImageButtonOptions: { format: "png", filename: options.name || "chart", scale: 2 }, ...options.config };
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
  if (options.onClick) surface.on("plotly_click", (found) => { hideTip(); options.onClick(found.points[0]); });
  surface.on("plotly_relayout", () => renewTicks(surface));
}

// The drawing is one picture to a screen reader; its tools are buttons beside it.
function describeChart(surface, options, says) {
  surface.querySelectorAll("svg.main-svg").forEach((drawing, at) => {
    if (at) { drawing.setAttribute("aria-hidden", "true"); return; }
    drawing.setAttribute("role", "img");
    drawing.setAttribute("aria-label", options.label + (says ? ": " + says.textContent : ""));
  });
  for (const bar of surface.querySelectorAll(".modebar")) bar.setAttribute("aria-label", "tools of the chart: " + options.label);
}
