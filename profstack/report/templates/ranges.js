// The view "Ranges and launches": the script's named regions as they nest, emitted NVTX ranges,
// launches and gaps. Times of profstack's own clock are clean where the region was entered in a
// clean slice; others come from the torch layer's slices.

import {
  append,
  byId,
  byRow,
  CLEAN,
  card,
  el,
  figure,
  formatCount,
  formatPercent,
  formatSeconds,
  isNumber,
  medianOf,
  none,
  OWN_COUNT,
  RAW_CLOCK,
  RAW_TORCH,
  remark,
  shown,
  TORCH_COUNT,
  term,
} from "./dom.js";
import { drawNsysHint } from "./nsys.js";
import {
  asRecords,
  barCell,
  columnMedian,
  columnOf,
  longestOf,
  makeNode,
  makeTable,
  makeTree,
  nearestParent,
  plainCell,
  twigCell,
  whyEmpty,
} from "./table.js";
import { drop, linkTo } from "./views.js";

export const rangesView = {
  id: "ranges",
  title: "Ranges and launches",
  needs: ["regions", "ranges", "collectives", "launches", "gaps"],
  parts: [
    ["regions", drawRegions],
    ["collectives", drawCollectives],
    ["nvtx-ranges", drawRanges],
    ["launches", drawLaunches],
    ["nsys-hint", drawNsysHint],
  ],
};

const REGION_ORIGINS = {
  wall_s: { clean: CLEAN, raw: RAW_CLOCK, torch: RAW_TORCH },
  calls: { clean: OWN_COUNT, raw: OWN_COUNT, torch: TORCH_COUNT },
};
const REGION_FIRST = [
  "path",
  "wall_s",
  "operator_s",
  "device_s",
  "calls",
  "host_net_bytes",
  "flop",
  "source",
  "threads",
  "measured_in",
];

function drawRegions(page) {
  const table = page.tables.regions;
  if (!table) {
    drop("regions");
    return;
  }
  const records = asRecords(table).sort((a, b) => String(a.path).length - String(b.path).length);
  const known = new Map();
  const roots = [];
  for (const record of records) {
    const path = String(record.path);
    const parent = nearestParent(path, "/", known);
    const node = makeNode(
      record,
      parent,
      path + " " + record.source,
      path + " " + (record.source || ""),
    );
    node.open = true;
    node.name = parent ? path.slice(parent.record.path.length + 1) : path;
    if (!known.has(path)) known.set(path, node);
    if (!parent) roots.push(node);
  }
  const most = longestOf(records, ["wall_s"]).wall_s;
  const columns = table.columns.map((column) =>
    REGION_ORIGINS[column.key]
      ? byRow(column, (record) => REGION_ORIGINS[column.key][record.timed_in])
      : column,
  );
  makeTree(byId("region-table"), {
    table: { ...table, columns },
    hidden: ["timed_in"],
    roots,
    name: "regions",
    view: "ranges",
    keyOf: (record) => record.path,
    sort: { key: "wall_s", direction: -1 },
    first: REGION_FIRST,
    levels: [
      ["fold all", 0],
      ["unfold all", 99],
    ],
    cell: (column, node, depth, toggle) => {
      const value = node.record[column.key];
      if (column.key === "path") return twigCell(node, depth, toggle, value, node.name);
      if (column.key === "wall_s" || column.key === "operator_s")
        return barCell(value, "s", value / most, "var(--self)", whyEmpty(column));
      if (column.key === "measured_in")
        return el("td", { class: "text wrapped narrow" }, shown(value, "text", whyEmpty(column)));
      return plainCell(column, value, whyEmpty(column));
    },
  });
}

// ---------- Launches and gaps ----------

function drawLaunches(page) {
  const launches = page.tables.launches;
  const gaps = page.tables.gaps;
  const device = page.facts.environment?.device;
  const hasDevice = Boolean(device) && device !== "cpu";
  const watched = (page.facts.layers || []).some(
    (layer) => layer.name === "torch" && layer.status === "recorded",
  );
  if (!launches && !gaps && !watched) {
    drop("launches");
    return;
  }
  const word = byId("launch-lead");
  if (!hasDevice) {
    word.append(
      "No accelerator was in use: no kernel was launched, so there is neither a cost of ",
      term("launch", "launches"),
      " nor a ",
      term("gap", "gap"),
      " between kernels to explain.",
      ...(launches ? hostCalls(launches) : [" What a step called on the host is under Operators."]),
    );
  } else {
    word.append(
      "Operators and kernels that each step of the torch layer's slice ",
      term("launch", "launched"),
      ", and the time in which the device had nothing to do: a ",
      term("gap", "gap"),
      " and its cause.",
    );
  }
  if (launches) drawLaunchTable(launches);
  if (gaps) drawGaps(gaps);
  else if (hasDevice)
    byId("gap-table").append(
      remark(
        launches
          ? "No gap between kernels was found."
          : "The torch layer recorded no kernel, so nothing is known of gaps.",
      ),
    );
}

function hostCalls(table) {
  const called = asRecords(table)
    .map((record) => record.operators)
    .filter(isNumber);
  return called.length
    ? [
        " On the host a step called ",
        el("b", {}, formatCount(medianOf(called)) + " operators"),
        " (median of " + called.length + (called.length === 1 ? " step)." : " steps)."),
      ]
    : [];
}

function drawLaunchTable(table) {
  const records = asRecords(table);
  const typical = (key) => columnMedian(records, key);
  const columnFigure = (value, key) => {
    const column = columnOf(table, key);
    return figure(value, column.unit, { ...column, reason: whyEmpty(column) });
  };
  const busy = typical("device_busy_s");
  const idle = typical("device_idle_s");
  if (isNumber(typical("kernels"))) {
    append(byId("launch-cards"), [
      card(
        "operators per step",
        columnFigure(typical("operators"), "operators"),
        "median of " + records.length + (records.length === 1 ? " step" : " steps"),
      ),
      card(["kernels per ", term("step", "step")], columnFigure(typical("kernels"), "kernels")),
      card(
        ["host time per ", term("launch", "launch")],
        columnFigure(typical("launch_s"), "launch_s"),
        isNumber(typical("launches_total_s"))
          ? formatSeconds(typical("launches_total_s")) + " per step"
          : null,
      ),
      card(
        "device idle",
        columnFigure(idle, "device_idle_s"),
        isNumber(idle) && isNumber(busy) && idle + busy > 0
          ? formatPercent(idle / (idle + busy)) + " of the step"
          : null,
      ),
    ]);
  }
  const place = el("div");
  byId("launch-table").append(el("details", {}, el("summary", {}, "step by step"), place));
  makeTable(place, {
    table,
    name: "launches",
    sort: { key: "step", direction: 1 },
    bars: ["launches_total_s", "device_busy_s", "device_idle_s"],
    barColour: "var(--self)",
  });
}

function drawGaps(table) {
  const devices = new Set(asRecords(table).map((record) => record.device));
  const place = el("div");
  byId("gap-table").append(el("h3", {}, "Gaps by cause"), place);
  makeTable(place, {
    table,
    name: "gaps",
    sort: { key: "total_s", direction: -1 },
    bars: ["total_s", "longest_s"],
    barColour: "var(--backward)",
    hidden: devices.size > 1 ? [] : ["device"],
    first: ["cause", "total_s", "count", "longest_s", "after", "before"],
    view: "ranges",
    keyOf: (record) => record.cause,
    cells: {
      cause: (value) => el("td", { class: "text" }, term("gap", value)),
      after: gapCell,
      before: gapCell,
    },
  });
}

// What ran beside a gap: an operator and, where it is known, the module that called it.
function gapCell(value, _record, column) {
  if (value === null) return el("td", { class: "text" }, none(whyEmpty(column)));
  const at = value.indexOf(" in ");
  const words =
    at < 0
      ? linkTo("operators", value, value)
      : [
          linkTo("operators", value.slice(0, at), value.slice(0, at)),
          " in ",
          linkTo("modules", value.slice(at + 4), value.slice(at + 4)),
        ];
  return el("td", { class: "text", title: value }, words);
}

// ---------- Collectives ----------

function drawCollectives(page) {
  if (page.tables.collectives) collectiveTable(page, byId("collective-table"));
  else drop("collectives");
}

// The table of collectives, which the view of ranks has too.
export function collectiveTable(page, box) {
  makeTable(box, {
    table: page.tables.collectives,
    name: "collectives",
    sort: { key: "wall_s", direction: -1 },
    bars: ["wall_s", "skew_s", "transfer_s"],
    barColour: "var(--backward)",
    first: ["name", "bytes", "calls", "wall_s", "hidden_s", "skew_s", "transfer_s", "bytes_per_s"],
  });
}

// ---------- Emitted NVTX ranges ----------

function drawRanges(page) {
  if (!page.tables.ranges) {
    drop("nvtx-ranges");
    return;
  }
  makeTable(byId("range-table"), {
    table: page.tables.ranges,
    name: "ranges",
    view: "ranges",
    keyOf: (record) => record.name,
    sort: { key: "emit_s", direction: -1 },
    bars: ["emit_s"],
    barColour: "var(--self)",
  });
}
