// The view "Memory": bytes by owner at the start, peak and end of a step, the holders of the peak,
// memory over the time of the run, and the lines that took it.

import { axis, axisStyle, plot, sliceBands, tallAxis } from "./charts.js";
import {
  byId,
  el,
  exactPercent,
  formatBytes,
  formatPercent,
  formatSeconds,
  hash,
  hideTip,
  isNumber,
  kindColour,
  NONE,
  none,
  remark,
  shown,
  showTip,
  swatch,
  term,
} from "./dom.js";
import { asRecords, columnOf, lackingTable, makeTable, sourceCells, whyEmpty } from "./table.js";
import { drop, linkTo } from "./views.js";

export const memoryView = {
  id: "memory",
  title: "Memory",
  needs: ["memory", "memory_owners", "peak_holders", "memory_lines", "slices"],
  shows: ["memory", "memory_owners", "peak_holders", "memory_lines"],
  parts: [["memory", drawMemory, drawOwners, drawMemoryLines]],
};

const OWNER_KINDS = [
  "parameters",
  "gradients",
  "optimizer state",
  "activations",
  "temporaries",
  "inputs",
  "buffers",
  "held by the script",
  "not attributed",
];
const MOMENTS = [
  ["start_bytes", "start of the step"],
  ["peak_bytes", "peak"],
  ["end_bytes", "end of the step"],
];
// Of a snapshot of a device's allocator, which was imported.
const HISTORY_MOMENTS = [
  ["start_bytes", "begin of the history"],
  ["peak_bytes", "peak"],
  ["end_bytes", "the snapshot"],
];

function ownerColour(kind) {
  const at = OWNER_KINDS.indexOf(kind);
  if (kind === "not attributed") return "var(--residual)";
  return "var(--file-" + (at < 0 ? hash(String(kind)) % 8 : at) + ")";
}

const ownerRank = (kind) =>
  OWNER_KINDS.includes(kind) ? OWNER_KINDS.indexOf(kind) : OWNER_KINDS.length - 1.5;

function drawOwners(page) {
  if (!byId("memory")) return;
  drawMemoryOwners(byId("memory-owners"), page);
  drawPeakHolders(byId("peak-holders"), page);
}

function drawMemoryOwners(box, page) {
  const table = page.tables.memory_owners;
  if (!table) {
    lackingTable(
      box,
      page,
      "Memory at the peak, by owner",
      "detail",
      "watched the memory of a step",
    );
    return;
  }
  const records = asRecords(table);
  // A step's owners come with the holders of its peak.
  const isHistory = !page.tables.peak_holders;
  const moments = isHistory ? HISTORY_MOMENTS : MOMENTS;
  const devices = [...new Set(records.map((record) => record.device))];
  box.append(
    el("h3", {}, "Memory at the peak, by owner"),
    el(
      "p",
      { class: "lead" },
      isHistory
        ? [
            "Bytes in live tensors by the part of a step that took them, by their stacks: at the " +
              "begin of the history, at its ",
            term("peak", "peak"),
            " and when the snapshot was written.",
          ]
        : [
            "Bytes in live tensors of one observed ",
            term("step", "step"),
            " by ",
            term("memory-owner", "owner"),
            ", at its start, at the moment of its ",
            term("peak", "peak"),
            " and at its end.",
            ownedShare(page.facts.attribution),
          ],
    ),
  );
  for (const device of devices) {
    const rows = records
      .filter((record) => record.device === device)
      .sort((a, b) => ownerRank(a.kind) - ownerRank(b.kind));
    if (devices.length > 1)
      box.append(el("h4", {}, shown(device, "text", "the device is not known")));
    box.append(memoryStack(rows, table, moments));
  }
  const place = el("div");
  box.append(place);
  makeTable(place, {
    table,
    name: "owners of memory",
    sort: { key: "peak_bytes", direction: -1 },
    bars: ["peak_bytes", "largest_bytes"],
    barColour: "var(--accumulate)",
    plain: true,
    hidden: devices.length > 1 ? [] : ["device"],
    first: ["kind", "peak_bytes", "start_bytes", "end_bytes", "largest_bytes"],
    cells: { kind: (value) => el("td", { class: "text" }, swatch(ownerColour(value)), value) },
  });
}

function ownedShare(sums) {
  if (!sums || !isNumber(sums.memory_attributed_share)) return null;
  const peak = isNumber(sums.memory_peak_bytes)
    ? [" of " + formatBytes(sums.memory_peak_bytes)]
    : [];
  return [
    " At the peak",
    peak,
    " ",
    el("b", {}, exactPercent(sums.memory_attributed_share)),
    " has an owner.",
  ];
}

// One bar per moment, all to one scale. What was not measured has no piece, and says so.
function memoryStack(rows, table, moments) {
  const sums = moments.map(([key]) =>
    rows.reduce((sum, row) => sum + Math.max(row[key] || 0, 0), 0),
  );
  const most = Math.max(...sums) || 1;
  const reason = Object.fromEntries(table.columns.map((column) => [column.key, whyEmpty(column)]));
  return el(
    "div",
    { class: "stacks" },
    moments.map(([key, name], at) => {
      const bar = el("div", {
        class: "stack",
        role: "img",
        "aria-label":
          name +
          ": " +
          rows
            .filter((row) => row[key] > 0)
            .map((row) => row.kind + " " + formatBytes(row[key]))
            .join(", "),
      });
      for (const row of rows) {
        if (!(row[key] > 0)) continue;
        const piece = el("span", {}, row[key] / most > 0.1 ? row.kind : "");
        piece.style.width = (100 * row[key]) / most + "%";
        piece.style.background = ownerColour(row.kind);
        piece.addEventListener("mousemove", (event) =>
          showTip(event, row.kind, [
            [name, formatBytes(row[key])],
            ["of all then", formatPercent(row[key] / sums[at])],
          ]),
        );
        piece.addEventListener("mouseleave", hideTip);
        bar.append(piece);
      }
      const known = rows.some((row) => row[key] !== null);
      return [
        el("div", { class: "stack-name" }, name),
        bar,
        el("div", { class: "stack-sum" }, known ? formatBytes(sums[at]) : none(reason[key])),
      ];
    }),
  );
}

function drawPeakHolders(box, page) {
  const table = page.tables.peak_holders;
  if (!table) {
    box.remove();
    return;
  }
  const devices = new Set(asRecords(table).map((record) => record.device));
  const place = el("div");
  box.append(
    el("h3", {}, "Who holds the peak"),
    el(
      "p",
      { class: "lead" },
      "What was alive at the moment when the observed step held most, the largest first: to " +
        "lower the ",
      term("peak", "peak"),
      ", begin at the top.",
    ),
    place,
  );
  makeTable(place, {
    table,
    name: "holders of the peak",
    sort: { key: "bytes", direction: -1 },
    bars: ["bytes"],
    barColour: "var(--accumulate)",
    hidden: devices.size > 1 ? [] : ["device"],
    first: ["kind", "module", "bytes", "share", "operator", "tensors", "backward"],
    cells: {
      kind: (value) => el("td", { class: "text" }, swatch(ownerColour(value)), value),
      module: wayCell("modules"),
      operator: wayCell("operators"),
    },
  });
}

// A name that has a row in a view of its own, as the way to it.
const wayCell = (view) => (value, _record, column) =>
  el(
    "td",
    { class: "text", title: value },
    value === null ? none(whyEmpty(column)) : linkTo(view, value, value),
  );

// ---------- Memory over the time of the run ----------

const MEMORY_LINES = [
  ["rss_bytes", "resident set", "var(--rss)"],
  ["device_allocated_bytes", "device allocated", "var(--allocated)"],
  ["device_reserved_bytes", "device reserved", "var(--reserved)"],
];

function drawMemory(page) {
  const table = page.tables.memory;
  if (!table) {
    if (!["memory_lines", "memory_owners", "peak_holders"].some((name) => page.tables[name]))
      drop("memory");
    else byId("memory-chart").append(remark("No sample of the process's memory was taken."));
    return;
  }
  const records = asRecords(table)
    .filter((record) => isNumber(record.t_s))
    .sort((a, b) => a.t_s - b.t_s);
  const lines = MEMORY_LINES.filter(([key]) => records.some((record) => isNumber(record[key])));
  byId("memory-legend").append(
    el(
      "ul",
      { class: "legend" },
      MEMORY_LINES.map(([key, name, colour]) => {
        const column = columnOf(table, key);
        const there = lines.some(([other]) => other === key);
        return el(
          "li",
          {},
          there ? swatch(colour) : null,
          name,
          there ? null : [" ", none(whyEmpty(column))],
        );
      }),
      [...new Set(page.slices.map((slice) => slice.kind))].map((kind) =>
        el("li", { class: "quiet" }, swatch(kindColour(kind)), kind),
      ),
    ),
  );
  if (lines.length) {
    const view = {
      records,
      slices: page.slices.filter((slice) => isNumber(slice.started_s) && isNumber(slice.wall_s)),
      panels: memoryPanels(lines),
      // Rows of one file have no figure of another's: that is no gap.
      isImport: Boolean(page.facts.imports?.length),
    };
    plot(byId("memory-chart"), (theme) => memoryChart(theme, view), {
      label: "memory over the time of the run",
      says: memorySays(records, lines, view.panels),
      height: 150 + 130 * view.panels.length,
      name: "memory",
      tip: (point) => memoryTip(point, view, lines),
    });
  } else byId("memory-chart").append(remark("No sample has a figure."));
  makeTable(byId("memory-table"), {
    table,
    name: "memory samples",
    sort: { key: "t_s", direction: 1 },
  });
}

// The host's memory and the device's are two things: each has its own scale.
const memoryPanels = (lines) =>
  [
    lines.filter(([key]) => key === "rss_bytes"),
    lines.filter(([key]) => key !== "rss_bytes"),
  ].filter((panel) => panel.length);

// What is in sight of the lines of a panel: as near as its samples lie.
function memoryRange(records, panel) {
  const values = panel.flatMap(([key]) => records.map((record) => record[key]).filter(isNumber));
  const low = Math.min(...values);
  const high = Math.max(...values);
  const span = high - low || high * 0.1 || 1;
  return [Math.max(0, low - 0.1 * span), high + 0.12 * span];
}

function memorySays(records, lines, panels) {
  return [
    lines.map(([key, name], at) => {
      const known = records.filter((record) => isNumber(record[key]));
      const most = known.reduce((best, record) => (record[key] > best[key] ? record : best));
      return [
        at ? "; " : "",
        at ? name : name[0].toUpperCase() + name.slice(1),
        ": ",
        formatBytes(known[0][key]),
        " at first, at most ",
        formatBytes(most[key]),
        " after ",
        formatSeconds(most.t_s),
        ", ",
        formatBytes(known[known.length - 1][key]),
        " at last",
      ];
    }),
    ". ",
    panels.some((panel) => memoryRange(records, panel)[0] > 0)
      ? "The scale does not begin at 0. "
      : "",
  ];
}

function memoryChart(theme, { records, slices, panels, isImport }) {
  const first = records[0].t_s;
  const last = Math.max(records[records.length - 1].t_s, first + 1e-6);
  const data = [];
  const layout = {
    hovermode: "x",
    hoverdistance: -1,
    margin: { l: 76 },
    shapes: sliceBands(
      theme,
      slices
        .map((slice) => [
          Math.max(slice.started_s, first),
          Math.min(slice.started_s + slice.wall_s, last),
          slice,
        ])
        .filter(([from, to]) => to > from),
    ),
  };
  panels.forEach((panel, at) => {
    const name = "y" + (at ? at + 1 : "");
    layout["yaxis" + (at ? at + 1 : "")] = {
      ...axisStyle(theme),
      ...tallAxis("bytes", ...memoryRange(records, panel), {
        width: panels.length > 1 ? 150 : 210,
      }),
      domain: panels.length < 2 ? [0, 1] : at ? [0, 0.46] : [0.54, 1],
    };
    for (const [key, words, colour] of panel) {
      const known = isImport ? records.filter((record) => isNumber(record[key])) : records;
      data.push({
        type: "scatter",
        mode: known.length < 40 ? "lines+markers" : "lines",
        name: words,
        x: known.map((record) => record.t_s),
        y: known.map((record) => record[key]),
        customdata: known,
        yaxis: name,
        connectgaps: false,
        line: { color: theme.colour(colour), width: 1.7 },
        marker: { size: 4 },
      });
    }
  });
  layout.xaxis = {
    ...axis("s", first, last, { width: theme.width, title: "time of the run" }),
    showgrid: false,
    showspikes: true,
    spikemode: "across",
    spikethickness: 1,
    spikedash: "dot",
    spikecolor: theme.soft,
    spikesnap: "data",
    anchor: panels.length > 1 ? "y2" : "y",
  };
  return { data, layout };
}

function memoryTip(point, { slices }, lines) {
  const record = point.customdata;
  const slice = slices.find(
    (one) => record.t_s >= one.started_s && record.t_s <= one.started_s + one.wall_s,
  );
  return [
    formatSeconds(record.t_s),
    [
      isNumber(record.step) ? ["step", record.step] : null,
      slice ? ["slice", slice.kind] : null,
      ...lines.map(([key, name]) => [
        name,
        isNumber(record[key]) ? formatBytes(record[key]) : NONE,
      ]),
      ["measured", "raw samples of the whole process"],
    ],
  ];
}

// ---------- Lines that took memory ----------

// The lines whose memory was seen, those that took most at once first.
function drawMemoryLines(page) {
  const table = page.tables.memory_lines;
  if (!table) return;
  const box = el("div");
  byId("memory-lines").append(
    el("h3", {}, "Lines that took memory"),
    el(
      "p",
      { class: "lead" },
      "Growth of the resident set while a line ran, over all its runs that the layer saw, the " +
        "first steps too. The largest growth is that within one run, by either source. Lines " +
        "over which nothing changed are not here.",
    ),
    box,
  );
  makeTable(box, {
    table,
    name: "lines",
    sort: { key: "largest_bytes", direction: -1 },
    bars: ["largest_bytes"],
    barColour: "var(--accumulate)",
    hidden: ["line"],
    first: [
      "file",
      "source",
      "largest_bytes",
      "increment_bytes",
      "allocated_bytes",
      "occurrences",
      "usage_bytes",
      "watch_bytes",
    ],
    cells: sourceCells,
  });
}
