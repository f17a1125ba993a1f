// The views "How it was measured", "Environment", "Glossary" and "More layers".

import { axis, axisTitle, plot, plotName, plotText, tickText } from "./charts.js";
import {
  append,
  asText,
  byId,
  byRow,
  CLEAN,
  card,
  chip,
  choice,
  command,
  el,
  FACT,
  figure,
  fileLink,
  formatBytes,
  formatFactor,
  formatPercent,
  formatPlain,
  formatSeconds,
  formatValue,
  hideTip,
  isNumber,
  kindColour,
  NONE,
  none,
  pairs,
  plural,
  quiet,
  RAW_CLOCK,
  remark,
  shown,
  showTip,
  swatch,
  term,
} from "./dom.js";
import { asRecords, makeTable, ownColumn, placeCell, sourceCells, whyEmpty } from "./table.js";
import { drop, isImportAlone, linkTo, rowsOf } from "./views.js";

export const methodView = {
  id: "method",
  title: "How it was measured",
  needs: ["slices", "artifacts", "threads", "watch", "watch_lines", "outliers"],
  has: (page) =>
    (page.facts.layers || []).length ||
    rowsOf(page, "slices") ||
    rowsOf(page, "threads") ||
    page.facts.watch,
  parts: [
    ["clean", drawClean],
    ["timeline-part", drawTimeline, drawSliceTable],
    ["layers", drawLayers],
    ["threads", drawThreads],
    ["watch", drawWatch],
  ],
};

export const environmentView = {
  id: "environment",
  title: "Environment",
  needs: ["artifacts"],
  has: () => true,
  parts: [
    ["environment-facts", drawFacts],
    ["files", drawArtifacts],
  ],
};

// ---------- Layers, clean steps, slices and artifacts ----------

function drawLayers(page) {
  if (!(page.facts.layers || []).length) {
    drop("layers");
    return;
  }
  const effects = new Map((page.facts.probe_effect || []).map((effect) => [effect.layer, effect]));
  // One scale for all layers; an interval beyond five times is cut there and told by its numbers.
  const most = Math.min(
    5,
    Math.max(1.5, ...[...effects.values()].map((effect) => effect.ci95_high || effect.factor || 1)),
  );
  append(
    byId("layer-list"),
    (page.facts.layers || []).map((layer) => layerRow(layer, effects.get(layer.name), most, page)),
  );
}

// Its own words on what it measures are shown unfolded: a figure is only as good as what it is of.
function layerRow(layer, effect, most, page) {
  const recorded = layer.status === "recorded" || layer.status === "emitted";
  return el(
    "article",
    { class: "layer", "data-key": "method/" + layer.name },
    el(
      "div",
      { class: "layer-name" },
      el("h4", {}, swatch(kindColour(layer.name)), layer.name, chip(layer.status, layer.status)),
      el("div", { class: "quiet" }, layer.tool, layer.version ? " " + layer.version : ""),
      pairs([
        [
          term("technique"),
          shown(layer.technique, "text", layer.reason || "its package is no longer there"),
        ],
        [term("step", "steps"), shown(layer.steps, "plain", layerSteps(layer))],
        isNumber(layer.stop_s) ? ["pauses", formatSeconds(layer.stop_s)] : null,
        [
          term("footprint", "memory"),
          shown(layer.memory_bytes, "bytes", layer.reason || "it is not known what the tool holds"),
        ],
      ]),
    ),
    el(
      "div",
      { class: "layer-effect" },
      el("div", { class: "small-name" }, term("probe-effect", "probe effect")),
      probeEffect(effect, layer, most),
    ),
    el(
      "div",
      { class: "layer-words" },
      pairs([
        layer.reason ? [recorded ? "note" : "why not", layer.reason] : null,
        !recorded && layer.command ? ["to fill it", command(layer.command)] : null,
        ["measures", layer.measures],
        ["not measured", layer.does_not_measure],
        ["usual slowdown", layer.usual_slowdown],
        ["conflicts with", layer.conflicts],
        layer.truncated ? ["left out", asText(layer.truncated)] : null,
        (layer.artifacts || []).length
          ? [
              "files",
              layer.artifacts.map((artifact) => el("div", {}, artifactLink(artifact, page))),
            ]
          : null,
      ]),
      (layer.audit || []).length
        ? el(
            "details",
            {},
            el("summary", {}, "its slices in this run"),
            el(
              "ul",
              { class: "said" },
              layer.audit.map((one) => el("li", {}, asText(one))),
            ),
          )
        : null,
    ),
  );
}

// How the clean time was found, in sentences, and what became of every step.
function drawClean(page) {
  const mark = page.facts.benchmark || {};
  const step = page.facts.step || {};
  const accounts = page.overview.accounts;
  const sentences = [];
  if (step.rule)
    sentences.push([
      "A step was taken to be what lies between two calls told by ",
      el("code", {}, step.rule),
      ", with no change to the script; ",
      formatPlain(step.count),
      " of them were of the phase ",
      el("code", {}, step.phase || NONE),
      ".",
    ]);
  if (isNumber(mark.warmup_steps))
    sentences.push([
      term("warmup", "Warm-up"),
      " ended ",
      mark.warmup_steps
        ? "after " + mark.warmup_steps + (mark.warmup_steps === 1 ? " step" : " steps")
        : "before the first step that was seen",
      ": where the step times stop falling, not after a fixed number.",
      mark.warmup_reason ? " " + mark.warmup_reason + "." : null,
    ]);
  if (isNumber(mark.median_s))
    sentences.push([
      "The ",
      term("clean", "clean"),
      " median of ",
      el("b", {}, formatSeconds(mark.median_s)),
      " is of " + mark.n + (mark.n === 1 ? " step" : " steps") + " that no layer watched",
      mark.mode ? [", timed ", term(mark.mode, mark.mode)] : null,
      "; its ",
      term("interval", "interval"),
      " is by resampling blocks of consecutive steps.",
    ]);
  else sentences.push(["There is no clean time: no step was left unwatched, warm and settled."]);
  sentences.push([
    term("calibrated", "Calibrated"),
    " times are a row's share of its slice's step time, at the speed of the clean steps; they " +
      "are not given where a layer slows its steps more than 3 times, or watched fewer than 3.",
  ]);
  if (page.facts.nsys)
    sentences.push([
      "What ",
      linkTo("nsys", null, "Nsight Systems"),
      " saw is of ",
      page.facts.nsys.steps ? plural(page.facts.nsys.steps, "step") : "a capture",
      " that it watched, with what that cost: its times are neither clean nor ",
      term("calibrated"),
      ", and no clean time rests on them.",
    ]);
  if (page.overview.page_faults) sentences.push([page.overview.page_faults]);
  append(
    byId("clean-words"),
    sentences.map((words) => el("li", {}, words)),
  );
  if (!accounts.length) return;
  const whole = accounts.reduce((sum, one) => sum + one.steps, 0);
  const bar = el("div", {
    class: "composition accounts",
    role: "img",
    "aria-label":
      "what became of the steps: " + accounts.map((one) => one.steps + " " + one.why).join("; "),
  });
  for (const one of accounts) {
    const piece = el(
      "span",
      { class: "piece" },
      one.steps / whole > 0.06 ? el("b", {}, one.steps) : "",
    );
    piece.style.flexGrow = String(one.steps / whole);
    piece.style.background = accountColour(one);
    piece.addEventListener("mousemove", (event) =>
      showTip(event, one.why, [
        ["steps", one.steps],
        ["of all", formatPercent(one.steps / whole)],
      ]),
    );
    piece.addEventListener("mouseleave", hideTip);
    bar.append(piece);
  }
  append(byId("clean-steps"), [
    bar,
    el(
      "ul",
      { class: "legend parts" },
      accounts.map((one) =>
        el("li", {}, swatch(accountColour(one)), el("b", {}, one.steps), " ", one.why),
      ),
    ),
  ]);
}

const accountColour = (one) =>
  one.counted || one.kind !== "clean"
    ? kindColour(one.kind)
    : "color-mix(in srgb, var(--kind-clean) 40%, var(--ground))";

const layerSteps = (layer) => layer.reason || "it has no slices: it observes what is between them";

// An artifact is a row of its own or as its path alone.
function artifactLink(artifact, page) {
  const path = typeof artifact === "string" ? artifact : artifact.path;
  const known =
    typeof artifact === "string"
      ? artifactRecords(page).find((record) => record.path === path) || {}
      : artifact;
  return [
    fileLink(page.base, path),
    quiet([
      isNumber(known.bytes) ? " " + formatBytes(known.bytes) : "",
      known.opens_in ? " opens in " + known.opens_in : "",
    ]),
  ];
}

const artifactRecords = (page) => (page.tables.artifacts ? asRecords(page.tables.artifacts) : []);

// The factor with its interval, and in words when the interval holds 1.
function probeEffect(effect, layer, most) {
  if (!effect || !isNumber(effect.factor)) {
    const why = effect?.note || "it has no step to compare with clean ones";
    return layer.reason ? none(layer.reason) : [none(why), el("div", { class: "quiet" }, why)];
  }
  const interval = isNumber(effect.ci95_low) && isNumber(effect.ci95_high);
  const same = interval && effect.ci95_low <= 1 && effect.ci95_high >= 1;
  return [
    el("b", { class: "factor" }, (effect.note ? "≤ " : "") + formatFactor(effect.factor) + " ×"),
    interval
      ? quiet(" " + formatFactor(effect.ci95_low) + " – " + formatFactor(effect.ci95_high))
      : quiet(" no interval: too few steps"),
    interval ? intervalBar(effect, most, kindColour(layer.name)) : null,
    same ? el("div", { class: "quiet" }, "not distinguishable from 1.00") : null,
    effect.note ? el("div", { class: "quiet" }, effect.note) : null,
    el(
      "div",
      { class: "quiet" },
      "medians: " +
        formatSeconds(effect.step_median_s) +
        " against " +
        formatSeconds(effect.clean_median_s) +
        " clean, ",
      el("span", { class: "together" }, "n = " + effect.n_layer + " and " + effect.n_clean),
    ),
  ];
}

function intervalBar(effect, most, colour) {
  const low = Math.max(0, Math.min(0.8, effect.ci95_low));
  const at = (value) => Math.min(100, Math.max(0, (100 * (value - low)) / (most - low)));
  const bar = el("div", { class: "interval", "aria-hidden": "true" });
  const one = el("span", { class: "one" });
  one.style.left = at(1) + "%";
  const range = el("span", { class: "range" });
  range.style.left = at(effect.ci95_low) + "%";
  range.style.width = Math.max(at(effect.ci95_high) - at(effect.ci95_low), 0.5) + "%";
  range.style.background = colour;
  const point = el("span", { class: "point" });
  point.style.left = at(effect.factor) + "%";
  point.style.background = colour;
  bar.append(one, range, point);
  return bar;
}

const PAUSE = { words: "raw: profstack's own time between steps, no part of any" };

function drawSliceTable(page) {
  if (!page.slices.length) return;
  const unseen = "the slice has no steps, or they are too short for the CPU clock";
  const timed = (key, label, meaning, reason) =>
    byRow(ownColumn(key, label, "s", meaning, reason), (slice) =>
      slice.kind === "clean" ? CLEAN : RAW_CLOCK,
    );
  const columns = [
    ownColumn("index", "slice", "plain", "number of the slice", null, FACT),
    ownColumn("kind", "kind", "text", "what the slice is for"),
    ownColumn("mode", "mode", "text", "the layer's own way of observing", "no layer observed it"),
    ownColumn("phase", "phase", "text", "train, eval or other"),
    ownColumn("round", "round", "plain", "round of slices", null, FACT),
    ownColumn("first_step", "first step", "plain", "its first step", null, FACT),
    ownColumn("steps", "steps", "plain", "number of steps", null, FACT),
    timed("step_median_s", "median step", "median step time", "the slice has no steps"),
    ownColumn("started_s", "started", "s", "since the recording began", null, FACT),
    timed("wall_s", "wall", "host time over its steps", null),
    timed(
      "cpu_s",
      "CPU",
      "process CPU time over its steps; threads on other cores are added at scheduler ticks",
      unseen,
    ),
    ownColumn(
      "stop_s",
      "pause",
      "s",
      "time to stop the tool and take in its data",
      "no layer observed it",
      PAUSE,
    ),
    ownColumn(
      "settle_steps",
      "settle steps",
      "plain",
      "steps let go by after the switch",
      null,
      FACT,
    ),
  ];
  const rows = page.slices.map((slice) => columns.map(({ key }) => slice[key] ?? null));
  makeTable(byId("slice-table"), {
    table: { columns, rows, left_out: null },
    name: "slices",
    sort: { key: "index", direction: 1 },
    cells: { kind: (value) => el("td", { class: "text" }, swatch(kindColour(value)), value) },
  });
}

// A page that profstack itself serves has a page beside it that hands the trace over.
const TRACE_FILE = "torch/trace.json.gz";
const isServed =
  window.location.protocol === "http:" &&
  ["127.0.0.1", "localhost"].includes(window.location.hostname);

function drawArtifacts(page) {
  if (!page.tables.artifacts) {
    byId("artifact-table").append(remark("No layer left a file of its own."));
    return;
  }
  makeTable(byId("artifact-table"), {
    table: page.tables.artifacts,
    name: "files",
    cells: {
      path: (value) =>
        el(
          "td",
          { class: "text wide" },
          fileLink(page.base, value),
          isServed && value === TRACE_FILE
            ? [" · ", el("a", { href: "perfetto", class: "file" }, "hand to Perfetto")]
            : null,
        ),
    },
  });
}

// ---------- Timeline ----------

function drawTimeline(page) {
  if (!page.slices.length) {
    drop("timeline-part");
    return;
  }
  const box = byId("timeline");
  const slices = page.slices.filter((slice) => isNumber(slice.started_s) && isNumber(slice.wall_s));
  if (!slices.length) {
    box.append(remark("No slice was recorded."));
    return;
  }
  const end = Math.max(
    ...slices.map((slice) => slice.started_s + slice.wall_s + (slice.stop_s || 0)),
  );
  const narrowest = Math.min(
    ...slices.filter((slice) => slice.layer).map((slice) => slice.wall_s),
    end,
  );
  const state = { order: narrowest < 0.008 * end };
  const kinds = [...new Set(slices.map((slice) => slice.kind))];
  const times = kinds.map(
    (kind) =>
      kind +
      " " +
      formatSeconds(
        slices.filter((slice) => slice.kind === kind).reduce((sum, slice) => sum + slice.wall_s, 0),
      ),
  );
  const redraw = plot(box, (theme) => timelineChart(theme, slices, kinds, end, state.order), {
    label: "slices over the time of the run",
    says:
      plural(slices.length, "slice") +
      " over " +
      formatSeconds(end) +
      ": " +
      times.join(", ") +
      ".",
    height: kinds.length * 24 + 70,
    name: "slices",
    tip: (point) => sliceTip(point.customdata),
  });
  byId("timeline-tools").append(
    choice(
      "width of a slice",
      [
        ["time", "to scale"],
        ["order", "equal widths"],
      ],
      state.order ? "order" : "time",
      (value) => {
        state.order = value === "order";
        redraw();
      },
    ),
  );
}

// A lane for each kind, so that layers that shared their steps are above one another.
function timelineChart(theme, slices, kinds, end, inOrder) {
  const starts = [...new Set(slices.map((slice) => slice.started_s))].sort((a, b) => a - b);
  const from = (slice) => (inOrder ? starts.indexOf(slice.started_s) : slice.started_s);
  const colours = slices.map((slice) => theme.colour(kindColour(slice.kind)));
  const bars = {
    type: "bar",
    orientation: "h",
    name: "slices",
    y: slices.map((slice) => kinds.indexOf(slice.kind)),
    base: slices.map(from),
    x: slices.map((slice) => (inOrder ? 0.9 : slice.wall_s)),
    width: 0.64,
    customdata: slices,
    marker: { color: colours, line: { color: colours, width: inOrder ? 0 : 1.5 } },
  };
  // The tool stops after its slice: a thin bar behind it.
  const stopped = inOrder ? [] : slices.filter((slice) => slice.stop_s > 0);
  const pauses = {
    type: "bar",
    orientation: "h",
    name: "pauses",
    y: stopped.map((slice) => kinds.indexOf(slice.kind)),
    base: stopped.map((slice) => slice.started_s + slice.wall_s),
    x: stopped.map((slice) => slice.stop_s),
    width: 0.16,
    customdata: stopped,
    marker: { color: theme.soft, line: { color: theme.soft, width: 0.5 } },
  };
  const every = Math.ceil(starts.length / Math.max(2, Math.floor(theme.width / 96)));
  const order = starts.map((_, at) => at).filter((at) => at % every === 0);
  const xaxis = inOrder
    ? {
        range: [-0.1, starts.length],
        tickmode: "array",
        tickvals: order,
        ticktext: order.map((at) => plotText(tickText(formatSeconds(starts[at])))),
        title: axisTitle("started"),
      }
    : axis("s", 0, end * 1.01, { width: theme.width, title: "time of the run" });
  const lanes = kinds.flatMap((_, at) =>
    at % 2
      ? []
      : [
          {
            type: "rect",
            layer: "below",
            xref: "paper",
            yref: "y",
            x0: 0,
            x1: 1,
            y0: at - 0.5,
            y1: at + 0.5,
            line: { width: 0 },
            fillcolor: theme.lane,
          },
        ],
  );
  return {
    data: stopped.length ? [bars, pauses] : [bars],
    layout: {
      uirevision: String(inOrder),
      barmode: "overlay",
      bargap: 0,
      margin: { l: 78 },
      shapes: lanes,
      xaxis: { ...xaxis, showgrid: false },
      yaxis: {
        range: [kinds.length - 0.5, -0.5],
        tickmode: "array",
        tickvals: kinds.map((_, at) => at),
        ticktext: kinds.map((kind) => plotName(kind, 14)),
        showgrid: false,
        fixedrange: true,
      },
    },
  };
}

const sliceTip = (slice) => [
  slice.kind + (slice.mode ? " (" + slice.mode + ")" : ""),
  [
    ["slice", slice.index],
    slice.round ? ["round", slice.round] : null,
    ["steps", slice.steps ? slice.steps + " from " + slice.first_step : 0],
    isNumber(slice.step_median_s)
      ? [
          "median step",
          formatSeconds(slice.step_median_s) + (slice.kind === "clean" ? ", clean" : ", raw"),
        ]
      : null,
    ["wall", formatSeconds(slice.wall_s)],
    isNumber(slice.stop_s) ? ["pause to take in the data", formatSeconds(slice.stop_s)] : null,
  ],
];

// ---------- The watch ----------

// Where start-up spent its time, what ran between the slices, and the outlier steps.

const WATCH_PHASES = [
  ["startup", "start-up"],
  ["step", "steps"],
  ["other", "between and after"],
  ["program", "whole program, imported"],
];

function drawWatch(page) {
  const facts = page.facts.watch;
  const table = page.tables.watch;
  if (!facts && !table) {
    drop("watch");
    return;
  }
  const isImport = isImportAlone(page.facts);
  if (isImport)
    byId("watch").querySelector(".lead").textContent =
      "What the program was doing, by the samples of the imported file. Shares are of the sampled " +
      "time of all threads.";
  if (facts) drawWatchCards(byId("watch-cards"), facts, isImport);
  if (table) drawWatchTable(byId("watch-table"), page);
  drawOutliers(byId("watch-outliers"), page);
}

function drawWatchCards(box, facts, isImport) {
  box.append(
    card(
      "samples",
      figure(facts.samples, "plain", { layer: "watch", kind: "counted", reason: facts.reason }),
      isNumber(facts.interval_s) && !isImport
        ? "one every " + formatSeconds(facts.interval_s)
        : null,
    ),
  );
  box.append(
    card(
      ["agreement with ", "cprofile"],
      isNumber(facts.rank_correlation)
        ? el(
            "span",
            {
              class: "figure",
              title: "raw: from shares of the watch layer and of the cprofile layer",
            },
            facts.rank_correlation.toFixed(2),
          )
        : none(facts.reason),
      isNumber(facts.rank_correlation)
        ? ["rank correlation over " + facts.rank_functions + " functions"]
        : facts.reason || "not measured",
    ),
  );
}

function drawWatchTable(box, page) {
  const table = page.tables.watch;
  const present = WATCH_PHASES.filter(([phase]) =>
    asRecords(table).some((record) => record.phase === phase),
  );
  const state = { phase: present[0][0] };
  const functions = el("div");
  const lines = el("div");
  const controls =
    present.length > 1
      ? choice("phase", present, state.phase, (phase) => {
          state.phase = phase;
          draw();
        })
      : null;
  const redraw = makeTable(functions, {
    table,
    name: "functions",
    sort: { key: "total_share", direction: -1 },
    bars: ["total_share", "self_share"],
    barColour: "var(--self)",
    controls,
    hidden: ["phase", "line"],
    first: ["name", "file", "total_share", "self_share", "samples", "rss_bytes"],
    filter: (record) => record.phase === state.phase,
    cells: { file: (value, record) => placeCell(value, record.line) },
  });
  function draw() {
    redraw();
    drawWatchLines(lines, page.tables.watch_lines, WATCH_SHARES[state.phase]);
  }
  append(box, [functions, lines]);
  draw();
}

const WATCH_SHARES = { startup: "startup_share", step: "watch_share" };

// The script's own lines of the chosen phase; a sample counts for the innermost of them.
function drawWatchLines(box, table, key) {
  box.replaceChildren();
  const found =
    table && key
      ? table.rows.filter(
          (row) => row[table.columns.findIndex((column) => column.key === key)] !== null,
        )
      : [];
  if (!found.length) return;
  const own = el("div");
  box.append(el("h3", {}, "By line of the script"), own);
  makeTable(own, {
    table: { ...table, rows: found },
    name: "lines",
    sort: { key, direction: -1 },
    bars: [key],
    barColour: "var(--self)",
    hidden: ["line", ...Object.values(WATCH_SHARES).filter((other) => other !== key)],
    first: ["file", key, "source"],
    cells: sourceCells,
  });
}

function drawOutliers(box, page) {
  const table = page.tables.outliers;
  box.append(el("h3", {}, "Steps out of line"));
  const rule = page.facts.watch?.outlier_rule;
  if (rule) box.append(el("p", { class: "lead" }, rule[0].toUpperCase() + rule.slice(1) + "."));
  const watched = page.slices.some((slice) => slice.kind === "watch" && slice.steps > 0);
  if (!table) {
    box.append(
      remark(
        watched
          ? "No step stands out from the clean ones."
          : "The run ended while layers still had their turns: no step was left to the watch " +
              "alone.",
      ),
    );
    return;
  }
  makeTable(box, {
    table,
    name: "outlier steps",
    sort: { key: "factor", direction: -1 },
    bars: ["wall_s"],
    barColour: "var(--self)",
    first: ["index", "wall_s", "factor", "doing", "samples", "rss_bytes"],
    cells: {
      factor: (value, _record, one) =>
        el(
          "td",
          { class: "number" },
          isNumber(value) ? formatFactor(value) + " ×" : none(whyEmpty(one)),
        ),
      doing: (value, _record, one) =>
        el("td", { class: "text wrapped" }, shown(value, "text", whyEmpty(one))),
    },
  });
}

// ---------- Threads ----------

function drawThreads(page) {
  const table = page.tables.threads;
  const told = page.facts.processes || {};
  if (!table && !told.reason) {
    drop("threads");
    return;
  }
  if (!table) {
    byId("thread-table").append(remark("No CPU time of threads is known: " + told.reason + "."));
    return;
  }
  const records = asRecords(table);
  const sentences = told.sentences || [];
  append(
    byId("thread-said"),
    sentences.map((sentence) =>
      el("li", {}, sentence.charAt(0).toUpperCase() + sentence.slice(1) + "."),
    ),
  );
  makeTable(byId("thread-table"), {
    table,
    name: "threads",
    sort: { key: "share", direction: -1 },
    bars: ["cpu_s", "share"],
    barColour: "var(--self)",
    plain: records.length <= 12,
    // Told of one thread alone, and in words above.
    hidden: sentences.length ? ["off_cpu_s", "no_core_s"] : [],
    first: [
      "kind",
      "cpu_s",
      "share",
      "name",
      "threads",
      "process",
      "off_cpu_s",
      "no_core_s",
      "layers",
      "note",
    ],
    cells: {
      layers: (value) =>
        el(
          "td",
          { class: "text wrapped narrow" },
          value
            ? value.split(", ").map((layer, at) => [at ? ", " : "", linkTo("method", layer, layer)])
            : quiet("none"),
        ),
      note: (value, _record, one) =>
        el(
          "td",
          { class: "text wrapped" },
          shown(value, "text", whyEmpty(one) || "there is nothing to add"),
        ),
    },
  });
}

// ---------- Environment ----------

function drawFacts({ facts }) {
  const run = facts.run || {};
  const step = facts.step || {};
  byId("run-facts").append(
    pairs([
      ["command", el("code", {}, (facts.argv || []).join(" "))],
      ["started", momentWords(run.started_at)],
      ["took", shown(run.duration_s, "s")],
      ["exit code", shown(run.exit_code, "plain", "the script has not ended")],
      run.signal ? ["signal", run.signal] : null,
      run.stopped_by ? ["stopped by", run.stopped_by] : null,
      ["steps found by", step.rule ? el("code", {}, step.rule) : none("no step was found")],
      [
        "steps",
        Object.entries(step.counts_by_phase || {})
          .map(([phase, count]) => count + " " + phase)
          .join(", ") || formatPlain(step.count),
      ],
      ["batch size", shown(step.batch_size, "plain", "the inputs of the steps are no tensors")],
      [
        "input shapes",
        (step.shapes || []).map(asText).join("; ") || none("no tensor input was seen"),
      ],
      run.world_size > 1 ? ["rank", run.rank + " of " + run.world_size] : null,
      ["recording", run.id],
      ["profstack", facts.profstack_version],
    ]),
  );
  drawEnvironment(facts.environment || {});
}

// Facts by what they are of; those that no group knows are with the machine.
const GROUPS = [
  [
    "software",
    /^(python|torch|cuda|cudnn|triton|numpy|implementation|packages|variables|commit|changed|git)/,
  ],
  ["machine", /./],
];

// What is there in rows; what is not in one line, so that it is not mistaken for forgotten.
function drawEnvironment(environment) {
  const isThere = (value) =>
    value !== null && value !== "" && !(Array.isArray(value) && !value.length);
  const words = (key) => key.replace(/_bytes$/, "").replaceAll("_", " ");
  const entries = Object.entries(environment);
  const groups = new Map(GROUPS.map(([name]) => [name, []]));
  for (const [key, value] of entries.filter(([, one]) => isThere(one))) {
    const [name] = GROUPS.find(([, keys]) => keys.test(key));
    groups
      .get(name)
      .push([
        key === "changed" ? "uncommitted changes" : words(key),
        key.endsWith("_bytes") && isNumber(value)
          ? formatBytes(value)
          : typeof value === "boolean"
            ? formatValue(value)
            : asText(value),
      ]);
  }
  for (const [name, rows] of groups)
    byId("environment-" + name).append(rows.length ? pairs(rows) : remark("Nothing was recorded."));
  const absent = entries.filter(([, value]) => !isThere(value)).map(([key]) => words(key));
  if (absent.length)
    byId("environment-machine").append(remark("None, or not found: " + absent.join(", ") + "."));
}

// A moment as people write it: no fractions of a second, and UTC by its name.
const momentWords = (text) =>
  text
    ? String(text)
        .replace("T", " ")
        .replace(/\.\d+/, "")
        .replace(/(\+00:00|Z)$/, " UTC")
    : text;

// ---------- More layers ----------
// The view "More layers": tables that layers of this or other packages declare in their own files.

export const layersView = {
  id: "other-layers",
  title: "More layers",
  needs: ["layer_tables"],
  parts: [["layer-tables", drawLayerTables]],
};

function drawLayerTables(page) {
  const list = byId("layer-table-list");
  for (const one of page.layer_tables) {
    const box = el("div");
    append(list, [
      el(
        "section",
        {},
        el("h3", { class: "part" }, one.layer + ": " + one.title),
        el("p", { class: "lead" }, one.text),
        box,
      ),
    ]);
    const keys = one.table.columns.map((column) => column.key);
    makeTable(box, {
      table: one.table,
      name: one.title,
      cells: keys.includes("file") && keys.includes("line") ? sourceCells : {},
    });
  }
}
