// What `profstack bench` compares, in the view "Benchmark": throughput by batch size, variants of
// the model, timing mistakes, and the ablation of the rules of timing.

import {
  around,
  axisTitle,
  barChart,
  freeBox,
  logFrame,
  MARK_ORDER,
  markSample,
  plot,
  plotText,
  pointBox,
  seriesColour,
  tallAxis,
  tickText,
  widthOf,
} from "./charts.js";
import {
  append,
  byId,
  CLEAN,
  chip,
  el,
  FACT,
  figure,
  formatBytes,
  formatCount,
  formatFactor,
  formatPercent,
  formatPlain,
  formatSeconds,
  isNumber,
  none,
  OWN_COUNT,
  quiet,
  remark,
  sentence,
  shown,
  spanText,
  swatch,
  term,
  withCommands,
} from "./dom.js";
import { cellWithReason, ownColumn, recordTable } from "./table.js";
import { drop } from "./views.js";

// ---------- Throughput ----------

export function drawThroughput(page) {
  const rows = page.facts.benchmark.throughput || [];
  const limits = page.facts.benchmark.throughput_limits || [];
  if (!rows.length && !limits.length) {
    drop("throughput");
    return;
  }
  const dtypes = [...new Set([...rows, ...limits].map((row) => row.dtype))];
  const look = (dtype) => ({
    colour: seriesColour(dtypes.indexOf(dtype)),
    symbol: MARK_ORDER[dtypes.indexOf(dtype) % MARK_ORDER.length],
  });
  byId("throughput-legend").append(
    el(
      "ul",
      { class: "legend" },
      dtypes.map((dtype) =>
        el("li", {}, markSample(look(dtype).symbol, look(dtype).colour), dtype),
      ),
      limits.some((one) => isNumber(one.knee_batch))
        ? el("li", {}, markSample("circle-open", "var(--text)"), term("knee"))
        : null,
      rows.some((row) => row.status !== "measured")
        ? el("li", {}, markSample("x", "var(--bad)"), "refused or failed")
        : null,
    ),
  );
  const measured = rows.filter(
    (row) => isNumber(row.batch_size) && isNumber(row.items_per_s) && row.items_per_s > 0,
  );
  if (measured.length) {
    const view = { measured, refused: smallestRefusals(rows), limits, dtypes, look };
    const chart = (id, key, label, unit, name, peaks) =>
      plot(byId(id), (theme) => curvesChart(theme, view, { key, label, unit, peaks }), {
        label: label + " against batch size",
        says: curvesSay(view, peaks),
        height: CURVE_HEIGHT,
        name,
        tip: (point) => point.customdata,
      });
    chart("rate-chart", "items_per_s", "items per second", "rate", "throughput", true);
    chart("latency-chart", "latency_s", "median time of a batch", "s", "latency", false);
  } else
    byId("throughput-charts").replaceChildren(remark("No batch was measured: the table says why."));
  drawLimits(byId("throughput-limits"), limits);
  drawThroughputTable(byId("throughput-table"), rows);
}

// Each data type's knee and maximum, or its quickest and its largest batch.
function curvesSay({ measured, limits, dtypes }, peaks) {
  return dtypes.map((dtype) => {
    const own = measured
      .filter((row) => row.dtype === dtype)
      .sort((a, b) => a.batch_size - b.batch_size);
    if (!own.length) return dtype + ": no batch was measured. ";
    const limit = limits.find((one) => one.dtype === dtype) || {};
    const last = own[own.length - 1];
    if (!peaks)
      return [
        dtype,
        ": ",
        formatSeconds(own[0].latency_s),
        " at a batch of ",
        own[0].batch_size,
        ", ",
        formatSeconds(last.latency_s),
        " at ",
        last.batch_size,
        ". ",
      ];
    const most = own.reduce((best, row) => (row.items_per_s > best.items_per_s ? row : best));
    return [
      dtype,
      ": at most ",
      formatCount(most.items_per_s),
      " items/s, at a batch of ",
      most.batch_size,
      isNumber(limit.knee_batch) ? "; the knee is at " + limit.knee_batch : "",
      ". ",
    ];
  });
}

// Many sizes are tried between the largest batch that ran and the first refusal: keep the smallest.
function smallestRefusals(rows) {
  const found = new Map();
  for (const row of rows) {
    if (row.status === "measured" || !isNumber(row.batch_size)) continue;
    if (!found.has(row.dtype) || row.batch_size < found.get(row.dtype).batch_size)
      found.set(row.dtype, row);
  }
  return [...found.values()];
}

const CURVE_HEIGHT = 310;
const PEAK_READ = { words: "raw: read by profstack while the batches ran; no layer was on" };

function curvesChart(theme, view, shownAs) {
  const points = view.measured.filter((row) => isNumber(row[shownAs.key]) && row[shownAs.key] > 0);
  const sizes = [...new Set([...view.measured, ...view.refused].map((row) => row.batch_size))].sort(
    (a, b) => a - b,
  );
  const [low, high] = around(
    points.map((row) => row[shownAs.key]),
    1.3,
    1.7,
  );
  const margin = { l: 66, r: 14, t: 34, b: 44 };
  const ends = [sizes[0] / 1.15, sizes[sizes.length - 1] * 1.15];
  const frame = logFrame(
    theme.width - margin.l - margin.r,
    CURVE_HEIGHT - margin.t - margin.b,
    ends,
    [low, high],
  );
  const taken = points.map((row) => pointBox(frame, row.batch_size, row[shownAs.key], 8));
  const layout = {
    margin,
    shapes: [],
    annotations: [],
    xaxis: batchAxis(theme, sizes),
    yaxis: tallAxis(shownAs.unit, low, high, { log: true, width: 250, title: shownAs.label }),
  };
  const data = [];
  const rings = [];
  const crosses = [];
  view.dtypes.forEach((dtype, at) => {
    const own = points
      .filter((row) => row.dtype === dtype)
      .sort((a, b) => a.batch_size - b.batch_size);
    const look = view.look(dtype);
    const colour = theme.colour(look.colour);
    if (own.length)
      data.push({
        type: "scatter",
        mode: "lines+markers",
        name: plotText(dtype),
        x: own.map((row) => row.batch_size),
        y: own.map((row) => row[shownAs.key]),
        customdata: own.map((row) => batchTip(dtype, row)),
        line: { color: colour, width: 1.8 },
        marker: { color: colour, symbol: look.symbol, size: 8 },
      });
    const limit = view.limits.find((one) => one.dtype === dtype) || {};
    const knee = own.find((row) => row.batch_size === limit.knee_batch);
    const most = own.find((row) => row.batch_size === limit.max_batch);
    if (knee) rings.push({ row: knee, colour });
    // Below a curve that flattens there is room, as a rule, and above the uppermost.
    const say = (row, words) => {
      const text = curveWords(theme, frame, taken, row.batch_size, row[shownAs.key], words);
      if (text) layout.annotations.push(text);
    };
    if (knee && shownAs.peaks) say(knee, "knee " + knee.batch_size);
    if (most && shownAs.peaks)
      say(most, "max " + formatCount(limit.max_items_per_s ?? most.items_per_s));
    for (const row of view.refused.filter((one) => one.dtype === dtype)) {
      crosses.push({ row, colour, y: high / 1.16 ** (at + 1) });
      layout.shapes.push({
        type: "line",
        xref: "x",
        yref: "paper",
        x0: row.batch_size,
        x1: row.batch_size,
        y0: 0,
        y1: 1,
        line: { color: colour, width: 1, dash: "dot" },
        opacity: 0.7,
      });
    }
  });
  if (rings.length)
    data.push({
      type: "scatter",
      mode: "markers",
      name: "knee",
      x: rings.map((one) => one.row.batch_size),
      y: rings.map((one) => one.row[shownAs.key]),
      hoverinfo: "skip",
      marker: {
        symbol: "circle-open",
        size: 17,
        color: rings.map((one) => one.colour),
        line: { width: 2 },
      },
    });
  if (crosses.length)
    data.push({
      type: "scatter",
      mode: "markers",
      name: "refused",
      x: crosses.map((one) => one.row.batch_size),
      y: crosses.map((one) => one.y),
      customdata: crosses.map(({ row }) => [
        row.dtype + ", batch of " + row.batch_size + ": " + row.status,
        [["why", row.reason || "not known"]],
      ]),
      marker: {
        symbol: "x-thin",
        size: 8,
        line: { width: 2.4, color: crosses.map((one) => one.colour) },
      },
    });
  return { data, layout };
}

// Sizes that were tried are on the axis, as far as there is room between them.
function batchAxis(theme, sizes) {
  const from = sizes[0] / 1.15;
  const to = sizes[sizes.length - 1] * 1.15;
  const wide = (theme.width - 80) / Math.log(to / from);
  const kept = sizes.filter(
    (size, at) =>
      at === 0 || !sizes.slice(0, at).some((other) => Math.log(size / other) * wide < 30),
  );
  return {
    type: "log",
    range: [Math.log10(from), Math.log10(to)],
    tickmode: "array",
    tickvals: kept,
    ticktext: kept.map((size) => tickText(formatCount(size)).replace(" ", "")),
    showgrid: false,
    title: axisTitle("batch size"),
  };
}

function curveWords(theme, frame, taken, x, y, words) {
  const wide = widthOf(words);
  const px = frame.x(x);
  const py = frame.y(y);
  const box = (left, middle) => ({ left, right: left + wide, top: middle - 7, bottom: middle + 7 });
  const free = freeBox(frame, taken, [
    box(px - wide / 2, py - 19),
    box(px - wide / 2, py + 20),
    box(px + 13, py + 14),
    box(px - wide / 2, py + 36),
    box(px - wide - 12, py - 12),
    box(px - wide / 2, py - 34),
  ]);
  return (
    free && {
      xref: "paper",
      yref: "paper",
      x: (free.left + free.right) / 2 / frame.width,
      y: 1 - (free.top + free.bottom) / 2 / frame.height,
      xanchor: "center",
      yanchor: "middle",
      showarrow: false,
      text: plotText(words),
      font: { color: theme.text },
      borderpad: 0,
    }
  );
}

const batchTip = (dtype, row) => [
  dtype + ", batch of " + row.batch_size,
  [
    ["items/s", formatCount(row.items_per_s)],
    ["median batch", formatSeconds(row.latency_s)],
    isNumber(row.latency_p90_s) ? ["p90", formatSeconds(row.latency_p90_s)] : null,
    ["batches", formatPlain(row.batches)],
    isNumber(row.peak_memory_bytes) ? ["peak memory", formatBytes(row.peak_memory_bytes)] : null,
    ["measured", "clean, no layer armed"],
  ],
];

function drawLimits(box, limits) {
  if (!limits.length) {
    box.remove();
    return;
  }
  const unknown = "no batch was measured";
  const table = el("div");
  append(box, [el("h3", {}, "Where the search ended"), table]);
  recordTable(
    table,
    limits,
    [
      ownColumn("dtype", "data type", "text", "data type of model and inputs"),
      ownColumn("largest_batch", "largest batch", "plain", "largest batch that ran", unknown, FACT),
      ownColumn(
        "limited_by",
        "ended by",
        "text",
        "what refused a larger one",
        "nothing refused: the search's own bound ended it",
      ),
      ownColumn(
        "knee_batch",
        "knee at",
        "plain",
        "batch size from which on a larger one gains little",
        "no knee was seen in the curve",
        FACT,
      ),
      ownColumn(
        "knee_items_per_s",
        "items/s there",
        "rate",
        "rate at the knee",
        "no knee was seen in the curve",
        CLEAN,
      ),
      ownColumn(
        "max_batch",
        "maximum at",
        "plain",
        "batch size of the highest rate",
        unknown,
        FACT,
      ),
      ownColumn("max_items_per_s", "items/s", "rate", "highest rate", unknown, CLEAN),
      ownColumn(
        "memory_limit_bytes",
        "memory limit",
        "bytes",
        "memory that the search was allowed",
        "no limit was set",
        FACT,
      ),
      ownColumn(
        "search",
        "search",
        "text",
        "how the largest batch was looked for",
        "it is not known",
      ),
    ],
    {
      name: "limits",
      cells: {
        limited_by: (value) =>
          el(
            "td",
            { class: "text wrapped" },
            shown(value, "text", "nothing refused: the search's own bound ended it"),
          ),
      },
    },
  );
  const notes = [...new Set(limits.map((one) => one.note).filter(Boolean))];
  append(
    box,
    notes.map((note) =>
      remark(
        notes.length > 1
          ? limits
              .filter((one) => one.note === note)
              .map((one) => one.dtype)
              .join(", ") + ": "
          : "",
        sentence(note),
      ),
    ),
  );
}

function drawThroughputTable(box, rows) {
  if (!rows.length) return;
  const why = cellWithReason("it is not known");
  const figures = [
    "items_per_s",
    "latency_s",
    "latency_p90_s",
    "peak_memory_bytes",
    "batches",
    "total_s",
  ];
  const columns = [
    ownColumn("dtype", "data type", "text", "data type of model and inputs"),
    ownColumn("batch_size", "batch", "plain", "items of one batch", null, FACT),
    ownColumn("status", "status", "text", "what became of it"),
    ownColumn(
      "items_per_s",
      "items/s",
      "rate",
      "batches times batch size over the total time",
      null,
      CLEAN,
    ),
    ownColumn("latency_s", "median batch", "s", "median time of a batch", null, CLEAN),
    ownColumn("latency_p90_s", "p90", "s", "nine of ten batches took no longer", null, CLEAN),
    ownColumn(
      "peak_memory_bytes",
      "peak memory",
      "bytes",
      "most memory in use meanwhile",
      null,
      PEAK_READ,
    ),
    ownColumn("batches", "batches", "plain", "batches timed", null, OWN_COUNT),
    ownColumn("total_s", "total", "s", "host time over them all", null, CLEAN),
    ownColumn("reason", "why not", "text", "why there are no figures", "it has figures"),
  ];
  const spec = {
    name: "batches",
    plain: false,
    sort: { key: "batch_size", direction: 1 },
    hidden: rows.some((row) => row.reason) ? [] : ["reason"],
    cells: {
      ...Object.fromEntries(figures.map((key) => [key, why])),
      status: (value) =>
        el(
          "td",
          {},
          chip(
            value,
            value === "measured" ? "complete" : value === "failed" ? "failed" : "partial",
          ),
        ),
      reason: (value) =>
        el("td", { class: "text wrapped" }, shown(value, "text", "it has figures")),
    },
  };
  const table = el("div");
  append(box, [el("h3", {}, "Every batch"), table]);
  recordTable(table, rows, columns, spec);
}

// ---------- Variants ----------

// The same model run in several ways: time, speedup, equality of results, numbers of operators.

const COMPILED_ONCE = { words: "raw: timed once, by the step clock; no layer was on" };
const PROFILER_COUNT = { words: "counted by torch.profiler, in calls of their own" };
const DYNAMO_COUNT = { words: "counted by torch.compile's own counters" };

export function drawCompare(page) {
  const variants = page.facts.benchmark.compare || [];
  if (!variants.length) {
    drop("compare");
    return;
  }
  const measured = variants.filter((one) => isNumber(one.median_s));
  const bar = (one) => ({
    value: one.median_s,
    low: one.ci95_low_s,
    high: one.ci95_high_s,
    colour: seriesColour(variants.indexOf(one)),
    points: (one.between_process || []).filter(isNumber),
    short: formatSeconds(one.median_s),
    text: formatSeconds(one.median_s) + fasterWords(one),
    tip: [
      one.variant,
      [
        ["median", formatSeconds(one.median_s)],
        spanText(one.ci95_low_s, one.ci95_high_s)
          ? ["95 %", spanText(one.ci95_low_s, one.ci95_high_s)]
          : null,
        ["n", formatPlain(one.n)],
        isNumber(one.compile_s) ? ["compile", formatSeconds(one.compile_s)] : null,
        ["measured", "clean, no layer armed"],
      ],
    ],
  });
  const chart = el("div", { class: "chart" });
  byId("compare-bars").append(chart);
  barChart(
    chart,
    measured.map((one) => ({ name: one.variant, bars: [bar(one)] })),
    {
      label: "time of each variant",
      name: "compare",
      unseen: true,
      says:
        measured
          .map(
            (one, at) =>
              (at ? "; " : "") + one.variant + " " + formatSeconds(one.median_s) + fasterWords(one),
          )
          .join("") + ".",
    },
  );
  // What has no bar, and what is to be known of a bar, in words.
  const words = variants
    .map((one) => [
      one.variant,
      [
        isNumber(one.median_s) ? null : one.status + (one.reason ? ": " + one.reason : ""),
        isNumber(one.median_s) && one.reason ? one.reason : null,
        one.note ? withCommands(one.note) : null,
      ].filter(Boolean),
    ])
    .filter(([, said]) => said.length);
  if (words.length)
    byId("compare-bars").append(
      el(
        "ul",
        { class: "names" },
        words.map(([variant, said]) =>
          el(
            "li",
            {},
            el("b", {}, variant),
            ": ",
            said.map((part, at) => [at ? "; " : "", part]),
          ),
        ),
      ),
    );
  const dots = variants.some((one) => (one.between_process || []).length);
  byId("compare-bars").append(
    remark(
      "Whiskers are the 95 % interval of the median within this process",
      dots
        ? ["; dots are the medians of ", term("between-process", "fresh processes"), "."]
        : ["; between ", term("between-process", "fresh processes"), " the spread is wider."],
    ),
  );
  const tolerances = [
    ...new Set(
      variants.map((one) => one.tolerance).filter((one) => one !== null && one !== undefined),
    ),
  ];
  if (tolerances.length)
    byId("compare-bars").append(
      remark("Results are equal when they are eager's within " + tolerances.join("; or ") + "."),
    );
  drawCompareTable(byId("compare-table"), variants);
  drawFused(byId("compare-fused"), variants);
}

const fasterWords = (one) =>
  isNumber(one.speedup) && one.variant !== "eager"
    ? ", " + formatFactor(one.speedup) + " × as fast"
    : "";

// Operators and kernels are beside eager's: fewer of them is what fusion looks like.
function countCell(key, eager) {
  return (value, record) => {
    const change =
      isNumber(value) && record.variant !== "eager" && eager && isNumber(eager[key])
        ? value - eager[key]
        : null;
    return el(
      "td",
      { class: "number" },
      shown(value, "plain", record.reason || "they were not counted"),
      change ? quiet(" (" + (change > 0 ? "+" : "−") + Math.abs(change) + ")") : null,
    );
  };
}

const unlessEager = (record, text) =>
  record.variant === "eager" ? "the others are beside it" : record.reason || text;

const smallNumber = (value) =>
  value === 0
    ? "0"
    : value < 1e-3
      ? value.toExponential(1).replace("e-", "e−")
      : value.toPrecision(2);

function drawCompareTable(box, variants) {
  const eager = variants.find((one) => one.variant === "eager");
  const number = (unit, text) => (value, record) =>
    el("td", { class: "number" }, shown(value, unit, unlessEager(record, text)));
  const span = (low, high, format) =>
    isNumber(low) && isNumber(high) ? quiet(" " + format(low) + " – " + format(high)) : null;
  const columns = [
    ownColumn("variant", "variant", "text", "way of running the model"),
    ownColumn("status", "status", "text", "what became of it"),
    ownColumn(
      "median_s",
      "median",
      "s",
      "median time of a call with its 95 % interval",
      null,
      CLEAN,
    ),
    ownColumn(
      "speedup",
      "speedup",
      "count",
      "eager's time over its time, with the 95 % interval",
      null,
      CLEAN,
    ),
    ownColumn(
      "compile_s",
      "compile",
      "s",
      "time to make it ready, its first call included; no part of the median",
      null,
      COMPILED_ONCE,
    ),
    ownColumn("equal", "results", "text", "whether they are eager's within the tolerance"),
    ownColumn(
      "max_difference",
      "difference",
      "plain",
      "largest absolute difference of a result",
      null,
      FACT,
    ),
    ownColumn(
      "operators",
      "operators",
      "plain",
      "operators called by one call; beside it the change from eager",
      null,
      PROFILER_COUNT,
    ),
    ownColumn(
      "kernels",
      "kernels",
      "plain",
      "kernels run by one call; beside it the change from eager",
      "no kernel of a device was seen",
      PROFILER_COUNT,
    ),
    ownColumn(
      "graphs",
      "graphs",
      "plain",
      "graphs compiled, and the breaks between them",
      null,
      DYNAMO_COUNT,
    ),
    ownColumn("n", "n", "plain", "samples", null, OWN_COUNT),
  ];
  // The reason is wanted by the cells though it has no column of its own.
  const reasons = new Map(variants.map((one) => [one.variant, one.reason]));
  const withReason = (cell) => (value, record, column) =>
    cell(value, { ...record, reason: reasons.get(record.variant) }, column);
  const cells = {
    status: (value) => el("td", {}, chip(value, value === "measured" ? "complete" : value)),
    median_s: (value, record) => {
      const one = variants.find((other) => other.variant === record.variant) || {};
      return el(
        "td",
        { class: "number" },
        shown(value, "s", one.reason),
        span(one.ci95_low_s, one.ci95_high_s, formatSeconds),
      );
    },
    speedup: (value, record) => {
      const one = variants.find((other) => other.variant === record.variant) || {};
      return el(
        "td",
        { class: "number" },
        isNumber(value) ? formatFactor(value) + " ×" : none(one.reason),
        span(one.speedup_low, one.speedup_high, formatFactor),
      );
    },
    compile_s: withReason(number("s", "there is nothing to compile")),
    equal: withReason((value, record) =>
      el(
        "td",
        {},
        value === null
          ? none(unlessEager(record, "they were not compared"))
          : chip(value ? "equal" : "differ", value ? "complete" : "failed"),
      ),
    ),
    max_difference: withReason((value, record) =>
      el(
        "td",
        { class: "number" },
        isNumber(value) ? smallNumber(value) : none(unlessEager(record, "they were not compared")),
      ),
    ),
    operators: withReason(countCell("operators", eager)),
    kernels: withReason(countCell("kernels", eager)),
    graphs: withReason((value, record) => {
      const one = variants.find((other) => other.variant === record.variant) || {};
      return el(
        "td",
        { class: "number" },
        shown(value, "plain", unlessEager(record, "nothing was compiled")),
        isNumber(one.breaks)
          ? quiet(", " + one.breaks + (one.breaks === 1 ? " break" : " breaks"))
          : null,
      );
    }),
    n: withReason(number("plain", "it was not measured")),
  };
  recordTable(box, variants, columns, { name: "variants", cells });
}

function drawFused(box, variants) {
  const fused = variants.filter((one) => (one.fused_names || []).length);
  if (!fused.length) {
    box.remove();
    return;
  }
  append(
    box,
    fused.map((one) =>
      el(
        "details",
        {},
        el(
          "summary",
          {},
          one.fused_names.length +
            (one.fused_names.length === 1 ? " fused kernel of " : " fused kernels of ") +
            one.variant,
        ),
        el(
          "ul",
          { class: "names" },
          one.fused_names.map((name) => el("li", {}, el("code", {}, name))),
        ),
      ),
    ),
  );
}

// ---------- Mistakes and ablation ----------

// The same model timed wrong, beside the right value; and what each part of timing right is worth.

const WRONG = "var(--kind-torch)";
const RIGHT = "var(--kind-clean)";
const AS_MISTAKEN = { words: "raw: timed as the mistake has it; no layer was on" };
const TIMED_SO = { words: "raw: timed in this way; no layer was on" };
const WRONG_OVER_RIGHT = { words: "raw: the time as the mistake has it, over the clean one" };

export function drawMistakes(page) {
  const mistakes = page.facts.benchmark.mistakes || [];
  if (!mistakes.length) {
    drop("mistakes");
    return;
  }
  const spread = (row, side) =>
    isNumber(row[side + "_std_s"]) ? " ± " + formatSeconds(row[side + "_std_s"]) : "";
  const bar = (row, side, colour) => ({
    value: row[side + "_s"],
    colour,
    name: side,
    low: isNumber(row[side + "_std_s"]) ? row[side + "_s"] - row[side + "_std_s"] : null,
    high: isNumber(row[side + "_std_s"]) ? row[side + "_s"] + row[side + "_std_s"] : null,
    short: side + " " + formatSeconds(row[side + "_s"]),
    text: formatSeconds(row[side + "_s"]) + spread(row, side),
    tip: [
      row.title + ", " + side,
      [
        ["mean", formatSeconds(row[side + "_s"])],
        [
          "deviation",
          isNumber(row[side + "_std_s"])
            ? formatSeconds(row[side + "_std_s"])
            : "one sample has none",
        ],
        ["n", formatPlain(row["n_" + side])],
        isNumber(row.factor) ? ["wrong over right", formatFactor(row.factor) + " ×"] : null,
      ],
    ],
  });
  const isMeasured = (row) =>
    row.applies && !row.error && isNumber(row.wrong_s) && isNumber(row.right_s);
  const measured = mistakes.filter(isMeasured);
  const chart = el("div", { class: "chart" });
  if (measured.length)
    append(byId("mistakes-bars"), [
      el(
        "ul",
        { class: "legend" },
        [
          ["wrong", WRONG],
          ["right", RIGHT],
        ].map(([name, colour]) => el("li", {}, swatch(colour), name)),
        el("li", { class: "quiet" }, "whiskers: standard deviation"),
      ),
      chart,
    ]);
  barChart(
    chart,
    measured.map((row) => ({
      name: row.title,
      bars: [bar(row, "wrong", WRONG), bar(row, "right", RIGHT)],
    })),
    {
      label: "wrong and right, side by side",
      name: "mistakes",
      unseen: true,
      says:
        measured
          .map(
            (row, at) =>
              (at ? "; " : "") +
              row.title +
              ": wrong " +
              formatSeconds(row.wrong_s) +
              ", right " +
              formatSeconds(row.right_s),
          )
          .join("") + ".",
    },
  );
  // What can be compared is first; the rest says in words why not.
  const words = (row) => [
    row.error ? el("code", {}, row.error) : null,
    row.error && row.note ? " " : null,
    row.note ? withCommands(row.note) : null,
  ];
  const said = [...measured, ...mistakes.filter((row) => !isMeasured(row))].filter(
    (row) => row.error || row.note,
  );
  if (said.length)
    byId("mistakes-bars").append(
      el(
        "ul",
        { class: "names" },
        said.map((row) =>
          el(
            "li",
            { class: isMeasured(row) ? null : "quiet" },
            el("b", {}, row.title),
            ": ",
            words(row),
          ),
        ),
      ),
    );
  drawMistakeTable(byId("mistakes-table"), mistakes);
}

const mistakeStatus = (row) =>
  row.error ? "failed" : row.applies ? "differs" : "cannot differ here";

function drawMistakeTable(box, mistakes) {
  const columns = [
    ownColumn("title", "mistake", "text", "what is done wrong"),
    ownColumn("state", "here", "text", "whether it can differ on this device"),
    ownColumn(
      "wrong_s",
      "wrong",
      "s",
      "mean and deviation as the mistake has it",
      null,
      AS_MISTAKEN,
    ),
    ownColumn("right_s", "right", "s", "mean and deviation, timed right", null, CLEAN),
    ownColumn(
      "factor",
      "wrong over right",
      "count",
      "the factor with its 95 % interval",
      null,
      WRONG_OVER_RIGHT,
    ),
    ownColumn("n_wrong", "n wrong", "plain", "samples of the wrong way", null, OWN_COUNT),
    ownColumn("n_right", "n right", "plain", "samples of the right way", null, OWN_COUNT),
  ];
  const records = mistakes.map((row) => ({
    ...row,
    state: mistakeStatus(row),
    why: [row.error, row.note].filter(Boolean).join("; ") || null,
  }));
  const of = (record) => records.find((row) => row.title === record.title) || {};
  const why = (row) =>
    row.applies ? row.why : "it cannot differ here: " + (row.note || "no reason was told");
  const mean = (side) => (value, record) => {
    const row = of(record);
    const std = row[side + "_std_s"];
    return el(
      "td",
      { class: "number" },
      shown(value, "s", why(row)),
      isNumber(std) ? quiet(" ± " + formatSeconds(std)) : null,
    );
  };
  const plain = (value, record) =>
    el("td", { class: "number" }, shown(value, "plain", why(of(record))));
  recordTable(box, records, columns, {
    name: "timing mistakes",
    cells: {
      state: (_value, record) => {
        const row = of(record);
        return el(
          "td",
          {},
          row.error
            ? chip("failed", "failed")
            : row.applies
              ? verdictChip(row)
              : quiet("cannot differ"),
        );
      },
      wrong_s: mean("wrong"),
      right_s: mean("right"),
      n_wrong: plain,
      n_right: plain,
      factor: (value, record) => {
        const row = of(record);
        return el(
          "td",
          { class: "number" },
          isNumber(value) ? formatFactor(value) + " ×" : none(why(row)),
          isNumber(row.ci95_low) && isNumber(row.ci95_high)
            ? quiet(" " + formatFactor(row.ci95_low) + " – " + formatFactor(row.ci95_high))
            : null,
        );
      },
    },
  });
}

// An interval that holds 1 shows no difference, a wide one nothing; without one nothing is claimed.
function verdictChip(row) {
  if (!isNumber(row.factor)) return none(row.note || "it was not measured");
  if (!isNumber(row.ci95_low) || !isNumber(row.ci95_high)) return quiet("no interval");
  return row.ci95_low <= 1 && row.ci95_high >= 1
    ? row.ci95_high > 1.2 * row.ci95_low
      ? chip(
          "from " + formatFactor(row.ci95_low) + " to " + formatFactor(row.ci95_high) + " ×",
          "partial",
        )
      : chip("no difference seen", "complete")
    : chip(
        formatPercent(Math.abs(row.factor - 1)) + (row.factor > 1 ? " too long" : " too short"),
        "failed",
      );
}

const WAYS = [
  ["host", true],
  ["host", false],
  ["events", true],
  ["events", false],
];

export function drawAblation(page) {
  const cells = page.facts.benchmark.ablation || [];
  if (!cells.length) {
    drop("ablation");
    return;
  }
  append(
    byId("ablation-grids"),
    [...new Set(cells.map((cell) => cell.variant))].map((variant) =>
      ablationGrid(
        variant,
        cells.filter((cell) => cell.variant === variant),
      ),
    ),
  );
}

// Notes are listed once under the grid, by number: most cells have the same.
function ablationGrid(variant, cells) {
  const find = (timing, synchronise, warmup) =>
    cells.find(
      (cell) =>
        cell.timing === timing && cell.synchronise === synchronise && cell.warmup === warmup,
    );
  const reference = find("host", true, true);
  const notes = [
    ...new Set(
      WAYS.flatMap((way) => [true, false].map((warmup) => find(...way, warmup)?.note)).filter(
        Boolean,
      ),
    ),
  ];
  const clock = (timing, synchronise) => [
    el("b", {}, timing === "host" ? "host clock" : "device events"),
    el("div", { class: "quiet" }, synchronise ? "synchronised" : "not synchronised"),
  ];
  const chart = el("div", { class: "chart" });
  ablationBars(
    chart,
    variant,
    WAYS.map((way) => [way, find(...way, true), find(...way, false)]),
  );
  return el(
    "div",
    {},
    el("h3", {}, variant),
    chart,
    el(
      "div",
      { class: "scroll" },
      el(
        "table",
        { class: "ablation" },
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            ["timed by", "after warm-up", "without warm-up"].map((name) =>
              el("th", { scope: "col", class: "head-cell" }, name),
            ),
          ),
        ),
        el(
          "tbody",
          {},
          WAYS.map(([timing, synchronise]) =>
            el(
              "tr",
              {},
              el("th", { scope: "row", class: "head-cell" }, clock(timing, synchronise)),
              [true, false].map((warmup) =>
                ablationCell(find(timing, synchronise, warmup), reference, notes),
              ),
            ),
          ),
        ),
      ),
    ),
    notes.length
      ? el(
          "ol",
          { class: "names quiet" },
          notes.map((note) => el("li", {}, withCommands(note))),
        )
      : null,
  );
}

const wayName = ([timing, synchronise]) =>
  (timing === "host" ? "host clock" : "device events") +
  ", " +
  (synchronise ? "synchronised" : "not synchronised");

// Bars for what was measured, with a warm-up and without. The table says why others have no figure.
function ablationBars(box, variant, ways) {
  const bar = (way, cell, name, colour) => {
    const low = isNumber(cell.std_s) ? cell.mean_s - cell.std_s : null;
    const high = isNumber(cell.std_s) ? cell.mean_s + cell.std_s : null;
    return {
      value: cell.mean_s,
      low,
      high,
      colour,
      name,
      short: formatSeconds(cell.mean_s),
      text: formatSeconds(cell.mean_s),
      tip: [
        variant + ", " + wayName(way),
        [
          ["timed", name],
          ["mean", formatSeconds(cell.mean_s)],
          isNumber(cell.std_s) ? ["deviation", formatSeconds(cell.std_s)] : null,
          ["n", formatPlain(cell.n)],
          cell.note ? ["note", cell.note] : null,
        ],
      ],
    };
  };
  const has = (cell) => cell?.valid && !cell.error && isNumber(cell.mean_s);
  const rows = ways.map(([way, warm, cold]) => ({
    name: wayName(way),
    bars: [
      has(warm) ? bar(way, warm, "warm", RIGHT) : null,
      has(cold) ? bar(way, cold, "cold", "var(--kind-warmup)") : null,
    ].filter(Boolean),
  }));
  const says =
    rows
      .filter((row) => row.bars.length)
      .map(
        (row, at) =>
          (at ? "; " : "") +
          row.name +
          ": " +
          row.bars.map((one) => one.name + " " + one.text).join(", "),
      )
      .join("") + ".";
  barChart(box, rows, {
    label: "what each way of timing gives, " + variant,
    name: "ablation",
    unseen: true,
    says,
  });
}

function ablationCell(cell, reference, notes) {
  if (!cell) return el("td", {}, none("this cell was not measured"));
  const note = cell.note
    ? el("sup", { title: cell.note }, String(notes.indexOf(cell.note) + 1))
    : null;
  if (!cell.valid || cell.error)
    return el(
      "td",
      { class: "invalid" },
      el("b", {}, cell.valid ? "failed" : "invalid"),
      note,
      cell.error ? el("code", {}, cell.error) : null,
    );
  if (!isNumber(cell.mean_s)) return el("td", {}, quiet("no figure of its own"), note);
  const base = reference && isNumber(reference.mean_s) ? reference.mean_s : null;
  return el(
    "td",
    { class: cell === reference ? "reference" : null },
    el("b", {}, figure(cell.mean_s, "s", cell === reference ? CLEAN : TIMED_SO)),
    isNumber(cell.std_s) ? quiet(" ± " + formatSeconds(cell.std_s)) : null,
    note,
    el(
      "div",
      { class: "quiet" },
      cell === reference
        ? "the right way, "
        : base
          ? formatFactor(cell.mean_s / base) + " ×, "
          : "",
      "n = " + formatPlain(cell.n),
    ),
  );
}
