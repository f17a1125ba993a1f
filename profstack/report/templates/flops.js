// Floating-point operations: the counters side by side, and what each of them leaves out.

import {
  around,
  axis,
  CHART_FONT,
  freeBox,
  logFrame,
  markSample,
  plot,
  plotText,
  pointBox,
  tallAxis,
  widthOf,
} from "./charts.js";
import {
  append,
  byId,
  byRow,
  CALIBRATED,
  CLEAN,
  card,
  chip,
  choice,
  el,
  FACT,
  figure,
  formatBytes,
  formatCount,
  formatFactor,
  formatPercent,
  formatSeconds,
  isNumber,
  NONE,
  none,
  plural,
  provenance,
  RAW_TORCH,
  remark,
  TORCH_COUNT,
  term,
  withCommands,
} from "./dom.js";
import { asRecords, barCell, cellWithReason, makeTable, ownColumn } from "./table.js";
import { drop, go, hasView, isImportAlone, linkTo, rowsOf, wayTo } from "./views.js";

export const flopsView = {
  id: "flops",
  title: "FLOPs and roofline",
  needs: ["counters", "roofline", "modules", "operators_by_name"],
  has: (page) =>
    !isImportAlone(page.facts) && ["counters", "roofline"].some((name) => rowsOf(page, name)),
  parts: [
    ["flops", drawFlops],
    ["roofline", drawRoofline],
  ],
};

const FLOPS_ORIGIN = { layer: "flops", kind: "counted" };
// The third counter reads the shapes that the torch layer's slices recorded.
const counterOrigin = (name) =>
  String(name).startsWith("recorded_shapes")
    ? { words: "counted by recorded_shapes, from the shapes that the torch layer saw" }
    : FLOPS_ORIGIN;

function drawFlops(page) {
  const all = page.counters || [];
  const counters = all.filter((one) => !one.note);
  if (!all.length) {
    drop("flops");
    return;
  }
  if (!counters.length) {
    byId("flop-lead").append(
      "No counter has figures. ",
      ...all.flatMap((one) => [el("b", {}, one.counter), ": ", one.note, ". "]),
    );
    return;
  }
  const source = page.facts.columns_source?.["modules.forward_flop"] || "";
  const record = counters.find((one) => source.startsWith(one.counter)) || counters[0];
  byId("flop-lead").append(
    "Operations of one ",
    term("step", "step"),
    "; a multiply-add is two ",
    term("flop", "FLOP"),
    ". ",
    el("b", {}, record.counter),
    " is the record: its figures are at the modules",
    counters.length > 1 ? "; the others are there to check it." : ".",
    " By module they are drawn under ",
    linkTo("modules", null, "Modules"),
    " (area: FLOP).",
  );
  drawRates(byId("flop-cards"), record, page.facts.benchmark.median_s);
  drawCausal(byId("flop-lead"), record);
  drawCounters(byId("flop-counters"), all, record, page);
  drawUncounted(byId("flop-uncounted"), counters, page);
}

const bothWays = (one) =>
  isNumber(one.forward_flop) ? one.forward_flop + (one.backward_flop || 0) : null;

function drawRates(box, record, median) {
  const all = bothWays(record);
  const rate = isNumber(all) && median ? all / median : null;
  const counted = counterOrigin(record.counter);
  box.append(
    card(
      "forward",
      [figure(record.forward_flop, "flop", { ...counted, reason: "nothing was counted" }), " FLOP"],
      isNumber(record.forward_mac) ? [figure(record.forward_mac, "mac", counted), " MAC"] : null,
    ),
    card(
      "backward",
      [
        figure(record.backward_flop, "flop", {
          ...counted,
          reason: "no backward pass was counted",
        }),
        isNumber(record.backward_flop) ? " FLOP" : "",
      ],
      isNumber(record.backward_flop) && record.forward_flop
        ? formatFactor(record.backward_flop / record.forward_flop) + " × forward"
        : null,
    ),
    card(
      ["rate in a ", term("clean", "clean"), " step"],
      [
        figure(rate, "rate", {
          kind: "rate",
          source: record.counter,
          over: "clean",
          reason: "there is no clean step time",
        }),
        isNumber(rate) ? " FLOP/s" : "",
      ],
      "counted operations over the whole step",
      "main",
    ),
  );
}

// Both totals where attention was called as causal: dense, and what the mask leaves.
function drawCausal(box, record) {
  if (!isNumber(record.causal_forward_flop)) return;
  const backward = isNumber(record.causal_backward_flop)
    ? [" and ", el("b", {}, formatCount(record.causal_backward_flop)), " backward"]
    : [];
  box.append(
    " Attention that is called as causal counts dense, as by formula; counted as its mask " +
      "leaves it, the step has ",
    el("b", {}, formatCount(record.causal_forward_flop)),
    " FLOP forward",
    ...backward,
    ". Kernels differ in how much of the rest they skip.",
  );
}

function drawCounters(box, counters, record, page) {
  const lacking = (one) =>
    (one.uncounted || [])
      .map((row) => row.time_share)
      .filter(isNumber)
      .reduce((sum, share) => sum + share, 0);
  const why = (key, otherwise) => page.facts.columns_reason?.["flops." + key] || otherwise;
  const counted = (key, label, unit, meaning, reason) =>
    byRow(ownColumn(key, label, unit, meaning, reason), (row) => counterOrigin(row.counter));
  const columns = [
    ownColumn("counter", "counter", "text", "what counts"),
    counted(
      "forward_flop",
      "forward FLOP",
      "flop",
      "operations in forward, per step",
      why("forward_flop", "it counted nothing in forward"),
    ),
    counted(
      "backward_flop",
      "backward FLOP",
      "flop",
      "operations in backward, per step",
      why("backward_flop", "it counted nothing in backward"),
    ),
    counted(
      "causal_forward_flop",
      "forward, masked",
      "flop",
      "the same with attention called as causal counted as its mask leaves it",
      why("causal_forward_flop", "it does not say which attention is causal"),
    ),
    counted(
      "causal_backward_flop",
      "backward, masked",
      "flop",
      "the same of backward",
      why("causal_backward_flop", "it does not say which attention is causal"),
    ),
    counted(
      "forward_mac",
      "forward MAC",
      "mac",
      "multiply-adds in forward, per step",
      why("forward_mac", "it has formulas for more than multiply-adds"),
    ),
    counted(
      "left_out",
      "without a formula",
      "count",
      "operators that ran and that it has no formula for",
      "it does not tell what it leaves out",
    ),
    ownColumn(
      "left_share",
      "their share of time",
      "share",
      "time of those operators, with what they call, over the step's, as the torch layer saw it",
      "it does not tell what it leaves out",
      RAW_TORCH,
    ),
    ownColumn(
      "difference",
      "against the record",
      "text",
      "by how much it differs from the record, in which operators, and why",
      "it is the record, or has no figures",
    ),
    ownColumn("note", "why not", "text", "why a counter has no figures", "it has figures"),
  ];
  const rows = counters.map((one) => [
    one.counter + (one === record ? " (the record)" : ""),
    one.forward_flop,
    one.backward_flop,
    one.causal_forward_flop,
    one.causal_backward_flop,
    one.forward_mac,
    one.uncounted ? one.uncounted.length : null,
    one.uncounted ? lacking(one) : null,
    one.difference,
    one.note,
  ]);
  const seldom = ["causal_forward_flop", "causal_backward_flop", "note"];
  // In what counters differ is told in sentences below: a cell would be a column of single words.
  const hidden = [
    "difference",
    ...seldom.filter((key) => counters.every((one) => one[key] === null || one[key] === undefined)),
  ];
  const wrapped = (reason) => (value) => el("td", { class: "text wrapped" }, value || none(reason));
  makeTable(box, {
    table: { columns, rows, left_out: null },
    name: "counters",
    plain: true,
    hidden,
    cells: { note: wrapped("it has figures") },
  });
  const different = counters.filter((one) => one.difference);
  if (different.length)
    box.append(
      el(
        "ul",
        { class: "said", id: "flop-differences" },
        different.map((one) =>
          el("li", {}, el("b", {}, one.counter), " against the record: ", one.difference),
        ),
      ),
    );
}

// One row per operator without a formula, one column per counter.
function drawUncounted(box, counters, page) {
  const operators = new Map();
  for (const one of counters) {
    for (const row of one.uncounted || []) {
      const known = operators.get(row.operator) || { operator: row.operator, time_share: null };
      if (isNumber(row.time_share)) known.time_share = row.time_share;
      known[one.counter] = row.calls;
      known.why = known.why || row.why || null;
      operators.set(row.operator, known);
    }
  }
  if (!operators.size) {
    box.append(remark("No operator that ran is without a formula."));
    return;
  }
  const keys = ["operator", "time_share", ...counters.map((one) => one.counter), "why"];
  const columns = [
    ownColumn("operator", "operator or function", "text", "what ran without being counted"),
    ownColumn(
      "time_share",
      "share of the step",
      "share",
      "its time, with what it calls, over the step's",
      "the torch layer saw no operator of this name",
      RAW_TORCH,
    ),
    ...counters.map((one) =>
      ownColumn(
        one.counter,
        "calls, " + one.counter,
        "count",
        "calls per step that this counter left out",
        "it counts this one, or did not meet it",
        counterOrigin(one.counter),
      ),
    ),
    ownColumn(
      "why",
      "known for",
      "text",
      "what is known of the tool",
      "there is nothing known of it",
    ),
  ];
  const rows = [...operators.values()].map((record) =>
    keys.map((key) => (record[key] === undefined ? null : record[key])),
  );
  // Counters name functions of Python too, which no layer has rows for.
  const known = new Set(
    page.tables.operators_by_name
      ? asRecords(page.tables.operators_by_name).map((record) => record.name)
      : [],
  );
  box.append(el("h3", {}, "Left out: no formula"));
  const table = el("div");
  box.append(table);
  makeTable(table, {
    table: { columns, rows, left_out: null },
    name: "uncounted operators",
    view: "flops",
    keyOf: (record) => record.operator,
    sort: { key: "time_share", direction: -1 },
    bars: ["time_share"],
    barColour: "var(--self)",
    cells: {
      operator: (value) =>
        el(
          "td",
          { class: "text", title: value },
          known.has(value) ? linkTo("operators", value, value) : value,
        ),
    },
  });
}

// ---------- Roofline ----------

// What the step, its modules and operators reach under the roofs of the machine.

const BOUNDS = {
  compute: ["triangle-up", "var(--kind-clean)"],
  memory: ["circle", "var(--kind-torch)"],
  overhead: ["square", "var(--kind-nvtx)"],
};
const boundLook = (bound) => BOUNDS[bound] || ["diamond", "var(--soft)"];
const boundWords = (bound) => (BOUNDS[bound] ? bound + "-bound" : "not known");
const formatRate = (value) =>
  (isNumber(value) ? formatCount(value) + "FLOP/s" : NONE).replace(/^([\d.]+)FLOP/, "$1 FLOP");
const formatBandwidth = (value) =>
  (isNumber(value) ? formatCount(value) + "B/s" : NONE).replace(/^([\d.]+)B/, "$1 B");
const hasPoint = (point) =>
  isNumber(point.intensity) &&
  point.intensity > 0 &&
  isNumber(point.flop_per_s) &&
  point.flop_per_s > 0;

function drawRoofline(page) {
  const facts = page.roofline;
  if (!facts) {
    drop("roofline");
    return;
  }
  const flops = (facts.peaks.flop_per_s || []).filter(
    (peak) => isNumber(peak.value) && peak.value > 0,
  );
  const bytes = (facts.peaks.bytes_per_s || []).filter(
    (peak) => isNumber(peak.value) && peak.value > 0,
  );
  const sources = page.facts.columns_source || {};
  drawMfu(byId("roofline-cards"), facts, flops, bytes, sources);
  if (facts.reason) byId("roofline-reason").append(remark(withCommands(facts.reason)));
  const points = facts.points.filter(hasPoint);
  const kinds = ["operator", "module"].filter((kind) =>
    points.some((point) => point.kind === kind),
  );
  if (points.length) drawRooflineChart(points, kinds, flops, bytes);
  else
    byId("roofline-chart").append(
      remark(
        facts.points.length
          ? "Nothing has a place in the plot: the table says why."
          : "There is no point to plot.",
      ),
    );
  drawPlaceless(byId("roofline-placeless"), facts);
  drawRooflineTable(byId("roofline-table"), facts, sources);
}

function drawMfu(box, facts, flops, bytes, sources) {
  const rate = pointOrigins(sources).rate({ kind: "step", seconds_is: "clean" });
  const peakTitle = (peak) =>
    peak.source === "measured"
      ? "raw: measured on this machine, in time of its own"
      : provenance(FACT);
  const peakFigure = (peak, text) =>
    el(
      "span",
      { class: "figure", title: String(peak.value) + " per second\n" + peakTitle(peak) },
      text,
    );
  for (const one of facts.mfu) {
    const known = isNumber(one.value);
    box.append(
      card(
        [
          term("mfu", "MFU"),
          " of the " + one.source + " peak" + (one.dtype ? ", " + one.dtype : ""),
        ],
        figure(one.value, "share", {
          ...rate,
          reason: one.warning || "operations, time or peak are not known",
        }),
        one.warning
          ? withCommands(one.warning)
          : formatCount(one.flop) + " FLOP in " + formatSeconds(one.seconds),
        known ? "main" : "wrong",
      ),
    );
  }
  for (const peak of flops)
    box.append(
      card("peak, " + peak.dtype, peakFigure(peak, formatRate(peak.value)), [
        peak.source,
        peak.how ? ": " + peak.how : "",
      ]),
    );
  for (const peak of bytes)
    box.append(
      card("memory", peakFigure(peak, formatBandwidth(peak.value)), [
        peak.source,
        peak.how ? ": " + peak.how : "",
      ]),
    );
  const where = facts.peaks;
  const known = [
    where.device,
    isNumber(where.threads) ? where.threads + (where.threads === 1 ? " thread" : " threads") : null,
    where.torch ? "torch " + where.torch : null,
    where.measured_at ? "measured " + where.measured_at : null,
  ].filter(Boolean);
  if (known.length) byId("roofline-where").append(known.join(", ") + ".");
}

function drawRooflineChart(points, kinds, flops, bytes) {
  const state = { kind: kinds[0] || "step" };
  const view = () => ({
    points: points.filter((point) => point.kind === state.kind || point.kind === "step"),
    all: points,
    flops,
    bytes,
  });
  const redraw = plot(byId("roofline-chart"), (theme) => rooflineChart(theme, view(), state.kind), {
    label: "rate against arithmetic intensity, under the roofs",
    says: rooflineSays(points),
    height: rooflineHeight,
    name: "roofline",
    tip: (point) => roofTip(point.customdata),
    onClick: (point) => {
      const way = wayOfPoint(point.customdata);
      if (way) go(way);
    },
  });
  if (kinds.length > 1)
    byId("roofline-tools").append(
      choice(
        "what to plot",
        kinds.map((kind) => [kind, kind + "s"]),
        state.kind,
        (kind) => {
          state.kind = kind;
          redraw();
        },
      ),
    );
  const bounds = [
    ...new Set(points.map((point) => (BOUNDS[point.bound] ? point.bound : null))),
  ].sort();
  byId("roofline-legend").append(
    el(
      "ul",
      { class: "legend" },
      bounds.map((bound) =>
        el(
          "li",
          {},
          markSample(...boundLook(bound)),
          bound ? term(bound + "-bound") : boundWords(bound),
        ),
      ),
      points.some((point) => point.kind === "step")
        ? el("li", {}, markSample("circle-open", "var(--text)"), "the whole step")
        : null,
      [...flops, ...bytes].some((peak) => peak.source === "measured")
        ? el("li", { class: "quiet" }, "— measured roof")
        : null,
      [...flops, ...bytes].some((peak) => peak.source === "datasheet")
        ? el("li", { class: "quiet" }, "- - datasheet")
        : null,
    ),
  );
}

const rooflineHeight = (width) => Math.round(Math.min(480, Math.max(340, width * 0.45)));

// The bounds that were found, and how near to its roof the step comes.
function rooflineSays(points) {
  const step = points.find((point) => point.kind === "step");
  const rest = points.filter((point) => point.kind !== "step");
  const counted = Object.keys(BOUNDS)
    .map((bound) => [bound, rest.filter((point) => point.bound === bound).length])
    .filter(([, count]) => count);
  return [
    step
      ? [
          "The step does ",
          formatRate(step.flop_per_s),
          " at ",
          formatCount(step.intensity),
          " FLOP/byte",
          isNumber(step.share_of_peak)
            ? [", ", formatPercent(step.share_of_peak), " of its roof"]
            : "",
          ". ",
        ]
      : "",
    rest.length
      ? [
          "Of ",
          plural(rest.length, "point"),
          " of modules and operators ",
          counted.length
            ? counted.map(
                ([bound, count], at) =>
                  (at ? ", " : "") + count + (count === 1 ? " is " : " are ") + bound + "-bound",
              )
            : "none has a bound that is told",
          ".",
        ]
      : "",
  ];
}

export const shortPointName = (point) =>
  point.kind === "operator" ? point.name.split(" in ")[0] : point.name;

// The row of a point: a module's or an operator's; the step has none.
const wayOfPoint = (point) =>
  point && (point.kind === "module" || point.kind === "operator") && hasView(point.kind + "s")
    ? wayTo(point.kind + "s", shortPointName(point))
    : null;

const roofTip = (point) =>
  point && [
    point.name,
    [
      ["bound", boundWords(point.bound)],
      ["intensity", formatCount(point.intensity) + " FLOP/byte"],
      ["rate", formatRate(point.flop_per_s)],
      isNumber(point.share_of_peak) ? ["of its roof", formatPercent(point.share_of_peak)] : null,
      ["time", formatSeconds(point.seconds) + (point.seconds_is ? ", " + point.seconds_is : "")],
      ["FLOP", formatCount(point.flop)],
      ["moved", formatBytes(point.moved_bytes)],
      point.reason ? ["why", point.reason] : null,
      wayOfPoint(point) ? ["click", "to its row"] : null,
    ],
  ];

function rooflineChart(theme, view, kind) {
  const { points, all, flops, bytes } = view;
  const ridges = bytes.flatMap((one) => flops.map((peak) => peak.value / one.value));
  const [x0, x1] = around(all.map((point) => point.intensity).concat(ridges), 2);
  const [y0, y1] = around(
    all.map((point) => point.flop_per_s).concat(flops.map((peak) => peak.value)),
    2,
    2.2,
  );
  const margin = { l: 66, r: 14, t: 30, b: 44 };
  const frame = logFrame(
    theme.width - margin.l - margin.r,
    rooflineHeight(theme.width) - margin.t - margin.b,
    [x0, x1],
    [y0, y1],
  );
  const roofs = roofTraces(theme, flops, bytes, x0, x1, y0);
  const taken = points.map((point) => pointBox(frame, point.intensity, point.flop_per_s, 7));
  const labels = roofLabels(theme, frame, taken, flops, bytes, x0, x1, y0);
  const names = pointNames(frame, taken, points, theme.narrow ? 4 : 10);
  const step = points.filter((point) => point.kind === "step");
  const marks = {
    type: "scatter",
    mode: "markers+text",
    name: "points",
    x: points.map((point) => point.intensity),
    y: points.map((point) => point.flop_per_s),
    customdata: points,
    text: points.map((point) => names.get(point)?.text || ""),
    textposition: points.map((point) => names.get(point)?.at || "top center"),
    textfont: { color: theme.text, size: CHART_FONT },
    marker: {
      opacity: 1,
      symbol: points.map((point) => boundLook(point.bound)[0]),
      color: points.map((point) => theme.colour(boundLook(point.bound)[1])),
      size: points.map((point) => (boundLook(point.bound)[0] === "circle" ? 9 : 10)),
      line: { color: theme.ground, width: 1 },
    },
  };
  const ring = {
    type: "scatter",
    mode: "markers",
    name: "step",
    x: step.map((point) => point.intensity),
    y: step.map((point) => point.flop_per_s),
    hoverinfo: "skip",
    marker: { symbol: "circle-open", size: 19, color: theme.text, line: { width: 1.6 } },
  };
  return {
    data: [...roofs, ...(step.length ? [ring] : []), marks],
    layout: {
      uirevision: kind,
      margin,
      annotations: labels,
      xaxis: axis("rate", x0, x1, {
        log: true,
        title: "arithmetic intensity, FLOP per byte",
        width: theme.width,
      }),
      yaxis: tallAxis("rate", y0, y1, {
        log: true,
        title: "FLOP/s",
        width: rooflineHeight(theme.width) - 80,
      }),
    },
  };
}

// Slopes of the memory up to the best arithmetic of the same source, and a ceiling for each peak:
// solid where it was measured, dashed from a data sheet, dotted where memory limits it.
function roofTraces(theme, flops, bytes, x0, x1, y0) {
  const line = (xs, ys, name, look) => ({
    type: "scatter",
    mode: "lines",
    name: plotText(name),
    x: xs,
    y: ys,
    hoverinfo: "skip",
    line: { color: theme.text, width: 1.6, ...look },
  });
  const dashed = (peak) => (peak.source === "datasheet" ? { dash: "dash", width: 1.3 } : {});
  const slopes = bytes.map((one) => {
    const start = Math.max(x0, y0 / one.value);
    const end = Math.min(x1, ridgeOf(flops, one));
    return end > start
      ? line([start, end], [start * one.value, end * one.value], "memory", dashed(one))
      : null;
  });
  const ceilings = flops.flatMap((peak) => {
    const start = Math.min(x1, Math.max(x0, ceilingStart(bytes, peak)));
    return [
      start > x0
        ? line([x0, start], [peak.value, peak.value], "beyond " + peak.dtype, {
            dash: "dot",
            width: 1,
            color: theme.faint(theme.text, 0.45),
          })
        : null,
      line([start, x1], [peak.value, peak.value], "roof " + peak.dtype, dashed(peak)),
    ];
  });
  return [...slopes, ...ceilings].filter(Boolean);
}

const best = (peaks) => Math.max(...peaks.map((peak) => peak.value), -Infinity);
const ofSource = (peaks, source) =>
  peaks.some((peak) => peak.source === source)
    ? peaks.filter((peak) => peak.source === source)
    : peaks;
const ridgeOf = (flops, memory) =>
  flops.length ? best(ofSource(flops, memory.source)) / memory.value : Infinity;
const ceilingStart = (bytes, peak) =>
  bytes.length ? peak.value / best(ofSource(bytes, peak.source)) : 0;

function roofLabels(theme, frame, taken, flops, bytes, x0, x1, y0) {
  const words = (text, box, left) => ({
    xref: "paper",
    yref: "paper",
    x: (left ? box.left : box.right) / frame.width,
    y: 1 - (box.top + box.bottom) / 2 / frame.height,
    xanchor: left ? "left" : "right",
    yanchor: "middle",
    borderpad: 0,
    showarrow: false,
    text: plotText(text),
    font: { color: theme.soft },
  });
  const made = [];
  for (const peak of flops.slice().sort((a, b) => b.value - a.value)) {
    const text = peak.dtype + " " + formatRate(peak.value);
    const wide = widthOf(text);
    const py = frame.y(peak.value);
    const start = frame.x(Math.min(x1, Math.max(x0, ceilingStart(bytes, peak))));
    taken.push({ left: 0, right: frame.width, top: py - 1, bottom: py + 1 });
    const at = (left, middle) => ({
      left,
      right: left + wide,
      top: middle - 7,
      bottom: middle + 7,
    });
    const box = freeBox(frame, taken, [
      at(frame.width - wide - 2, py - 10),
      at(frame.width - wide - 2, py + 11),
      at(start + 4, py - 10),
      at(start + 4, py + 11),
      at(4, py - 10),
    ]);
    if (box) made.push(words(text, box, false));
  }
  for (const one of bytes) {
    // Left of its slope nothing can be: there its words have room.
    const text = "memory " + formatBandwidth(one.value);
    const wide = widthOf(text);
    const start = Math.max(x0, y0 / one.value);
    const end = Math.min(x1, ridgeOf(flops, one));
    const boxes = [0.72, 0.55, 0.85, 0.4].map((part) => {
      const x = start * (end / start) ** part;
      const px = frame.x(x) - 8;
      const py = frame.y(x * one.value) - 6;
      return { left: px - wide, right: px, top: py - 7, bottom: py + 7 };
    });
    const box = freeBox(frame, taken, boxes);
    if (box) made.push(words(text, box, false));
  }
  return made;
}

// The ring around the step is wider than the mark that the library keeps a text from.
const besideRing = (point, text, at) =>
  point.kind !== "step"
    ? text
    : at.endsWith("right")
      ? "\u2002" + text
      : at.endsWith("left")
        ? text + "\u2002"
        : text;

// The heaviest get their names first, beside, above or below their marks, as far as there is room.
function pointNames(frame, taken, points, most) {
  const found = new Map();
  const named = new Set();
  for (const point of points.slice().sort((a, b) => (b.seconds || 0) - (a.seconds || 0))) {
    if (found.size >= most) break;
    const name = shortPointName(point);
    // An operator of several modules is named at its heaviest point.
    if (named.has(name)) continue;
    const shown = name.length > 30 ? "…" + name.slice(-29) : name;
    const wide = widthOf(shown);
    const px = frame.x(point.intensity);
    const py = frame.y(point.flop_per_s);
    const box = (left, middle, at) => ({
      left,
      right: left + wide,
      top: middle - 7,
      bottom: middle + 7,
      at,
    });
    const free = freeBox(frame, taken, [
      box(px + 9, py, "middle right"),
      box(px - 9 - wide, py, "middle left"),
      box(px - wide / 2, py - 14, "top center"),
      box(px - wide / 2, py + 14, "bottom center"),
      box(px + 4, py - 14, "top right"),
      box(px - 4 - wide, py - 14, "top left"),
      box(px + 4, py + 14, "bottom right"),
    ]);
    if (free) {
      found.set(point, { text: besideRing(point, plotText(shown), free.at), at: free.at });
      named.add(name);
    }
  }
  return found;
}

// What has no place in the plot, by reason.
function drawPlaceless(box, facts) {
  const without = facts.points.filter((point) => !hasPoint(point));
  if (!without.length) {
    box.remove();
    return;
  }
  const reasons = new Map();
  for (const point of without) {
    const reason =
      point.reason ||
      (isNumber(point.moved_bytes) ? "its rate is not known" : "the bytes it moves are not known");
    reasons.set(reason, [...(reasons.get(reason) || []), point.name]);
  }
  append(box, [
    el(
      "details",
      {},
      el("summary", {}, without.length + " of " + facts.points.length + " have no point, and why"),
      el(
        "ul",
        { class: "names" },
        [...reasons].map(([reason, names]) =>
          el(
            "li",
            {},
            reason + ": ",
            names.slice(0, 40).map((name, at) => [at ? ", " : "", el("code", {}, name)]),
            names.length > 40 ? " and " + (names.length - 40) + " more" : "",
          ),
        ),
      ),
    ),
  ]);
}

// A point's time is clean, calibrated or the device's own; its operations are of the counter of
// record, or for operators of the one that tells them apart.
function pointOrigins(sources) {
  const counter = (point) =>
    sources[point.kind === "operator" ? "operators.flop" : "modules.forward_flop"] ||
    (point.kind === "operator" ? "recorded_shapes" : "the flops layer");
  const over = (point) =>
    point.seconds_is === "clean" || point.seconds_is === "calibrated" ? point.seconds_is : "raw";
  return {
    time: (point) => ({ clean: CLEAN, calibrated: CALIBRATED, raw: RAW_TORCH })[over(point)],
    flop: (point) => ({ kind: "counted", source: counter(point) }),
    intensity: (point) => ({
      words: "counted by " + counter(point) + ", over bytes counted by the torch layer",
    }),
    rate: (point) => ({ layer: "torch", kind: "rate", source: counter(point), over: over(point) }),
  };
}

function drawRooflineTable(box, facts, sources) {
  if (!facts.points.length) return;
  const of = pointOrigins(sources);
  const columns = [
    ownColumn("name", "name", "text", "what ran"),
    ownColumn("kind", "kind", "text", "step, module or operator"),
    ownColumn("bound", "bound", "text", "what holds it back"),
    byRow(
      ownColumn("share_of_peak", "of its roof", "share", "its rate over the roof above it"),
      of.rate,
    ),
    byRow(ownColumn("intensity", "FLOP/byte", "count", "operations per byte moved"), of.intensity),
    byRow(ownColumn("flop_per_s", "FLOP/s", "rate", "operations per second"), of.rate),
    byRow(ownColumn("seconds", "time", "s", "its time per step"), of.time),
    ownColumn(
      "seconds_is",
      "which is",
      "text",
      "clean: measured without a layer; calibrated: the layer's share of it; device: the " +
        "device's own time",
    ),
    ownColumn(
      "reason",
      "why",
      "text",
      "why it has no place, or is bound as it is",
      "there is nothing to add",
    ),
    byRow(ownColumn("flop", "FLOP", "flop", "operations per step"), of.flop),
    ownColumn(
      "moved_bytes",
      "moved",
      "bytes",
      "bytes read and written per step",
      null,
      TORCH_COUNT,
    ),
    ownColumn("dtype", "data type", "text", "data type"),
  ];
  const why = cellWithReason("it is not known");
  const share = (value, record, column) =>
    isNumber(value) && value > 1
      ? el("td", { class: "number" }, chip(formatPercent(value), "failed"))
      : isNumber(value)
        ? barCell(value, column.unit, value, "var(--self)")
        : why(value, record, column);
  const rows = facts.points.map((record) => columns.map(({ key }) => record[key] ?? null));
  makeTable(box, {
    table: { columns, rows, left_out: facts.left_out },
    name: "points",
    view: "flops",
    keyOf: (record) => record.name,
    sort: { key: "seconds", direction: -1 },
    cells: {
      ...Object.fromEntries(
        ["intensity", "flop_per_s", "seconds", "flop", "moved_bytes", "dtype", "seconds_is"].map(
          (key) => [key, why],
        ),
      ),
      share_of_peak: share,
      bound: (value, record) =>
        el(
          "td",
          {},
          value
            ? [markSample(...boundLook(value)), boundWords(value)]
            : none(record.reason || "it is not known"),
        ),
      reason: (value) =>
        el(
          "td",
          { class: "text", title: value },
          value ? withCommands(value) : none("there is nothing to add"),
        ),
    },
  });
}
