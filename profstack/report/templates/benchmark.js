// The view "Benchmark": statistics of the clean steps, their samples, the warm-up, fresh processes,
// the state of the device, and every step over the run. compare.js draws what `profstack bench`
// compares.

import {
  around,
  axis,
  band,
  levelLine,
  levelRoom,
  plot,
  plotText,
  seriesColour,
  sliceBands,
  spanRows,
  tallAxis,
} from "./charts.js";
import { drawAblation, drawCompare, drawMistakes, drawThroughput } from "./compare.js";
import {
  append,
  asText,
  byId,
  CLEAN,
  card,
  choice,
  commandCode,
  el,
  figure,
  fineSeconds,
  formatCount,
  formatFactor,
  formatPercent,
  formatSeconds,
  isNumber,
  kindColour,
  none,
  numberTitle,
  OWN_COUNT,
  pairs,
  plural,
  quiet,
  RAW_CLOCK,
  remark,
  sentence,
  shown,
  spanFormat,
  spanText,
  stepClock,
  stepName,
  swatch,
  term,
  withCommands,
} from "./dom.js";
import { makeTable, ownColumn, recordTable } from "./table.js";
import { drop, isImportAlone } from "./views.js";

export const benchmarkView = {
  id: "benchmark",
  title: "Benchmark",
  needs: ["step_series", "steps", "slices"],
  has: (page) => !isImportAlone(page.facts),
  parts: [
    ["benchmark", drawBenchmark, drawMeasured],
    ["steps", drawSteps, drawStepTable],
    ["throughput", drawThroughput],
    ["compare", drawCompare],
    ["mistakes", drawMistakes],
    ["ablation", drawAblation],
  ],
};

function drawBenchmark(page) {
  const mark = page.facts.benchmark || {};
  const reasons = page.facts.columns_reason || {};
  const clean = (value, unit, reason) => figure(value, unit, { ...stepClock(mark), reason });
  const cards = el("div", { class: "cards", id: "benchmark-figures" });
  const interval = isNumber(mark.ci95_low_s) && isNumber(mark.ci95_high_s);
  const spread =
    isNumber(mark.iqr_s) && mark.median_s
      ? formatPercent(mark.iqr_s / mark.median_s) + " of the median"
      : null;
  const times =
    isNumber(mark.first_step_s) && mark.median_s
      ? formatFactor(mark.first_step_s / mark.median_s) + " × the median"
      : null;
  const busy = isNumber(mark.cores_busy)
    ? formatFactor(mark.cores_busy) + " cores busy on average"
    : null;
  append(cards, [
    card(
      ["median ", stepName(mark)],
      clean(mark.median_s, "s", "no clean step was measured"),
      interval
        ? [spanText(mark.ci95_low_s, mark.ci95_high_s), " ", term("interval", "95 % interval")]
        : "no interval: too few steps",
      "main",
    ),
    card(
      [term("iqr", "IQR"), ", ", stepName(mark)],
      clean(mark.iqr_s, "s", "fewer than 4 clean steps were measured"),
      [spread ? spread + ", " : "", "n = " + (mark.n ?? 0)],
    ),
    card(
      "first step" + (mark.first_step_layer ? ", watched by " + mark.first_step_layer : ""),
      figure(mark.first_step_s, "s", {
        ...RAW_CLOCK,
        reason: "nothing tells when the first step began or ended",
      }),
      [
        times ? times + ", " : "",
        isNumber(mark.warmup_steps)
          ? [
              mark.warmup_steps + " ",
              term("warmup", "warm-up"),
              mark.warmup_steps === 1 ? " step" : " steps",
            ]
          : null,
      ],
    ),
    card(
      ["mean ", term("cpu-time", "CPU time"), " per step"],
      clean(mark.cpu_mean_s, "s", mark.cpu_reason || "no clean step was measured"),
      busy,
    ),
    isNumber(mark.device_median_s)
      ? card("device time per step", clean(mark.device_median_s, "s"), "by events on the device")
      : null,
  ]);
  const warnings = (mark.warnings || []).map(asText);
  byId("benchmark").prepend(
    cards,
    warnings.length
      ? el(
          "ul",
          { class: "warnings", id: "benchmark-warnings" },
          warnings.map((text) => el("li", {}, withCommands(text))),
        )
      : "",
  );
  const few = (least) => "fewer than " + least + " clean steps were measured";
  byId("benchmark-more").append(
    pairs([
      ["mode", mark.mode],
      ["clock", mark.clock],
      [
        "mean ± std",
        isNumber(mark.mean_s)
          ? [clean(mark.mean_s, "s"), " ± ", clean(mark.std_s, "s", "one sample has none")]
          : none(few(1)),
      ],
      ["minimum", clean(mark.min_s, "s", few(1))],
      ["p90", clean(mark.p90_s, "s", few(10))],
      ["p99", clean(mark.p99_s, "s", few(100))],
      ["autocorrelation", clean(mark.autocorrelation, "count", few(10))],
      [
        "drift over the run",
        isNumber(mark.drift)
          ? el(
              "span",
              { class: "figure", title: numberTitle(mark.drift, { unit: "share", ...CLEAN }) },
              (mark.drift > 0 ? "+" : "−") + (100 * Math.abs(mark.drift)).toFixed(1) + " %",
            )
          : none(few(9)),
      ],
      [
        "device median",
        clean(
          mark.device_median_s,
          "s",
          reasons["steps.device_s"] || "there is no device with a clock of its own",
        ),
      ],
      ...(page.bench.measured ? measuredFacts(mark) : []),
    ]),
  );
}

// ---------- Samples, warm-up, processes and device ----------

const ENDED_BY = {
  interval: "the interval, narrow enough",
  time: "the time bound",
  samples: "the largest number of samples",
  repeat: "the fixed number of samples",
  interrupt: "an interruption",
};
const yesNo = (value, yes, no) => (value === null || value === undefined ? null : value ? yes : no);

// More rows for the statistics of a benchmark; a run's clean steps have none of them.
function measuredFacts(mark) {
  const many =
    isNumber(mark.outliers) && mark.n
      ? mark.outliers + " of " + mark.n + (mark.outliers ? ", further than 3 σ out" : "")
      : none("fewer than 5 samples were measured");
  return [
    ["target", mark.target ? el("code", {}, mark.target) : none("it was given as an object")],
    [
      "samples",
      (mark.n ?? 0) +
        (mark.calls_per_sample > 1 ? ", each the mean of " + mark.calls_per_sample + " calls" : ""),
    ],
    ["sampling ended by", mark.stopped_by ? ENDED_BY[mark.stopped_by] || mark.stopped_by : null],
    ["warm-up", mark.warmup_reason || null],
    ["outliers", many],
    ["garbage collection", mark.garbage],
    [
      "import, then build",
      isNumber(mark.import_s) && isNumber(mark.build_s)
        ? formatSeconds(mark.import_s) + ", then " + formatSeconds(mark.build_s)
        : none("it is not known"),
    ],
    [
      "batch size",
      isNumber(mark.batch_size)
        ? mark.batch_size + (mark.batch_size_is ? ", " + mark.batch_size_is : "")
        : none("the inputs do not tell it, and none was stated"),
    ],
    [
      "gradients",
      shown(yesNo(mark.gradients, "on", "off"), "text", "the function decides for itself"),
    ],
    [
      "model's mode",
      shown(yesNo(mark.training, "training", "evaluation"), "text", "there is no model"),
    ],
    [
      "device initialisation",
      shown(mark.initialisation_s, "s", "there is no device to initialise"),
    ],
  ];
}

const isOnCpu = (page) => String(page.facts.environment?.device || "cpu").startsWith("cpu");

function drawMeasured(page) {
  const mark = page.facts.benchmark || {};
  drawModes(byId("bench-modes"), mark, page);
  drawSamples(page, mark);
  drawWarmup(page, mark);
  drawBetween(byId("between"), mark, page);
  drawShapes(byId("by-shape"), mark);
  drawDeviceState(byId("device-state"), mark.device_state, isOnCpu(page));
}

function drawModes(box, mark, page) {
  if (!page.bench.measured) {
    box.remove();
    return;
  }
  const onCpu = isOnCpu(page);
  const rows = ["synchronised", "pipelined"].map((mode, at) => ({
    mode,
    name: [term(mode)],
    value: mark[mode + "_median_s"],
    low: mark[mode + "_ci95_low_s"],
    high: mark[mode + "_ci95_high_s"],
    colour: seriesColour(at),
  }));
  const there = rows.filter((row) => isNumber(row.value));
  for (const row of there)
    row.words = [
      el("b", {}, spanFormat(row.low, row.high)(row.value)),
      spanText(row.low, row.high)
        ? quiet(" " + spanText(row.low, row.high))
        : quiet(" no interval"),
    ];
  box.append(el("h3", {}, "Both ways of timing"));
  if (there.length === 2) {
    const change = rows[1].value / rows[0].value - 1;
    const differ = Math.abs(change) < 0.001 ? "less than 0.1 %" : formatPercent(Math.abs(change));
    box.append(
      spanRows(rows),
      remark(
        onCpu
          ? "The same on a CPU: a call returns when its work is done. Here the two differ by " +
              differ +
              ", which is noise or drift."
          : change < 0
            ? "A pipeline takes " +
              differ +
              " less: that is what waiting for the device after every step costs."
            : "A pipeline takes " + differ + " more, which is noise or drift.",
      ),
    );
    return;
  }
  const missing = mark.modes_note
    ? sentence(mark.modes_note)
    : onCpu
      ? "The other way is the same on a CPU: a call returns when its work is done."
      : ["The other way was not asked for: ", commandCode("--mode both"), " measures it."];
  append(box, [there.length ? spanRows(there) : null, remark(missing)]);
}

function drawSamples(page, mark) {
  const bars = page.bench.histogram;
  if (!bars) {
    byId("samples").remove();
    return;
  }
  const modes = modesOf(bars);
  plot(byId("samples-chart"), (theme) => samplesChart(theme, bars, mark, modes), {
    label: "histogram of the samples",
    says: samplesSay(bars, mark, modes),
    height: 250,
    name: "samples",
    tip: (point) => point.customdata,
  });
  const out = [];
  if (bars.beyond)
    out.push(
      bars.beyond +
        (bars.beyond === 1 ? " sample lies" : " samples lie") +
        " beyond the right edge, up to " +
        formatSeconds(bars.most_s),
    );
  if (bars.below)
    out.push(bars.below + " below the left edge, down to " + formatSeconds(bars.least_s));
  byId("samples-note").append(
    "n = " +
      (mark.n ?? 0) +
      (out.length ? "; " + out.join("; ") : "") +
      ". The line is the median, the band its ",
    term("interval", "95 % interval"),
    ".",
  );
}

// Peaks of the histogram that rise above the valleys beside them by more than chance explains.
function modesOf(bars) {
  const counts = bars.counts;
  const sums = counts.map((count, at) => (counts[at - 1] || 0) + count + (counts[at + 1] || 0));
  const most = Math.max(...sums);
  const found = [];
  sums.forEach((height, at) => {
    if (height <= 0 || sums[at - 1] >= height || sums[at + 1] > height) return;
    const rise = Math.min(climb(sums, at, -1), climb(sums, at, 1));
    if (rise > Math.max(0.25 * most, 4 * Math.sqrt(height)))
      found.push(bars.start_s + (at + 0.5) * bars.width_s);
  });
  return found;
}

// The depth of the valley between a peak and the next higher one; down to 0 where there is none.
function climb(sums, peak, way) {
  let least = sums[peak];
  for (let at = peak + way; at >= 0 && at < sums.length; at += way) {
    if (sums[at] > sums[peak]) return sums[peak] - least;
    least = Math.min(least, sums[at]);
  }
  return sums[peak];
}

const manyModes = (modes) =>
  modes.length > 1
    ? "The samples have " +
      modes.length +
      " modes, near " +
      modes.map(fineSeconds(modes, 1)).join(" and ") +
      ": the step runs in more than one way, and one median does not tell them apart."
    : null;

function samplesSay(bars, mark, modes) {
  const common = bars.counts.indexOf(Math.max(...bars.counts));
  const low = bars.start_s + common * bars.width_s;
  const format = fineSeconds([low, low + bars.width_s]);
  return [
    isNumber(mark.median_s) ? ["Median ", formatSeconds(mark.median_s), ", "] : "",
    "most often between ",
    format(low),
    " and ",
    format(low + bars.width_s),
    "; all between ",
    formatSeconds(bars.least_s),
    " and ",
    formatSeconds(bars.most_s),
    ". ",
    manyModes(modes),
  ];
}

function samplesChart(theme, bars, mark, modes) {
  const end = bars.start_s + bars.width_s * bars.counts.length;
  const blue = theme.colour("var(--kind-clean)");
  const lows = bars.counts.map((_, at) => bars.start_s + at * bars.width_s);
  const most = Math.max(...bars.counts, bars.beyond, 1);
  const told = (low, count) => [
    fineSeconds([low, low + bars.width_s])(low) +
      " – " +
      fineSeconds([low, low + bars.width_s])(low + bars.width_s),
    [
      ["samples", count],
      ["measured", "clean host time"],
    ],
  ];
  const data = [
    {
      type: "bar",
      name: "samples",
      x: lows.map((low) => low + bars.width_s / 2),
      y: bars.counts,
      width: bars.width_s * 0.94,
      customdata: lows.map((low, at) => told(low, bars.counts[at])),
      marker: { color: blue, opacity: 0.75 },
    },
  ];
  // Samples beyond the edge have a bar of their own beside the axis.
  const room = (end - bars.start_s) * 0.05;
  const far = end + room * 1.6;
  const annotations = [];
  if (bars.beyond) {
    data.push({
      type: "bar",
      name: "beyond",
      x: [far],
      y: [bars.beyond],
      width: room,
      customdata: [
        [
          "beyond the axis",
          [
            ["samples", bars.beyond],
            ["slowest", formatSeconds(bars.most_s)],
          ],
        ],
      ],
      marker: { color: theme.colour("var(--kind-settle)") },
      text: [formatCount(bars.beyond)],
      textposition: "outside",
      cliponaxis: false,
    });
    annotations.push({
      xref: "x",
      x: far,
      yref: "paper",
      y: 0,
      yanchor: "top",
      yshift: -3,
      showarrow: false,
      text: "beyond",
    });
  }
  const shapes = [];
  if (isNumber(mark.ci95_low_s) && isNumber(mark.ci95_high_s))
    shapes.push({
      ...band(mark.ci95_low_s, mark.ci95_high_s, theme.faint("var(--kind-torch)", 0.22)),
      y1: 1.03,
      line: { width: 1, color: theme.faint("var(--kind-torch)", 0.45) },
    });
  if (isNumber(mark.median_s)) {
    shapes.push({
      type: "line",
      xref: "x",
      yref: "paper",
      x0: mark.median_s,
      x1: mark.median_s,
      y0: 0,
      y1: 1.03,
      line: { color: theme.text, width: 1.2, dash: "dash" },
    });
    const right = (mark.median_s - bars.start_s) / (end - bars.start_s);
    annotations.push({
      xref: "x",
      x: Math.min(Math.max(mark.median_s, bars.start_s), end),
      yref: "paper",
      y: 1.03,
      yanchor: "bottom",
      xanchor: right > 0.8 ? "right" : right < 0.2 ? "left" : "center",
      showarrow: false,
      text: plotText("median " + formatSeconds(mark.median_s)),
      font: { color: theme.text },
    });
  }
  if (modes.length > 1)
    data.push({
      type: "scatter",
      mode: "markers",
      name: "modes",
      x: modes,
      y: modes.map(
        (at) =>
          bars.counts[
            Math.min(Math.floor((at - bars.start_s) / bars.width_s), bars.counts.length - 1)
          ] +
          most * 0.05,
      ),
      customdata: modes.map((at) => [
        "a mode of the samples",
        [["near", fineSeconds(modes, 1)(at)]],
      ]),
      marker: { symbol: "triangle-down", size: 10, color: theme.text },
      cliponaxis: false,
    });
  return {
    data,
    layout: {
      bargap: 0,
      shapes,
      annotations,
      margin: { t: 30, l: 48 },
      xaxis: {
        ...axis("s", bars.start_s - room * 0.3, bars.beyond ? far + room * 0.8 : end + room * 0.3, {
          title: "time of a step",
          width: theme.width,
          until: bars.beyond ? end - room : undefined,
        }),
        showgrid: false,
      },
      yaxis: tallAxis("plain", 0, most * 1.06, { width: 160 }),
    },
  };
}

function drawWarmup(page, mark) {
  const curve = page.bench.warmup;
  if (!curve) {
    byId("warmup").remove();
    return;
  }
  const points = curve.points.filter(([, wall]) => wall > 0);
  if (points.length) {
    const says = [
      "Slowest call ",
      formatSeconds(Math.max(...points.map(([, wall]) => wall))),
      ", last ",
      formatSeconds(points[points.length - 1][1]),
      "; ",
      isNumber(curve.steps)
        ? curve.steps + " of " + plural(curve.total, "call") + " are warm-up."
        : "where the warm-up ends is not known.",
    ];
    plot(byId("warmup-chart"), (theme) => warmupChart(theme, curve, points, mark), {
      label: "time of every call before the samples",
      says,
      height: 250,
      name: "warm-up",
      tip: (point) => point.customdata,
    });
  }
  const factor =
    isNumber(mark.first_step_s) && mark.median_s
      ? "The first call took " +
        formatSeconds(mark.first_step_s) +
        ", " +
        formatFactor(mark.first_step_s / mark.median_s) +
        " × the median. "
      : "";
  append(byId("warmup-note"), [
    factor,
    (curve.total === 1 ? "1 call" : curve.total + " calls") + " before the samples",
    mark.warmup_reason ? ": " + mark.warmup_reason : "",
    ". ",
    curve.left_out,
  ]);
}

function warmupChart(theme, curve, points, mark) {
  const warm = (call) => isNumber(curve.steps) && call > curve.steps;
  const many = curve.total > 60;
  const colours = {
    cold: theme.colour("var(--kind-warmup)"),
    warm: theme.colour("var(--kind-clean)"),
  };
  const told = ([call, wall]) => [
    call === 1 ? "first call" : "call " + call,
    [
      ["took", formatSeconds(wall)],
      isNumber(mark.median_s) ? ["of the median", formatFactor(wall / mark.median_s) + " ×"] : null,
      ["counts as", warm(call) ? "warm" : "warm-up"],
      ["measured", "raw host time, before the samples"],
    ],
  ];
  const data = [
    {
      type: "scatter",
      mode: "markers",
      name: "calls",
      x: points.map(([call]) => call),
      y: points.map(([, wall]) => wall),
      customdata: points.map(told),
      cliponaxis: false,
      marker: {
        symbol: points.map(([call]) => (call === 1 ? "diamond" : "circle")),
        size: points.map(([call]) => (call === 1 ? 11 : 6)),
        color: points.map(([call]) => (warm(call) ? colours.warm : colours.cold)),
        line: { color: theme.text, width: points.map(([call]) => (call === 1 ? 1 : 0)) },
      },
    },
  ];
  const [low, high] = around(
    points.map(([, wall]) => wall).concat(isNumber(mark.median_s) ? mark.median_s : []),
    1.15,
  );
  const level = levelLine(theme, mark.median_s, ["median", formatSeconds(mark.median_s)], true);
  const from = many ? 0.9 : 0.5;
  const to = many ? curve.total * 1.12 : curve.total + 0.5;
  const shapes = [...level.shapes];
  const annotations = [...level.annotations];
  if (isNumber(curve.steps) && curve.steps > 0 && curve.steps <= curve.total) {
    const edge = Math.min(curve.steps + 0.5, to);
    const share = many ? Math.log(edge / from) / Math.log(to / from) : (edge - from) / (to - from);
    shapes.unshift(band(from, edge, theme.faint("var(--kind-warmup)", 0.14)));
    annotations.push({
      xref: "paper",
      x: Math.min(Math.max(share, 0), 1),
      yref: "paper",
      y: 1,
      xanchor: share > 0.55 ? "right" : "left",
      yanchor: "top",
      xshift: share > 0.55 ? -4 : 4,
      showarrow: false,
      text: plotText("warm-up ends after call " + curve.steps),
      font: { color: theme.text },
    });
  }
  return {
    data,
    layout: {
      shapes,
      annotations,
      margin: { t: 30, r: levelRoom(theme, mark.median_s) },
      xaxis: {
        ...axis("plain", from, to, { log: many, title: "call", width: theme.width }),
        showgrid: false,
      },
      yaxis: tallAxis("s", low, high, { log: true, width: 190 }),
    },
  };
}

function drawBetween(box, mark, page) {
  const between = mark.between_process;
  const medians = between ? (between.medians_s || []).filter(isNumber) : [];
  if (!page.bench.measured && !medians.length) {
    box.remove();
    return;
  }
  box.append(el("h3", {}, term("between-process", "Between processes")));
  if (medians.length < 2) {
    append(box, [
      remark(
        between?.note
          ? withCommands(between.note)
          : [
              "One process was measured. What a fresh one would give is not known, and its " +
                "spread is the error bar of any comparison: ",
              commandCode("--processes 5"),
              " shows it.",
            ],
      ),
    ]);
    return;
  }
  const inside = isNumber(mark.ci95_low_s) && isNumber(mark.ci95_high_s);
  const wide = Math.max(...medians) - Math.min(...medians);
  const narrow = inside ? mark.ci95_high_s - mark.ci95_low_s : null;
  box.append(
    spanRows([
      {
        name: medians.length + " fresh processes",
        value: between.median_s,
        low: between.low_s,
        high: between.high_s,
        points: medians,
        colour: seriesColour(1),
        words: [el("b", {}, formatPercent(between.spread)), quiet(" lowest to highest")],
      },
      {
        name: "within one",
        value: mark.median_s,
        low: mark.ci95_low_s,
        high: mark.ci95_high_s,
        colour: seriesColour(0),
        words: inside
          ? [el("b", {}, formatPercent(narrow / mark.median_s)), quiet(" 95 % interval")]
          : "no interval",
      },
    ]),
    el(
      "p",
      {},
      "The error bar of a comparison is the upper one",
      narrow ? [wide > narrow ? ", " + formatFactor(wide / narrow) + " times the lower" : ""] : "",
      ", since two versions of a program run in two processes. The lower one says only how " +
        "well this process's own median is known.",
    ),
    remark(
      "Medians: " +
        medians.map(formatSeconds).join(", ") +
        (isNumber(between.std_s) ? "; standard deviation " + formatSeconds(between.std_s) : "") +
        ".",
    ),
  );
}

function drawShapes(box, mark) {
  const shapes = mark.by_shape || [];
  if (shapes.length < 2) {
    box.remove();
    return;
  }
  box.append(el("h3", {}, "By input shape"));
  recordTable(
    box,
    shapes,
    [
      ownColumn("shape", "shapes", "text", "shapes of the inputs"),
      ownColumn("n", "n", "plain", "samples", null, OWN_COUNT),
      ownColumn("median_s", "median", "s", "median time", "it has no sample", CLEAN),
      ownColumn(
        "ci95_low_s",
        "95 % from",
        "s",
        "low end of the interval",
        "fewer than 6 samples",
        CLEAN,
      ),
      ownColumn(
        "ci95_high_s",
        "to",
        "s",
        "high end of the interval",
        "fewer than 6 samples",
        CLEAN,
      ),
    ],
    {
      name: "by input shape",
      sort: { key: "median_s", direction: -1 },
      bars: ["median_s"],
      barColour: "var(--self)",
    },
  );
}

const STATE_UNITS = [
  [/_hz$/, " clock"],
  [/_mhz$/, ", MHz"],
  [/_c$/, ", °C"],
  [/_w$/, ", W"],
  [/_percent$/, ", %"],
];
const stateName = (key) =>
  STATE_UNITS.reduce((name, [ending, unit]) => name.replace(ending, unit), key).replaceAll(
    "_",
    " ",
  );

// One entry per device and property, whether one device is there or a list of them.
function flatState(state) {
  const { devices, ...own } = state || {};
  const several = (devices || []).length > 1;
  for (const [at, device] of (devices || []).entries()) {
    for (const [key, value] of Object.entries(device))
      if (key !== "index") own[(several ? "GPU " + (device.index ?? at) + ": " : "") + key] = value;
  }
  return own;
}

// Before beside after: what changed while measuring stands out.
function drawDeviceState(box, state, onCpu) {
  const before = flatState(state?.before);
  const after = flatState(state?.after);
  const keys = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  if (!keys.length && (onCpu || !state?.reason)) {
    box.remove();
    return;
  }
  box.append(el("h3", {}, "State of the device"));
  if (!keys.length) {
    box.append(remark("Not known: " + state.reason + "."));
    return;
  }
  const text = (value, key) =>
    /_hz$/.test(key) && isNumber(value)
      ? formatCount(value) + "Hz"
      : value === null || value === undefined
        ? none(state.reason || "the driver does not tell")
        : Array.isArray(value) && !value.length
          ? "none"
          : value === true
            ? "on"
            : value === false
              ? "off"
              : asText(value);
  box.append(
    el(
      "div",
      { class: "scroll" },
      el(
        "table",
        { class: "state" },
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            ["property", "before", "after"].map((name) =>
              el("th", { scope: "col", class: "head-cell" }, name),
            ),
          ),
        ),
        el(
          "tbody",
          {},
          keys.map((key) => {
            const changed = JSON.stringify(before[key]) !== JSON.stringify(after[key]);
            return el(
              "tr",
              { class: changed ? "changed" : null },
              el("td", {}, stateName(key)),
              el("td", {}, text(before[key], key)),
              el("td", {}, text(after[key], key), changed ? quiet(" changed") : null),
            );
          }),
        ),
      ),
    ),
    state.reason ? remark(state.reason) : "",
  );
}

// ---------- Steps over the run ----------

// The colours of the kinds present, each a switch for showing or hiding its marks.
function kindLegend(kinds, hidden, redraw) {
  return el(
    "ul",
    { class: "legend" },
    kinds.map((kind) => {
      const button = el(
        "button",
        { type: "button", "aria-pressed": "true", title: "show or hide" },
        swatch(kindColour(kind)),
        kind,
      );
      button.addEventListener("click", () => {
        if (!hidden.delete(kind)) hidden.add(kind);
        button.setAttribute("aria-pressed", String(!hidden.has(kind)));
        redraw();
      });
      return el("li", {}, button);
    }),
  );
}

function drawSteps(page) {
  const points = page.steps.points.map(
    ([index, wall, slice, cpu, wait, phase, flags, counted, outlier]) => ({
      index,
      wall,
      slice,
      cpu,
      wait,
      phase,
      flags,
      counted,
      outlier,
    }),
  );
  // A benchmark alone has no steps beside its samples.
  if (!points.length && page.bench.measured) {
    drop("steps");
    return;
  }
  if (!points.length) {
    byId("steps-chart").append(remark("No step was found in this run."));
    return;
  }
  const slices = new Map(page.slices.map((slice) => [slice.index, slice]));
  const kindOf = (point) => slices.get(point.slice)?.kind || "watch";
  const kinds = [...new Set(page.slices.map((slice) => slice.kind))].filter((kind) =>
    points.some((point) => kindOf(point) === kind),
  );
  const timed = points.filter((point) => point.wall > 0);
  const median = page.facts.benchmark.median_s;
  const slowest = timed.reduce(
    (best, point) => (best && best.wall >= point.wall ? best : point),
    null,
  );
  const state = { log: Boolean(slowest) && isNumber(median) && slowest.wall > 8 * median };
  const hidden = new Set();
  const view = { points, timed, kinds, kindOf, hidden, state, median, slices: page.slices };
  const redraw = plot(byId("steps-chart"), (theme) => stepsChart(theme, view), {
    label: "wall time of each step",
    says: stepsSay(view, slowest),
    height: 300,
    name: "steps",
    tip: (point) => stepTip(point.customdata, kindOf),
  });
  byId("steps-tools").append(
    choice(
      "scale",
      [
        ["linear", "linear"],
        ["log", "log"],
      ],
      state.log ? "log" : "linear",
      (value) => {
        state.log = value === "log";
        redraw();
      },
    ),
  );
  byId("steps-legend").append(
    kindLegend(kinds, hidden, redraw),
    el(
      "p",
      { class: "quiet marks" },
      "◆ flagged, kept out of medians   ○ more than twice its slice's median",
    ),
  );
  if (page.steps.left_out)
    byId("steps-legend").append(el("p", { class: "left-out" }, page.steps.left_out));
}

function stepsSay({ points, timed, median }, slowest) {
  if (!slowest) return "No step of this run has a time.";
  const flagged = points.filter((point) => point.flags).length;
  return [
    plural(points.length, "step"),
    " drawn; the slowest is step ",
    slowest.index,
    " with ",
    formatSeconds(slowest.wall),
    isNumber(median)
      ? [
          ", ",
          formatFactor(slowest.wall / median),
          " × the clean median of ",
          formatSeconds(median),
        ]
      : "",
    flagged
      ? [". ", plural(flagged, "step is", "steps are"), " flagged and kept out of medians"]
      : "",
    timed.length < points.length ? [". ", points.length - timed.length, " have no time"] : "",
    ".",
  ];
}

function stepsChart(theme, view) {
  const walls = view.timed
    .map((point) => point.wall)
    .concat(isNumber(view.median) ? view.median : []);
  const log = view.state.log;
  const data = view.kinds.map((kind) => {
    const own = view.timed.filter((point) => view.kindOf(point) === kind);
    const colour = theme.colour(kindColour(kind));
    return {
      type: "scatter",
      mode: "markers",
      name: plotText(kind),
      visible: !view.hidden.has(kind),
      x: own.map((point) => point.index),
      y: own.map((point) => point.wall),
      customdata: own,
      cliponaxis: false,
      marker: {
        color: colour,
        opacity: 0.88,
        symbol: own.map(stepSymbol),
        size: own.map((point) => (point.flags ? 10 : point.outlier ? 9 : 5.5)),
        line: {
          width: own.map((point) => (point.outlier && !point.flags ? 2 : point.flags ? 1 : 0)),
          color: own.map((point) => (point.flags ? theme.ground : colour)),
        },
      },
    };
  });
  const first = view.points[0].index;
  const last = Math.max(view.points[view.points.length - 1].index, first + 1);
  const room = Math.max(0.5, (last - first) * 0.012);
  const level = levelLine(theme, view.median, ["clean median", formatSeconds(view.median)], log);
  const bands = view.slices
    .filter((slice) => slice.steps > 0 && isNumber(slice.first_step))
    .map((slice) => [slice.first_step - 0.5, slice.first_step + slice.steps - 0.5, slice]);
  const [low, high] = walls.length
    ? log
      ? around(walls, 1.25)
      : [0, Math.max(...walls) * 1.06]
    : [0, 1];
  return {
    data,
    layout: {
      uirevision: log ? "log" : "linear",
      margin: { r: levelRoom(theme, view.median) },
      shapes: [...sliceBands(theme, bands), ...level.shapes],
      annotations: level.annotations,
      xaxis: {
        ...axis("plain", first - room, last + room, { title: "step", width: theme.width }),
        showgrid: false,
      },
      yaxis: tallAxis("s", low, high, { log, width: 250 }),
    },
  };
}

const stepSymbol = (point) => (point.flags ? "diamond" : point.outlier ? "circle-open" : "circle");

const stepTip = (point, kindOf) =>
  point && [
    "step " + point.index,
    [
      ["slice", kindOf(point) + " (" + point.slice + ")"],
      ["phase", point.phase],
      ["wall", formatSeconds(point.wall)],
      isNumber(point.cpu) ? ["CPU, to a scheduler tick", formatSeconds(point.cpu)] : null,
      isNumber(point.wait) ? ["wait", formatSeconds(point.wait)] : null,
      [
        "measured",
        kindOf(point) === "clean" ? "clean host time" : "raw host time, under " + kindOf(point),
      ],
      point.flags ? ["kept out of medians", point.flags] : null,
      point.counted ? ["counts", "in the clean median"] : null,
    ],
  ];

function drawStepTable(page) {
  if (!page.tables.steps) {
    if (byId("step-table")) byId("step-table").closest("details").remove();
    return;
  }
  makeTable(byId("step-table"), {
    table: page.tables.steps,
    name: "steps",
    sort: { key: "wall_s", direction: -1 },
    bars: ["wall_s"],
    barColour: "var(--self)",
  });
}
