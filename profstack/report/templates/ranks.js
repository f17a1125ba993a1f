// The view "Ranks": who makes whom wait, the step of each rank on one scale, every step of every
// rank, and the ranks as a table. Only a report of several ranks has it.

import {
  announce,
  append,
  atLine,
  byId,
  chip,
  choice,
  el,
  figure,
  fileLink,
  formatPercent,
  formatSeconds,
  formatWhole,
  hideTip,
  isNumber,
  isProfiled,
  none,
  partColour,
  plural,
  quiet,
  remark,
  shortPath,
  showTip,
  swatch,
  term,
} from "./dom.js";
import { partsBar } from "./overview.js";
import { collectiveTable } from "./ranges.js";
import { asRecords, columnOf, makeTable, placeCell, plainCell, whyEmpty } from "./table.js";
import { drop } from "./views.js";

export const ranksView = {
  id: "ranks",
  title: "Ranks",
  needs: ["ranks", "rank_parts", "rank_steps", "rank_work", "collectives", "sources"],
  has: (page) => Boolean(page.facts.ranks),
  parts: [
    ["rank-sentence", drawSentence],
    ["rank-bars", drawBars],
    ["rank-steps", drawSteps],
    ["rank-collectives", drawMeetings],
    ["rank-work", drawWork],
    ["rank-table", drawRanks],
    ["rank-table", nameProcesses],
  ],
};

const isStraggler = (page, rank) => page.facts.ranks.straggler?.rank === rank;

// A rank as the way to its own page; a rank without a report has none, and of many ranks few do.
const rankLink = (page, record, text) =>
  record.status === "missing" || record.folder === null
    ? el("span", {}, text)
    : fileLink(page.base, record.folder + "/report.html", text);

const areProcesses = (page) => page.facts.ranks.kind === "process";

// Processes that a script started are no ranks: they are not compared, and have other words.
function nameProcesses(page) {
  if (!areProcesses(page)) return;
  const texts = [];
  for (const box of document.querySelectorAll('#view-ranks, a[href="#ranks"]')) {
    const walker = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) texts.push(walker.currentNode);
  }
  for (const input of document.querySelectorAll("#view-ranks input[type=search]"))
    input.placeholder = input.placeholder.replace("ranks", "processes");
  // Names of the program stay as they are.
  for (const text of texts.filter((one) => !one.parentElement.closest(".verdict, td")))
    text.data = text.data.replace(/\b([rR])ank(s?)\b/g, (_, letter, many) => {
      const word = letter === "R" ? "Process" : "process";
      return many ? word + "es" : word;
    });
}

function drawSentence(page) {
  const { ranks, verdict } = page.facts;
  append(byId("rank-sentence"), [
    verdict?.sentence
      ? el("p", { class: "verdict" }, verdict.sentence)
      : remark("No verdict on the ranks: " + (verdict?.reason || "this report has none") + "."),
    remark(
      plural(ranks.count, ranks.kind ?? "rank", ranks.kind === "process" ? "processes" : null) +
        (isNumber(ranks.world_size) ? " of " + formatWhole(ranks.world_size) : ""),
      " with a report",
      ranks.missing.length ? ["; without: ", ranks.missing.join(", ")] : null,
      ". ",
      areProcesses(page)
        ? null
        : [
            term("own-time", "Own times"),
            " are ",
            figure(ranks.spread_s, "s", {
              words: "largest less smallest own time of a step",
              reason: "it is not known of two ranks how long they wait for others",
            }),
            " apart. ",
          ],
      "All other views show the figures of " + (ranks.kind ?? "rank") + " ",
      ranks.shown + " alone.",
    ),
  ]);
}

// ---------- Collectives ----------

function drawMeetings(page) {
  const met = page.facts.ranks.collectives;
  if (!page.tables.collectives) {
    drop("rank-collectives");
    return;
  }
  append(byId("meeting-lead"), [
    "Calls in which the ranks meet, per step; calls and times of their work are rank " +
      page.facts.ranks.shown +
      "'s. ",
    met
      ? "What a rank waits before the last one has come, and the transfer after that, are of the " +
        "steps that all ranks recorded. Rank " +
        met.last_rank +
        " comes last in " +
        formatPercent(met.last_share) +
        " of the collectives." +
        (met.clock_error_s
          ? " The machines' clocks were put together by the ends of collectives; they may be " +
            formatSeconds(met.clock_error_s) +
            " apart."
          : "")
      : "No step that all ranks recorded has the same ones.",
  ]);
  collectiveTable(page, byId("meeting-table"));
}

// ---------- Work that differs ----------

function drawWork(page) {
  if (!page.tables.rank_work) {
    drop("rank-work");
    return;
  }
  makeTable(byId("work-table"), {
    table: page.tables.rank_work,
    name: "rank_work",
    sort: { key: "more_s", direction: -1 },
    bars: ["more_s"],
    barColour: "var(--hot)",
    first: ["name", "kind", "more_s", "most_s", "most_rank", "middle_s", "mean_s", "ranks"],
    keyOf: (record) => record.kind + " " + record.name,
  });
}

// ---------- The step of each rank ----------

// With more ranks the latest of them are in sight, and the others are folded.
const BARS = 16;
const OWN_COLOUR = "var(--accent)";

function drawBars(page) {
  const box = byId("rank-bars");
  const table = page.tables.ranks;
  if (!table) {
    box.append(remark("No rank left a report."));
    return;
  }
  const parts = partsByRank(page.tables.rank_parts);
  const ranks = asRecords(table);
  const drawn = ranks.filter((record) => parts.has(record.rank) || !page.tables.rank_parts);
  const sumOf = (record) =>
    (parts.get(record.rank) || []).reduce((sum, part) => sum + Math.max(part.seconds, 0), 0);
  const whole = ranks.reduce(
    (most, record) =>
      Math.max(
        most,
        sumOf(record),
        record.step_s || 0,
        (record.own_s || 0) + (record.waits_s || 0),
      ),
    0,
  );
  // In the table's order, the latest first; ranks that lack a bar have a row where there is room.
  const shown = ranks.length > BARS ? drawn : ranks;
  const rows = (some) =>
    some
      .slice()
      .sort((a, b) => a.rank - b.rank)
      .map((record) => rankRow(page, record, parts.get(record.rank) || [], whole));
  const rest = shown.slice(BARS);
  const names = [...new Set([...parts.values()].flat().map((part) => part.name))];
  append(box, [
    el(
      "p",
      { class: "lead" },
      isProfiled(page.facts.benchmark) ? "A step" : "A clean step",
      " of each rank, cut into its parts, all on one scale. The thin bar below has its ",
      term("own-time", "own time"),
      " and how long it waits for others: the one that waits least is the last to arrive.",
    ),
    el(
      "div",
      { class: "rank-rows" },
      rows(shown.slice(0, BARS)),
      scaleRow(whole),
      rest.length
        ? el(
            "details",
            {},
            el("summary", {}, "the other " + plural(rest.length, "rank") + ", which are less late"),
            el("div", {}, rows(rest)),
          )
        : null,
    ),
    el(
      "ul",
      { class: "legend parts" },
      names.map((name) => el("li", {}, swatch(partColour({ name })), name)),
      el("li", {}, swatch(OWN_COLOUR), "own time"),
      el("li", {}, el("span", { class: "swatch waits-colour" }), "waits for others"),
    ),
    cutRemark(page, drawn.length),
  ]);
}

function partsByRank(table) {
  const found = new Map();
  for (const { rank, part, time_s } of table ? asRecords(table) : []) {
    if (!found.has(rank)) found.set(rank, []);
    found.get(rank).push({ name: part, seconds: time_s });
  }
  return found;
}

function rankRow(page, record, parts, whole) {
  const table = page.tables.ranks;
  const told = (key) => {
    const column = columnOf(table, key);
    return figure(record[key], "s", { ...column, reason: whyEmpty(column) });
  };
  const late = isStraggler(page, record.rank);
  const name = "rank " + record.rank;
  const divided = parts.map((part) => ({
    ...part,
    share: record.step_s ? part.seconds / record.step_s : null,
  }));
  return el(
    "div",
    { class: "rank-row" + (late ? " straggler" : ""), "data-key": "ranks/bar-" + record.rank },
    el(
      "div",
      { class: "rank-name" },
      rankLink(page, record, name),
      late ? chip("straggler", "failed") : null,
    ),
    el(
      "div",
      {},
      parts.length
        ? partsBar(divided, { label: "parts of the step of " + name, of: "of its step", whole })
        : quiet(record.status === "missing" ? record.ended : "its step was not divided into parts"),
      isNumber(record.own_s) && whole ? ownBar(record, whole, name) : null,
    ),
    el(
      "div",
      { class: "rank-figures" },
      el("b", {}, told("step_s")),
      quiet(" own "),
      told("own_s"),
      quiet(", waits "),
      told("waits_s"),
    ),
  );
}

function ownBar(record, whole, name) {
  const pieces = [
    ["own time", record.own_s, "", OWN_COLOUR],
    ["waits for others", record.waits_s, "waits-colour", null],
  ];
  const bar = el("div", {
    class: "stack",
    role: "img",
    "aria-label":
      name + ": " + pieces.map(([words, value]) => words + " " + formatSeconds(value)).join(", "),
  });
  for (const [words, value, className, colour] of pieces) {
    const piece = el("span", { class: className });
    piece.style.width = (100 * value) / whole + "%";
    if (colour) piece.style.background = colour;
    piece.addEventListener("mousemove", (event) =>
      showTip(event, name, [[words, formatSeconds(value)]]),
    );
    piece.addEventListener("mouseleave", hideTip);
    bar.append(piece);
  }
  return bar;
}

const scaleRow = (whole) =>
  el(
    "div",
    { class: "rank-row" },
    el("div"),
    el(
      "div",
      { class: "rank-ends" },
      el("span", {}, formatSeconds(0)),
      el("span", {}, formatSeconds(whole)),
    ),
    el("div"),
  );

// With very many ranks one of each group of neighbours is drawn; null where all are.
function cutRemark(page, drawn) {
  const { count } = page.facts.ranks;
  return drawn && drawn < count
    ? remark(
        formatWhole(drawn) +
          " of " +
          formatWhole(count) +
          " ranks are drawn: of each " +
          Math.ceil(count / drawn) +
          " neighbours the latest. All are in report.json.",
      )
    : null;
}

// ---------- Ranks by steps ----------

const FIGURES = [
  ["late_s", "late by"],
  ["wall_s", "step"],
  ["wait_s", "before the model"],
  ["cpu_s", "CPU"],
];
const LEVELS = 12;
// Pixels: rows of few ranks are easy to point at, rows of many are on one screen.
const ROWS = [
  [4, 34],
  [16, 20],
  [32, 14],
  [64, 9],
  [Number.POSITIVE_INFINITY, 6],
];
const NAME_ROOM = 15;
const TICKS = 8;

const levelColour = (level) =>
  "color-mix(in srgb, var(--hot) " + Math.round((100 * level) / (LEVELS - 1)) + "%, var(--lane))";

function drawSteps(page) {
  if (areProcesses(page)) {
    byId("rank-steps").parentElement.remove();
    return;
  }
  const box = byId("rank-steps");
  const table = page.tables.rank_steps;
  const isTrace = isProfiled(page.facts.benchmark);
  if (!table) {
    box.append(
      remark(
        isTrace
          ? "No step is in the traces of all ranks, so that none can be compared."
          : "No step is clean on all ranks, so that none can be compared.",
      ),
    );
    return;
  }
  const map = { page, table, ...cellsOf(table), key: "late_s", cursor: null };
  const place = el("div");
  const [first, last] = [map.columns[0], map.columns[map.columns.length - 1]];
  const several = map.columns.some((column) => column.last_step > column.first_step);
  append(box, [
    el(
      "p",
      { class: "lead" },
      ...(isTrace
        ? ["The steps of all ranks, "]
        : ["The steps that are ", term("clean", "clean"), " on all ranks, "]),
      first.first_step + " to " + last.last_step + ", from left to right",
      several ? ": a column has several steps, and the largest figure of them. " : ". ",
      isTrace
        ? "Late by: how much later than the other ranks (their median) it came to a collective."
        : "Late by: how much longer than on the other ranks (the median of theirs) it was before " +
            "the model's first call, or on the CPU.",
    ),
    choice("figure of a step", isTrace ? FIGURES.slice(0, 2) : FIGURES, map.key, (key) => {
      map.key = key;
      drawMap(place, map);
    }),
    place,
    cutRemark(page, map.ranks.length),
  ]);
  drawMap(place, map);
}

// The ranks and the columns of steps in order, and the record of each cell.
function cellsOf(table) {
  const records = asRecords(table);
  const unique = (key) => [...new Set(records.map((record) => record[key]))].sort((a, b) => a - b);
  const ranks = unique("rank");
  const firsts = unique("first_step");
  const rowOf = new Map(ranks.map((rank, at) => [rank, at]));
  const columnAt = new Map(firsts.map((step, at) => [step, at]));
  const cells = ranks.map(() => firsts.map(() => null));
  const columns = firsts.map(() => null);
  for (const record of records) {
    const at = columnAt.get(record.first_step);
    cells[rowOf.get(record.rank)][at] = record;
    columns[at] = record;
  }
  return { ranks, columns, cells };
}

function drawMap(place, map) {
  const column = columnOf(map.table, map.key);
  const known = map.cells
    .flat()
    .filter((record) => record && isNumber(record[map.key]))
    .sort((a, b) => b[map.key] - a[map.key]);
  hideTip();
  map.cursor = null;
  if (!known.length) {
    place.replaceChildren(remark("Nothing to draw: " + (whyEmpty(column) || "not measured") + "."));
    return;
  }
  const most = known[0];
  // Steps are about equally long on all ranks: what tells them apart is above the shortest.
  map.from = map.key === "wall_s" ? known[known.length - 1].wall_s : 0;
  map.to = most[map.key];
  map.most = most;
  const height = ROWS.find(([ranks]) => map.ranks.length <= ranks)[1];
  const read = el("p", { class: "heat-read" }, "Most: " + cellText(map, most) + ".");
  const picture = heatPicture(map, height);
  listenToMap(picture, map, read);
  place.replaceChildren(
    el("div", { class: "heat-map" }, rowNames(map, height), picture.box, stepTicks(map)),
    mapLegend(map, column),
    read,
  );
}

const stepWords = (record) =>
  record.first_step === record.last_step
    ? "step " + record.first_step
    : "steps " + record.first_step + " to " + record.last_step;

const figureWords = (map, key, record) =>
  isNumber(record[key])
    ? formatSeconds(record[key])
    : whyEmpty(columnOf(map.table, key)) || "not measured";

const cellText = (map, record) =>
  "rank " +
  record.rank +
  ", " +
  stepWords(record) +
  ": " +
  FIGURES.find(([key]) => key === map.key)[1] +
  (isNumber(record[map.key]) ? " " : ": ") +
  figureWords(map, map.key, record);

// Small values are told apart by the square root. A rank that is not late is as one that is 0 late.
function levelOf(map, record) {
  const value = record?.[map.key];
  if (!isNumber(value)) return null;
  const share = map.to > map.from ? (value - map.from) / (map.to - map.from) : 0;
  return Math.round(Math.sqrt(Math.max(share, 0)) * (LEVELS - 1));
}

function svg(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  return element;
}

// One path for each level: a page of many ranks has few elements, and follows light and dark.
function heatPicture(map, height) {
  const [rows, columns] = [map.ranks.length, map.columns.length];
  const filled = height > 10 ? 1 - 2 / height : 1;
  const runs = Array.from({ length: LEVELS }, () => []);
  map.cells.forEach((cells, row) => {
    for (let from = 0; from < columns; ) {
      const level = levelOf(map, cells[from]);
      let to = from + 1;
      while (to < columns && levelOf(map, cells[to]) === level) to += 1;
      if (level !== null) runs[level].push(`M${from} ${row}h${to - from}v${filled}h${from - to}z`);
      from = to;
    }
  });
  const drawing = svg("svg", {
    viewBox: `0 0 ${columns} ${rows}`,
    preserveAspectRatio: "none",
    height: rows * height,
    "shape-rendering": "crispEdges",
    "aria-hidden": "true",
  });
  runs.forEach((cells, level) => {
    if (!cells.length) return;
    const path = svg("path", { d: cells.join(""), "data-level": level });
    path.style.fill = levelColour(level);
    drawing.append(path);
  });
  const cursor = svg("rect", {
    class: "heat-cursor",
    width: 1,
    height: filled,
    visibility: "hidden",
  });
  drawing.append(cursor);
  const label = FIGURES.find(([key]) => key === map.key)[1] + " by rank and step";
  const box = el("div", {
    class: "heat",
    tabindex: "0",
    role: "group",
    "aria-label": label + ". Arrow keys move from cell to cell, Home goes to the largest.",
  });
  box.append(drawing);
  return { box, drawing, cursor };
}

function listenToMap({ box, drawing, cursor }, map, read) {
  const goTo = (row, column) => {
    const record = map.cells[row]?.[column];
    if (!record) return;
    map.cursor = [row, column];
    cursor.setAttribute("x", String(column));
    cursor.setAttribute("y", String(row));
    cursor.setAttribute("visibility", "visible");
    read.textContent = cellText(map, record) + ".";
    announce(cellText(map, record));
  };
  const cellAt = (event) => {
    const around = drawing.getBoundingClientRect();
    const share = (at, from, size, count) =>
      Math.min(Math.max(Math.floor(((at - from) / size) * count), 0), count - 1);
    return [
      share(event.clientY, around.top, around.height, map.ranks.length),
      share(event.clientX, around.left, around.width, map.columns.length),
    ];
  };
  const largest = () => [map.ranks.indexOf(map.most.rank), map.columns.findIndex(isMostColumn)];
  const isMostColumn = (column) => column.first_step === map.most.first_step;
  box.addEventListener("keydown", (event) => {
    const ways = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const way = ways[event.key];
    if (!way && event.key !== "Home") return;
    event.preventDefault();
    if (!way || !map.cursor) goTo(...largest());
    else goTo(map.cursor[0] + way[0], map.cursor[1] + way[1]);
  });
  drawing.addEventListener("click", (event) => goTo(...cellAt(event)));
  drawing.addEventListener("mousemove", (event) => {
    const [row, column] = cellAt(event);
    const record = map.cells[row][column];
    if (record)
      showTip(
        event,
        "rank " + record.rank + ", " + stepWords(record),
        FIGURES.map(([key, words]) => [words, figureWords(map, key, record)]),
      );
    else hideTip();
  });
  drawing.addEventListener("mouseleave", hideTip);
}

// The names of as many ranks as there is room for; the straggler's before all others.
function rowNames(map, height) {
  const box = el("div", { class: "heat-names", "aria-hidden": "true" });
  const middle = (row) => (row + 0.5) * height;
  const named = [];
  const rows = map.ranks.map((_rank, row) => row);
  const isLate = (row) => isStraggler(map.page, map.ranks[row]);
  for (const row of [...rows.filter(isLate), ...rows])
    if (named.every((other) => Math.abs(middle(other) - middle(row)) >= NAME_ROOM)) named.push(row);
  for (const row of named) {
    const name = el("span", { class: isLate(row) ? "straggler" : null }, "rank " + map.ranks[row]);
    name.style.top = middle(row) + "px";
    box.append(name);
  }
  return box;
}

function stepTicks(map) {
  const box = el("div", { class: "heat-ticks", "aria-hidden": "true" });
  const count = map.columns.length;
  const apart = Math.max(Math.ceil(count / TICKS), 1);
  for (let at = 0; at < count; at += apart) {
    const step = map.columns[at].first_step;
    const tick = el("span", {}, at ? step : "step " + step);
    tick.style.left = (at ? (100 * (at + 0.5)) / count : 0) + "%";
    box.append(tick);
  }
  return box;
}

function mapLegend(map, column) {
  const strip = el("div", { class: "heat-strip", "aria-hidden": "true" });
  strip.style.gridTemplateColumns = "repeat(" + LEVELS + ", 1fr)";
  for (let level = 0; level < LEVELS; level += 1) {
    const piece = el("i");
    piece.style.background = levelColour(level);
    strip.append(piece);
  }
  // Half the colour is a quarter of the way: levels go by the square root.
  const ends = [map.from, map.from + (map.to - map.from) / 4, map.to].map(formatSeconds);
  const unknown = map.cells.flat().some((record) => levelOf(map, record) === null);
  return el(
    "div",
    { class: "heat-legend" },
    el(
      "div",
      {},
      strip,
      el(
        "div",
        { class: "span-ends" },
        ends.map((text) => el("span", {}, text)),
      ),
    ),
    el("span", {}, FIGURES.find(([key]) => key === map.key)[1] + ": " + column.meaning),
    unknown ? el("span", {}, "without a colour: ", none(whyEmpty(column)), " not known") : null,
  );
}

// ---------- The table ----------

function drawRanks(page) {
  const box = byId("rank-table");
  const table = page.tables.ranks;
  if (!table) {
    box.append(remark("No rank left a report."));
    return;
  }
  const recorded = new Set((page.sources || []).map((source) => source.file));
  makeTable(box, {
    table,
    name: "ranks",
    sort: { key: "late_s", direction: -1 },
    bars: ["late_s"],
    barColour: "var(--hot)",
    hidden: ["folder", "line"],
    first: [
      ...["rank", "step_s", "own_s", "waits_s", "late_s", "part", "part_s", "file", "cause"],
      ...["status", "ended", "node", "steps", "cpu_s", "peak_bytes", "flop"],
    ],
    keyOf: (record) => record.rank,
    cells: {
      rank: (value, record) => el("td", { class: "number" }, rankLink(page, record, String(value))),
      // The text is there of the files of the rank that the page shows.
      file: (value, record, column) =>
        recorded.has(value)
          ? placeCell(value, record.line)
          : plainCell(column, placed(record), whyEmpty(column)),
    },
  });
}

const placed = ({ file, line }) => (file === null ? null : atLine(shortPath(file), line));
