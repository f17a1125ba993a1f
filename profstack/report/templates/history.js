// The history of each program: its changes in words, a chart of the runs, and a line for each run.

import { around, axis, plot, plotText, tallAxis } from "./charts.js";
import {
  append,
  byId,
  el,
  formatBytes,
  formatSeconds,
  isNumber,
  NONE,
  none,
  plural,
  remark,
} from "./dom.js";
import { drop } from "./views.js";

export const historyView = {
  id: "overview",
  title: "History",
  needs: [],
  has: () => true,
  parts: [
    ["programs", drawPrograms],
    ["left-out", drawLeftOut],
  ],
};

const FIGURES = {
  step: { key: "median_s", unit: "s", words: formatSeconds, name: "median clean step" },
  memory: {
    key: "memory_peak_bytes",
    unit: "bytes",
    words: formatBytes,
    name: "memory at the peak of a step",
  },
};

const grew = (change) => change.after > change.before;
const percent = (change) => {
  const share = 100 * (change.after / change.before - 1);
  return (share > 0 ? "+" : "−") + Math.abs(share).toFixed(1) + " %";
};
const dateOf = (run) => run.started_at.slice(0, 16).replace("T", " ");
const commitOf = (run) => (run.commit ? run.commit.slice(0, 8) + (run.changed ? "+" : "") : NONE);

function drawPrograms({ facts: { programs } }) {
  for (const program of programs) {
    const box = el("div", { class: "program" });
    byId("programs").append(box);
    append(box, [
      el("h3", { class: "part" }, program.script + ", " + plural(program.runs.length, "run")),
      changesList(program),
      program.reasons.map((reason) => remark("Not searched for changes: " + reason + ".")),
    ]);
    for (const figure of Object.keys(FIGURES)) drawChart(box, program, figure);
    box.append(runTable(program));
  }
}

function changesList({ changes, reasons }) {
  if (!changes.length && reasons.length < Object.keys(FIGURES).length)
    return remark("No change that is more than noise.");
  const line = (change) => el("li", { class: grew(change) ? "grew" : "shrank" }, change.sentence);
  return changes.length ? el("ul", { class: "changes" }, changes.map(line)) : null;
}

function drawChart(box, program, name) {
  const { key, words, name: label } = FIGURES[name];
  const known = program.runs.flatMap((run, at) => (isNumber(run[key]) ? [[at, run[key]]] : []));
  if (known.length < 2) return;
  // Memory that never changed needs no picture.
  if (name !== "step" && known.every(([, value]) => value === known[0][1])) return;
  const chart = el("div", {});
  box.append(chart);
  plot(chart, (theme) => historyChart(theme, program, name, known), {
    label: label + " of each run of " + program.script,
    says: label + ", the oldest run first; lines are the medians between changes.",
    height: name === "step" ? 300 : 200,
    name: "history-" + name,
    tip: ({ x }) => {
      const run = program.runs[x];
      const span = name === "step" && isNumber(run.ci95_low_s);
      return [
        dateOf(run),
        [
          ["commit", commitOf(run)],
          [label, words(run[key])],
          span ? ["95 %", words(run.ci95_low_s) + " to " + words(run.ci95_high_s)] : null,
          ["recording", run.path],
        ],
      ];
    },
  });
}

function historyChart(theme, program, name, known) {
  const { key, unit } = FIGURES[name];
  const { runs } = program;
  const changes = program.changes.filter((change) => change.figure === name);
  const changed = new Set(changes.map((change) => change.run));
  const ends = known.flatMap(([at, value]) =>
    name === "step" && isNumber(runs[at].ci95_low_s)
      ? [value, runs[at].ci95_low_s, runs[at].ci95_high_s]
      : [value],
  );
  const [low, high] = around(ends, 1.04);
  const reach = (end) =>
    known.map(([at, value]) => {
      const to = name === "step" ? runs[at][end] : null;
      return isNumber(to) ? Math.abs(to - value) : 0;
    });
  const most = Math.max(2, Math.floor(theme.width / 80));
  const every = Math.ceil(runs.length / most);
  const ticks = runs.map((_run, at) => at).filter((at) => at % every === 0);
  return {
    data: [
      {
        type: "scatter",
        mode: "markers",
        x: known.map(([at]) => at),
        y: known.map(([, value]) => value),
        error_y: {
          type: "data",
          symmetric: false,
          array: reach("ci95_high_s"),
          arrayminus: reach("ci95_low_s"),
          color: theme.strongLine,
          thickness: 1.5,
          width: 0,
        },
        marker: {
          size: 8,
          color: theme.colour("var(--kind-clean)"),
          symbol: known.map(([at]) => (changed.has(at) ? "diamond" : "circle")),
        },
        cliponaxis: false,
      },
    ],
    layout: {
      shapes: [...levels(theme, runs, key, changes), ...changes.map((each) => edge(theme, each))],
      annotations: changes.map((change) => ({
        x: change.run - 0.5,
        yref: "paper",
        y: 1,
        yanchor: "bottom",
        showarrow: false,
        text: plotText(percent(change)),
        font: { color: theme.colour(grew(change) ? "var(--bad)" : "var(--good)") },
      })),
      margin: { t: 30, l: 76 },
      xaxis: {
        ...axis("plain", -0.6, runs.length - 0.4, { width: theme.width }),
        tickvals: ticks,
        ticktext: ticks.map((at) =>
          plotText(runs[at].commit ? commitOf(runs[at]) : dateOf(runs[at]).slice(0, 10)),
        ),
        showgrid: false,
      },
      yaxis: tallAxis(unit, low, high),
    },
  };
}

const edge = (theme, change) => ({
  type: "line",
  x0: change.run - 0.5,
  x1: change.run - 0.5,
  yref: "paper",
  y0: 0,
  y1: 1,
  line: { color: theme.soft, width: 1, dash: "dash" },
});

// A line at the median of the runs between two changes.
function levels(theme, runs, key, changes) {
  const all = runs.map((run) => run[key]).filter(isNumber);
  const middle = changes.length ? null : [...all].sort((a, b) => a - b)[Math.floor(all.length / 2)];
  const values = changes.length
    ? [changes[0].before, ...changes.map((each) => each.after)]
    : [middle];
  const starts = [0, ...changes.map((each) => each.run)];
  return values.map((value, at) => ({
    type: "line",
    x0: starts[at] - 0.5,
    x1: (starts[at + 1] ?? runs.length) - 0.5,
    y0: value,
    y1: value,
    layer: "below",
    line: { color: theme.accent, width: 1.5 },
  }));
}

function runTable({ script, runs, changes }) {
  const head = ["started (UTC)", "commit", "step", "95 % interval", "memory", "verdict", "change"];
  const isNumeric = (at) => at > 1 && at < 5;
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "group", "aria-label": "table: runs of " + script },
    el(
      "table",
      { class: "listing", "aria-label": "runs of " + script },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          head.map((name, at) => el("th", { class: isNumeric(at) ? "number" : null }, name)),
        ),
      ),
      el(
        "tbody",
        {},
        runs.map((run, at) =>
          runRow(
            run,
            changes.filter((change) => change.run === at),
          ),
        ),
      ),
    ),
  );
}

function runRow(run, changes) {
  const span = isNumber(run.ci95_low_s)
    ? formatSeconds(run.ci95_low_s) + " to " + formatSeconds(run.ci95_high_s)
    : none("too few clean steps");
  const memory = isNumber(run.memory_peak_bytes)
    ? formatBytes(run.memory_peak_bytes)
    : none("no layer saw tensors");
  const words = changes.map((change) => change.figure + " " + percent(change)).join(", ");
  const tone = changes.length ? (grew(changes[0]) ? "grew" : "shrank") : null;
  return el(
    "tr",
    { class: changes.length ? "first-after" : null, title: run.path },
    el("td", {}, dateOf(run)),
    el("td", { class: "code", title: run.commit }, commitOf(run)),
    el(
      "td",
      { class: "number" },
      isNumber(run.median_s) ? formatSeconds(run.median_s) : none(run.reason),
    ),
    el("td", { class: "number" }, span),
    el("td", { class: "number" }, memory),
    el("td", {}, run.verdict || run.reason || NONE),
    el("td", { class: tone }, words),
  );
}

function drawLeftOut({ facts: { left_out: leftOut } }) {
  if (!leftOut.length) {
    drop("left-out");
    return;
  }
  append(
    byId("left-out"),
    leftOut.map(({ path, reason }) => el("li", {}, "left out: " + path + ": " + reason)),
  );
}
