// The view "Nsight Systems": an imported capture, its ranges, its modules beside the torch layer,
// the device, the host and memory.

import { axis, plot, plotText, seriesColour, tallAxis } from "./charts.js";
import {
  append,
  byId,
  card,
  command,
  el,
  figure,
  formatBytes,
  formatCount,
  formatFactor,
  formatPercent,
  formatPlain,
  formatSeconds,
  hash,
  isNumber,
  medianOf,
  none,
  plural,
  provenance,
  quiet,
  remark,
  shown,
  swatch,
  tailOf,
  term,
} from "./dom.js";
import {
  asRecords,
  barCell,
  columnMedian,
  columnOf,
  longestOf,
  makeNode,
  makeTable,
  makeTree,
  plainCell,
  twigCell,
  whyEmpty,
} from "./table.js";
import { linkTo } from "./views.js";

export const nsysView = {
  id: "nsys",
  title: "Nsight Systems",
  needs: [
    "nsys_modules",
    "nsys_processes",
    "nsys_steps",
    "nsys_ranges",
    "nsys_stats",
    "nsys_kernels",
    "nsys_copies",
    "nsys_api",
    "nsys_waits",
    "nsys_communication",
    "nsys_backtraces",
    "nsys_memory",
    "nsys_samples",
    "nsys_gaps",
    "nsys_longest_gaps",
  ],
  has: (page) => Boolean(page.facts.nsys),
  parts: [
    ["nsys-capture", drawNsys],
    ["nsys-processes", drawNsysProcesses],
    ["nsys-modules", drawNsysModules],
    ["nsys-ranges", drawNsysRanges],
    ["nsys-stats", drawNsysStats],
    ["nsys-kernels", drawNsysDevice],
    ["nsys-memory", drawNsysMemory],
    ["nsys-api", drawNsysHost],
  ],
};

const isText = (value) => typeof value === "string";

const NSYS_RAW = { layer: "nsys", kind: "raw" };
const NSYS_COUNT = { layer: "nsys", kind: "counted" };

function drawNsys(page) {
  const fact = page.facts.nsys;
  const steps = fact.steps
    ? [
        formatPlain(fact.steps),
        fact.steps === 1 ? " step" : " steps",
        isNumber(fact.first_step) ? " (" + fact.first_step + " to " + fact.last_step + ")" : "",
      ]
    : null;
  append(byId("nsys-lead"), [
    "What ",
    term("nsys", "Nsight Systems"),
    " saw, from ",
    el("code", {}, fact.file),
    fact.version ? " of nsys " + fact.version : "",
    fact.schema ? " (export schema " + fact.schema + ")" : "",
    ": ",
    steps
      ? [
          steps,
          " of a capture of ",
          formatSeconds(fact.captured_s),
          ". ",
          isText(fact.step_range)
            ? [
                "Its steps are the ranges ",
                el("code", {}, fact.step_range),
                fact.step_range_asked ? ". " : ", which repeat (--step-range names others). ",
              ]
            : "",
          "Figures are ",
          term("per-step", "per step"),
          ", ",
        ]
      : [
          "the whole capture of ",
          formatSeconds(fact.captured_s),
          ", in which no range tells the steps. Figures are of all of it, ",
        ],
    "as they were seen with nsys on: nothing here is ",
    term("calibrated"),
    ".",
  ]);
  drawNsysCards(page);
  append(byId("nsys-said"), [
    ...nsysSentences(fact).map((words) => el("li", {}, words)),
    ...Object.values(fact.missing).map((why) =>
      el("li", {}, "Not in the file: " + why.replace(/^no /, "") + "."),
    ),
  ]);
}

function nsysSentences(fact) {
  return [
    (fact.processes || []).length > 1
      ? plural(fact.processes.length, "process", "processes") +
        " of the file are side by side. Those that make no steps are seen in the steps of process " +
        fact.process +
        "."
      : null,
    fact.other_processes
      ? [plural(fact.other_processes, "other process is", "other processes are"), " left out."]
      : null,
    fact.unlaunched
      ? [
          plural(fact.unlaunched, "piece of device work", "pieces of device work"),
          " without the launching call in the file: in no range.",
        ]
      : null,
    fact.graphs_whole
      ? [
          plural(fact.graphs_whole, "CUDA graph was", "CUDA graphs were"),
          " traced as a whole: their kernels are not shown apart.",
        ]
      : null,
    ...fact.notes.map(([, text]) => text),
  ].filter(Boolean);
}

function drawNsysCards(page) {
  const table = page.tables.nsys_steps;
  const benchmark = page.facts.benchmark || {};
  // Ranges are the host's: they are beside its own clean step.
  const clean = benchmark.clock === "device" ? benchmark.host_median_s : benchmark.median_s;
  if (!table) return;
  const isMain = (record) => isOfMain(page, record);
  const records = asRecords(table).filter(isMain);
  const devices = new Set(records.map((record) => record.device)).size;
  const typical = (key) => columnMedian(records, key);
  // A step has a row for each device: what is counted adds up over them.
  const whole = (key) => {
    const sums = new Map();
    for (const record of records) {
      if (!isNumber(record[key])) continue;
      sums.set(record.step, (sums.get(record.step) || 0) + record[key]);
    }
    return sums.size ? medianOf([...sums.values()]) : null;
  };
  const wall = typical("wall_s");
  const idle = typical("idle_s");
  const fully = typical("fully_idle_s");
  const copies = nsysSum(page, "nsys_copies", "bytes");
  append(
    byId("nsys-cards"),
    [
      card(
        ["median ", term("step", "step"), " under nsys"],
        figure(wall, "s", NSYS_RAW),
        isNumber(clean) && isNumber(wall)
          ? formatFactor(wall / clean) + " × the clean median"
          : "of " + plural(new Set(records.map((record) => record.step)).size, "step"),
      ),
      !isNumber(whole("kernels"))
        ? null
        : card(
            ["kernels per ", term("step", "step")],
            figure(whole("kernels"), "count", {
              ...NSYS_COUNT,
              reason: whyEmpty(columnOf(table, "kernels")),
            }),
            isNumber(whole("device_s"))
              ? formatSeconds(whole("device_s")) + " of device time"
              : null,
          ),
      !isNumber(idle)
        ? null
        : card(
            devices > 1
              ? "no kernel, on each of " + devices + " devices"
              : "no kernel on the device",
            figure(idle, "s", { ...NSYS_RAW, reason: whyEmpty(columnOf(table, "idle_s")) }),
            [
              isNumber(idle) && wall ? formatPercent(idle / wall) + " of the step" : null,
              isNumber(fully) ? "; no copy either for " + formatSeconds(fully) : null,
            ],
          ),
      isNumber(copies)
        ? card(
            "copied or filled per step",
            figure(copies, "bytes", NSYS_COUNT),
            formatSeconds(nsysSum(page, "nsys_copies", "device_s")) + " of device time",
          )
        : null,
    ].filter(Boolean),
  );
}

// Whether a row is of the process that makes the steps.
const isOfMain = (page, record) =>
  record.process === undefined ||
  record.process === null ||
  record.process === page.facts.nsys.process;

function nsysSum(page, name, key) {
  const values = page.tables[name]
    ? asRecords(page.tables[name])
        .filter((record) => isOfMain(page, record))
        .map((record) => record[key])
        .filter(isNumber)
    : [];
  return values.length ? values.reduce((sum, value) => sum + value, 0) : null;
}

function drawNsysModules(page) {
  const table = page.tables.nsys_modules;
  const fact = page.facts.nsys;
  const lead = byId("nsys-modules-lead");
  if (!table) {
    lead.append(
      !fact.steps
        ? "No range of the capture tells its steps, so that modules cannot be held against " +
            "the torch layer's."
        : "The capture holds no range of a module: profstack emits them where its layer nvtx " +
            "runs under nsys.",
    );
    return;
  }
  const records = asRecords(table);
  const compared = records.some((record) => isNumber(record.torch_calls));
  const apart = records.filter((record) => record.disagreement !== null).length;
  append(
    lead,
    compared
      ? [
          "Calls and forward times of the same modules by two observers, in steps of their own. ",
          apart
            ? el(
                "b",
                {},
                plural(apart, "module") +
                  " of " +
                  records.length +
                  (apart === 1 ? " differs" : " differ"),
              )
            : isText(fact.not_compared)
              ? ["They are not compared: " + fact.not_compared]
              : el(
                  "b",
                  {},
                  "No difference is beyond chance in " + plural(records.length, "module"),
                ),
          isText(fact.not_compared)
            ? "."
            : ": calls by more than 1\u00a0%, host times by more than 30\u00a0% and 20\u00a0µs, " +
              "device times by more than 10\u00a0% and 1\u00a0µs, and times by more than the " +
              "95\u00a0% interval of their difference.",
          isNumber(fact.step_ratio)
            ? " A step took " +
              formatFactor(fact.step_ratio) +
              " times as long under nsys: host times are compared as if both had been equally long."
            : "",
        ]
      : ["Forward calls of modules. The torch layer recorded nothing to hold them against."],
  );
  makeTable(byId("nsys-module-table"), {
    table,
    name: "modules of nsys",
    view: "nsys",
    keyOf: (record) => record.path,
    bars: ["host_s", "device_s"],
    barColour: "var(--self)",
    first: [
      "path",
      "disagreement",
      "host_s",
      "host_reach_s",
      "torch_host_s",
      "torch_host_reach_s",
      "host_ratio",
      "device_s",
      "torch_device_s",
      "device_ratio",
      "calls",
      "torch_calls",
    ],
    cells: {
      path: nsysPathCell,
      disagreement: (value, _record, column) =>
        el(
          "td",
          { class: "text wrapped apart" },
          value === null ? none(whyEmpty(column)) : el("span", { class: "bad-word" }, value),
        ),
    },
  });
}

const nsysPathCell = (value) =>
  el("td", { class: "text path", title: value }, linkTo("modules", value, tailOf(value, 48)));

const NSYS_RANGE_FIRST = [
  "name",
  "wall_s",
  "self_s",
  "device_s",
  "projected_s",
  "elsewhere_s",
  "kernels",
  "calls",
  "median_s",
  "shortest_s",
  "longest_s",
  "deviation_s",
  "api_s",
  "api_calls",
  "copies_s",
  "copied_bytes",
  "copies",
];

function drawNsysRanges(page) {
  const table = page.tables.nsys_ranges;
  if (!table) {
    nsysLacking(page, "ranges", "nsys-range-tree", "The capture holds no NVTX range.");
    return;
  }
  const records = asRecords(table);
  const longest = longestOf(records, ["wall_s", "device_s"]);
  const domains = new Set(records.map((record) => record.domain));
  const threads = new Set(records.map((record) => record.on_steps_thread));
  const processes = new Set(records.map((record) => record.process));
  const tree = makeTree(byId("nsys-range-tree"), {
    table,
    roots: nsysForest(records),
    name: "ranges of nsys",
    view: "nsys",
    keyOf: (record) => "range-" + record.node,
    sort: { key: "wall_s", direction: -1 },
    first: processes.size > 1 ? withProcess(NSYS_RANGE_FIRST) : NSYS_RANGE_FIRST,
    hidden: [
      "node",
      "parent",
      "kind",
      "style",
      "step_deviation_s",
      ...(processes.size > 1 ? [] : ["process"]),
      ...(domains.size > 1 ? [] : ["domain"]),
      ...(threads.size > 1 ? [] : ["on_steps_thread"]),
    ],
    moduleOf: (record) => (record.kind === "module" ? record.name : null),
    levels: [
      ["fold all", 0],
      ["2 levels", 1],
      ["unfold all", 99],
    ],
    cell: (column, node, depth, toggle) => {
      const value = node.record[column.key];
      if (column.key === "name")
        return twigCell(node, depth, toggle, node.record.name, nsysRangeName(node));
      if (column.key === "wall_s")
        return barCell(value, "s", value / longest.wall_s, "var(--self)", whyEmpty(column));
      if (column.key === "device_s")
        return barCell(value, "s", value / longest.device_s, "var(--backward)", whyEmpty(column));
      return plainCell(column, value, whyEmpty(column));
    },
  });
  tree.unfold(records.length > 60 ? 3 : 99);
}

function nsysForest(records) {
  const known = new Map();
  const roots = [];
  for (const record of records)
    known.set(
      record.node,
      makeNode(
        record,
        null,
        "range-" + record.node,
        record.name + " " + record.kind + " " + record.domain,
      ),
    );
  for (const record of records) {
    const node = known.get(record.node);
    const parent = known.get(record.parent);
    if (parent && parent !== node) {
      node.parent = parent;
      parent.children.push(node);
    } else roots.push(node);
  }
  return roots;
}

// A module is named by its path within the module around it; other ranges show their kind.
function nsysRangeName(node) {
  const { kind, name } = node.record;
  if (kind === "module") {
    let around = node.parent;
    while (around && around.record.kind !== "module") around = around.parent;
    const own =
      around && name.startsWith(around.record.name + ".")
        ? name.slice(around.record.name.length + 1)
        : name;
    return [linkTo("modules", name, own)];
  }
  return [
    kind === "region" ? linkTo("ranges", name, name) : name,
    name === kind || name.startsWith(kind + " ") ? null : quiet(" " + kind),
  ];
}

// A part of the view without anything in it: it goes where the list of what the file lacks has told
// why, and else says so itself.
function nsysLacking(page, frame, place, otherwise) {
  const section = byId(place).closest("section");
  if (page.facts.nsys.missing[frame]) section.remove();
  else section.replaceChildren(section.querySelector("h3"), remark(otherwise));
}

// ---------- Device, host and memory ----------

// The innermost range around a call: a module and a region lead to their rows.
function nsysRangeCell(value, record, column) {
  if (value === null) return el("td", { class: "text" }, none(whyEmpty(column)));
  const view = { module: "modules", region: "ranges" }[record.range_kind];
  const beside =
    record.range_kind &&
    !view &&
    record.range_kind !== value &&
    !value.startsWith(record.range_kind)
      ? quiet(" " + record.range_kind)
      : null;
  return el(
    "td",
    { class: "text", title: value },
    view ? linkTo(view, value, value) : value,
    beside,
  );
}

const nsysModuleOf = (record) => (record.range_kind === "module" ? record.range_name : null);

// A column in which all rows say the same is no news.
const nsysSame = (records, keys) =>
  keys.filter((key) => new Set(records.map((record) => record[key])).size < 2);

// Columns with the process behind the first one.
const withProcess = ([name, ...others]) => [name, "process", ...others];

// spec: that of makeTable, with `frame` (the table of the file) and `otherwise` (a text for none)
function nsysTable(page, name, place, spec) {
  const table = page.tables[name];
  const records = table ? asRecords(table).filter(spec.filter || (() => true)) : [];
  if (!records.length) {
    nsysLacking(page, spec.frame, place, spec.otherwise);
    return;
  }
  const isOne = nsysSame(records, ["process"]).length > 0;
  makeTable(byId(place), {
    table,
    view: "nsys",
    barColour: "var(--self)",
    moduleOf: records.some(nsysModuleOf) ? nsysModuleOf : null,
    ...spec,
    first: isOne || !spec.first ? spec.first : withProcess(spec.first),
    hidden: [...(spec.hidden || []), ...nsysSame(records, [...(spec.unless || []), "process"])],
    keyOf: (record) =>
      [...spec.key, ...(isOne ? [] : ["process"])]
        .map((key) =>
          record[key] === null ? "" : key === "stack" ? hash(record[key]) : record[key],
        )
        .join(" "),
    cells: { range_name: nsysRangeCell, ...spec.cells },
  });
}

function drawNsysDevice(page) {
  nsysTable(page, "nsys_kernels", "nsys-kernel-table", {
    name: "kernels of nsys",
    frame: "work",
    otherwise: "No kernel ran in the capture.",
    sort: { key: "device_s", direction: -1 },
    bars: ["device_s"],
    barColour: "var(--backward)",
    first: [
      "name",
      "device_s",
      "calls",
      "longest_s",
      "delay_s",
      "range_name",
      "stream",
      "device",
      "grid",
      "block",
      "launched_by",
      "in_graph",
    ],
    hidden: ["range_kind"],
    unless: ["device", "in_graph"],
    key: ["name", "device", "stream", "range_kind", "range_name", "launched_by", "grid", "block"],
  });
  nsysTable(page, "nsys_copies", "nsys-copy-table", {
    name: "copies of nsys",
    frame: "work",
    otherwise: "Nothing was copied or filled in the capture.",
    sort: { key: "device_s", direction: -1 },
    bars: ["device_s"],
    barColour: "var(--backward)",
    first: [
      "direction",
      "device_s",
      "bytes",
      "bytes_per_s",
      "calls",
      "from_memory",
      "to_memory",
      "range_name",
      "longest_s",
    ],
    hidden: ["range_kind"],
    unless: ["device"],
    key: ["direction", "from_memory", "to_memory", "device", "range_kind", "range_name"],
    cells: {
      bytes_per_s: (value, _record, column) =>
        el(
          "td",
          { class: "number" },
          value === null ? none(whyEmpty(column)) : formatBytes(value) + "/s",
        ),
    },
  });
  nsysTable(page, "nsys_gaps", "nsys-gap-table", {
    name: "gaps of nsys",
    frame: "work",
    otherwise: "No gap between kernels was found.",
    sort: { key: "total_s", direction: -1 },
    bars: ["total_s", "longest_s"],
    barColour: "var(--backward)",
    first: ["cause", "device", "total_s", "fully_idle_s", "count", "longest_s", "after", "before"],
    unless: ["device"],
    key: ["cause", "device"],
    plain: true,
    cells: { cause: nsysCauseCell },
  });
  nsysTable(page, "nsys_longest_gaps", "nsys-longest-gap-table", {
    name: "longest gaps of nsys",
    frame: "work",
    otherwise: "No gap between kernels was found.",
    sort: { key: "gap_s", direction: -1 },
    bars: ["gap_s"],
    barColour: "var(--backward)",
    unless: ["device"],
    key: ["started_s", "device"],
    cells: { cause: nsysCauseCell },
  });
  nsysTable(page, "nsys_communication", "nsys-communication-table", {
    name: "communication of nsys",
    frame: "work",
    otherwise: "No kernel of NCCL or another library of collectives ran.",
    sort: { key: "busy_s", direction: -1 },
    bars: ["busy_s"],
    barColour: "var(--backward)",
    first: ["collective", "busy_s", "exposed_s", "overlapped_s", "overlapped_share", "calls"],
    unless: ["device"],
    key: ["collective", "device"],
    plain: true,
  });
}

const nsysCauseCell = (value) => el("td", { class: "text" }, term("gap", value));

function drawNsysProcesses(page) {
  const records = page.tables.nsys_processes ? asRecords(page.tables.nsys_processes) : [];
  if (records.length < 2) {
    byId("nsys-process-table").closest("section").remove();
    return;
  }
  nsysTable(page, "nsys_processes", "nsys-process-table", {
    name: "processes of nsys",
    bars: ["wall_s", "busy_s"],
    unless: ["steps", "own_steps"],
    key: ["device"],
    plain: true,
  });
}

// By name, as `nsys stats` has them: what devices do, and what the host calls.
const NSYS_ON_DEVICE = ["kernel", "graph", "copy", "fill", "wait"];

function drawNsysStats(page) {
  const common = {
    sort: { key: "total_s", direction: -1 },
    bars: ["total_s", "share"],
    key: ["kind", "name", "device"],
    first: [
      "name",
      "total_s",
      "share",
      "calls",
      "mean_s",
      "median_s",
      "shortest_s",
      "longest_s",
      "deviation_s",
      "kind",
    ],
  };
  const onDevice = (record) => NSYS_ON_DEVICE.includes(record.kind);
  nsysTable(page, "nsys_stats", "nsys-device-stats-table", {
    ...common,
    name: "device work by name",
    frame: "work",
    otherwise: "No device worked in the capture.",
    barColour: "var(--backward)",
    unless: ["device"],
    filter: onDevice,
  });
  nsysTable(page, "nsys_stats", "nsys-host-stats-table", {
    ...common,
    name: "calls by name",
    frame: "calls",
    otherwise: "No call was traced.",
    hidden: ["device"],
    filter: (record) => !onDevice(record),
  });
}

function drawNsysHost(page) {
  nsysTable(page, "nsys_api", "nsys-api-table", {
    name: "calls of nsys",
    frame: "calls",
    otherwise: "No call was traced.",
    sort: { key: "host_s", direction: -1 },
    bars: ["host_s"],
    first: ["name", "host_s", "calls", "longest_s", "range_name", "library", "failed"],
    hidden: ["range_kind"],
    key: ["library", "name", "range_kind", "range_name"],
    cells: {
      failed: (value, _record, column) =>
        el(
          "td",
          { class: "number" },
          value
            ? el("span", { class: "bad-word" }, formatCount(value))
            : shown(value, "count", whyEmpty(column)),
        ),
    },
  });
  nsysTable(page, "nsys_waits", "nsys-wait-table", {
    name: "waits of nsys",
    frame: "synchronisations",
    otherwise: "Nothing waited for a device.",
    sort: { key: "wait_s", direction: -1 },
    bars: ["wait_s"],
    first: ["kind", "wait_s", "calls", "longest_s", "called", "range_name", "stream", "device"],
    hidden: ["range_kind"],
    unless: ["device"],
    key: ["kind", "device", "stream", "called", "range_kind", "range_name"],
  });
  nsysTable(page, "nsys_backtraces", "nsys-backtrace-table", {
    name: "stacks of nsys",
    frame: "callchains",
    otherwise:
      "No stack was recorded: nsys takes those of CUDA calls with --cudabacktrace=true, and " +
      "samples the CPU with --sample=cpu.",
    sort: { key: "host_s", direction: -1 },
    bars: ["host_s"],
    first: ["name", "host_s", "calls", "stack", "source"],
    key: ["source", "name", "stack"],
    cells: { stack: nsysStackCell },
  });
  nsysTable(page, "nsys_samples", "nsys-sample-table", {
    name: "samples of nsys",
    frame: "samples",
    otherwise: "The CPU was not sampled.",
    sort: { key: "self_samples", direction: -1 },
    bars: ["self_share"],
    first: ["symbol", "self_share", "self_samples", "total_samples", "library"],
    key: ["symbol", "library"],
  });
  nsysTable(page, "nsys_steps", "nsys-step-table", {
    name: "steps of nsys",
    frame: "ranges",
    otherwise: "No range of the capture tells its steps.",
    sort: { key: "step", direction: 1 },
    bars: ["wall_s"],
    unless: ["device"],
    key: ["step", "device"],
  });
}

const STACK_LINES = 4;

// The innermost frames; the others where they are asked for.
function nsysStackCell(value, _record, column) {
  if (!value) return el("td", { class: "text" }, none(whyEmpty(column)));
  const frames = value.split("\n");
  const line = (frame) => el("div", {}, frame);
  return el(
    "td",
    { class: "text wrapped frames" },
    frames.slice(0, STACK_LINES).map(line),
    frames.length > STACK_LINES
      ? el(
          "details",
          {},
          el("summary", {}, plural(frames.length - STACK_LINES, "more frame")),
          frames.slice(STACK_LINES).map(line),
        )
      : null,
  );
}

function drawNsysMemory(page) {
  const table = page.tables.nsys_memory;
  if (!table) {
    nsysLacking(
      page,
      "memory",
      "nsys-memory-table",
      "No memory of a device was taken or given back in the capture.",
    );
    return;
  }
  const records = asRecords(table);
  const devices = new Set(records.map((record) => record.device)).size;
  const series = new Map();
  for (const record of records) {
    const name = record.kind + (devices > 1 ? " on " + record.device : "");
    if (!series.has(name)) series.set(name, []);
    series.get(name).push(record);
  }
  const lines = [...series].map(([name, points], at) => ({
    name,
    points,
    colour: seriesColour(at),
    most: points.reduce((best, point) => (point.bytes > best.bytes ? point : best)),
  }));
  byId("nsys-memory-legend").append(
    el(
      "ul",
      { class: "legend" },
      lines.map(({ name, colour }) => el("li", {}, swatch(colour), name)),
    ),
  );
  plot(byId("nsys-memory-chart"), (theme) => nsysMemoryChart(theme, lines), {
    label: "memory taken since the capture began",
    height: 270,
    name: "nsys-memory",
    says: [
      lines.map(({ name, points, most }, at) => [
        at ? "; " : "",
        name,
        ": at most ",
        formatBytes(most.bytes),
        " after ",
        formatSeconds(most.t_s),
        ", ",
        formatBytes(points[points.length - 1].bytes),
        " at last",
      ]),
      ". What was taken before the capture began is not in it.",
    ],
    tip: (point) => [
      formatSeconds(point.customdata.t_s),
      [
        [point.customdata.kind, formatBytes(point.customdata.bytes)],
        ["of", point.customdata.device],
        ["this is", provenance({ layer: "nsys", kind: "counted" })],
      ],
    ],
  });
  makeTable(byId("nsys-memory-table"), {
    table,
    name: "memory events of nsys",
    sort: { key: "t_s", direction: 1 },
    hidden: nsysSame(records, ["device"]),
  });
}

// What is held stays as it is until the next event: steps, no slopes.
function nsysMemoryChart(theme, lines) {
  const points = lines.flatMap((line) => line.points);
  const times = points.map((point) => point.t_s);
  const sizes = points.map((point) => point.bytes);
  const first = Math.min(...times);
  const last = Math.max(...times, first + 1e-9);
  const low = Math.min(0, ...sizes);
  const data = lines.map(({ name, points: own, colour }) => ({
    type: "scatter",
    mode: own.length < 40 ? "lines+markers" : "lines",
    name: plotText(name),
    x: own.map((point) => point.t_s),
    y: own.map((point) => point.bytes),
    customdata: own,
    line: { color: theme.colour(colour), width: 1.7, shape: "hv" },
    marker: { size: 4 },
  }));
  return {
    data,
    layout: {
      hovermode: "closest",
      margin: { l: 76 },
      xaxis: {
        ...axis("s", first, last, { width: theme.width, title: "time of the capture" }),
        showgrid: false,
      },
      yaxis: tallAxis("bytes", low, Math.max(...sizes, 1) * 1.08, { width: 210 }),
    },
  };
}

// In the view of ranges: the way to what Nsight Systems saw, or how to get it.
export function drawNsysHint(page) {
  const box = byId("nsys-hint");
  if (page.facts.nsys) {
    // A device's work belongs to a range by the call that began it.
    const { work, calls } = page.facts.nsys.missing;
    const known = !work && !calls;
    box.append(
      "What Nsight Systems saw of them",
      known ? ", with the device time of each" : "",
      ": ",
      linkTo("nsys", null, "Nsight Systems"),
      known ? "." : ". Of a device's work in them the capture tells nothing.",
    );
    return;
  }
  box.append(
    "Ranges with the device time of what was launched inside them come from Nsight Systems: ",
    command("profstack run --nsys " + (page.facts.script || "SCRIPT")),
    " runs the script once more under it; ",
    command("profstack import FILE --into DIR"),
    " takes a report in that is there.",
  );
}
