// The views "Operators" and "Kernels": totals by name, or one row for each combination, and the
// callers of the chosen one.

import {
  append,
  byId,
  choice,
  el,
  figure,
  formatPercent,
  formatWhole,
  isNumber,
  pairs,
  quiet,
  remark,
  tailOf,
} from "./dom.js";
import { shortPointName } from "./flops.js";
import { asRecords, COLUMN_WAYS, columnOf, compareBy, makeTable, ownColumn } from "./table.js";
import { filterOf, linkTo, onFilter, onKey, rowsOf } from "./views.js";

export const operatorsView = {
  id: "operators",
  title: "Operators",
  needs: ["operators", "operators_by_name", "roofline"],
  shows: ["operators", "operators_by_name"],
  parts: [["operators", drawOperators]],
};

export const kernelsView = {
  id: "kernels",
  title: "Kernels",
  needs: ["kernels"],
  parts: [["kernels", drawKernels]],
};

const MOST_OWNERS = 12;

function drawOperators(page) {
  drawNamed({
    view: "operators",
    box: byId("operator-table"),
    summed: page.tables.operators_by_name,
    each: page.tables.operators,
    what: "operator",
    first: ["name", "self_s", "total_s", "calibrated_s", "device_s", "calls"],
    names: ["by operator", "by shapes and module"],
    sort: "self_s",
    bars: ["self_s", "device_s"],
    owners: [
      ["module", "called in"],
      ["shapes", "with shapes"],
    ],
    ways: (name) => [
      roofWay(page, name),
      rowsOf(page, "kernels") ? linkTo("kernels", null, "kernels") : null,
    ],
  });
}

// An operator may have several points in the roofline, one for each module: to its heaviest.
function roofWay(page, name) {
  const points = (page.roofline?.points || []).filter(
    (point) => point.kind === "operator" && shortPointName(point) === name,
  );
  const heaviest = points.reduce(
    (best, point) => (best && (best.seconds || 0) >= (point.seconds || 0) ? best : point),
    null,
  );
  return heaviest ? linkTo("flops", heaviest.name, "in the roofline") : null;
}

function drawKernels(page) {
  drawNamed({
    view: "kernels",
    box: byId("kernel-table"),
    summed: kernelsByName(page.tables.kernels),
    each: page.tables.kernels,
    what: "kernel",
    first: ["name", "device_s", "calls"],
    names: ["by kernel", "by module and operator"],
    sort: "device_s",
    bars: ["device_s"],
    owners: [
      ["operator", "launched by"],
      ["module", "in"],
      ["stream", "on stream"],
    ],
    ways: () => [],
  });
}

// Kernels summed over modules, operators and streams; only of rows that are on the page.
function kernelsByName(table) {
  const groups = new Map();
  for (const record of asRecords(table)) {
    if (!groups.has(record.name)) groups.set(record.name, []);
    groups.get(record.name).push(record);
  }
  const column = (key) => columnOf(table, key);
  const number = (key, meaning) =>
    ownColumn(key, key, "plain", meaning, null, { layer: "torch", kind: "counted" });
  const columns = [
    column("name"),
    column("calls"),
    column("device_s"),
    number("operators", "number of operators that launch it"),
    number("modules", "number of modules that it is launched in"),
  ];
  const rows = [...groups].map(([name, members]) => [
    name,
    sumOrNone(members, "calls"),
    sumOrNone(members, "device_s"),
    distinct(members, "operator"),
    distinct(members, "module"),
  ]);
  const left = table.left_out ? "Sums are those of the rows on this page. " + table.left_out : null;
  return { name: "kernels_by_name", columns, rows, total: rows.length, left_out: left };
}

// A sum with one part unknown is unknown.
function sumOrNone(members, key) {
  return members.every((one) => isNumber(one[key]))
    ? members.reduce((sum, one) => sum + one[key], 0)
    : null;
}

const distinct = (members, key) => new Set(members.map((one) => one[key])).size;

function drawNamed(spec) {
  const boxes = { name: el("div"), each: el("div", { hidden: true }) };
  const aside = el("aside");
  const rows = choice(
    "rows",
    [
      ["name", spec.names[0]],
      ["each", spec.names[1]],
    ],
    "name",
    (kind) => {
      for (const [name, box] of Object.entries(boxes)) box.hidden = name !== kind;
    },
  );
  const turnTo = (kind) => [...rows.children][kind === "name" ? 0 : 1].click();
  append(spec.box, [
    rows,
    el("div", { class: "call-view" }, el("div", {}, boxes.name, boxes.each), aside),
  ]);
  const records = asRecords(spec.each);
  const known = new Set(records.map((record) => record.name));
  const describe = (name) =>
    describeNamed(
      aside,
      name,
      records.filter((record) => record.name === name),
      spec,
    );
  // The panel first; the table then marks the row.
  onKey(spec.view, (name) => {
    if (known.has(name)) describe(name);
    return false;
  });
  const name = (value) =>
    el("td", { class: "text path", title: value }, linkTo(spec.view, value, value));
  const common = {
    sort: { key: spec.sort, direction: -1 },
    bars: spec.bars,
    barColour: "var(--self)",
    cells: { name },
    first: spec.first,
  };
  makeTable(boxes.name, {
    ...common,
    table: spec.summed,
    name: spec.what + "s",
    keyOf: (record) => record.name,
    reveal: () => turnTo("name"),
  });
  makeTable(boxes.each, { ...common, table: spec.each, name: spec.what + "s, one by one" });
  // Sums over all modules cannot be cut to one.
  const keep = (filter) => {
    if (filter.module) turnTo("each");
  };
  onFilter(spec.view, keep);
  keep(filterOf(spec.view));
  const heaviest = asRecords(spec.summed).sort(compareBy(spec.sort, -1))[0];
  if (heaviest) describe(heaviest.name);
}

// One operator or kernel: its sums, and who they are divided among.
function describeNamed(box, name, members, spec) {
  const column = (key) => columnOf(spec.each, key);
  const sums = ["calls", "self_s", "total_s", "device_s", "calibrated_s", "flop", "moved_bytes"]
    .filter((key) => column(key))
    .map((key) => [column(key), sumOrNone(members, key)]);
  const ways = spec.ways(name).filter((way) => way && way.tagName === "A");
  box.replaceChildren();
  append(box, [
    el("h3", {}, name),
    ways.length
      ? el(
          "p",
          { class: "ways" },
          ways.flatMap((way, at) => (at ? [" · ", way] : [way])),
        )
      : null,
    pairs(
      sums
        .filter(([, value]) => isNumber(value))
        .map(([one, value]) => [one.label, figure(value, one.unit, one)]),
    ),
    ...spec.owners
      .filter(([key]) => column(key) && members.some((one) => one[key] !== null))
      .map(([key, words]) => ownersList(key, words, members, spec)),
    spec.each.left_out ? remark("Of the rows on this page. " + spec.each.left_out) : null,
  ]);
}

// Who a name's time and calls are divided among, the largest first.
function ownersList(key, words, members, spec) {
  const groups = new Map();
  for (const member of members) {
    const owner = member[key] === null ? "" : String(member[key]);
    const sum = groups.get(owner) || { owner, value: 0, calls: 0, known: true };
    sum.value += member[spec.sort] || 0;
    sum.calls += member.calls || 0;
    groups.set(owner, sum);
  }
  const ranked = [...groups.values()].sort((a, b) => b.value - a.value);
  const whole = ranked.reduce((sum, one) => sum + one.value, 0);
  const view = COLUMN_WAYS[key];
  const column = (name) => columnOf(spec.each, name);
  const list = el("ul", { class: "inside" });
  const fill = (most) => {
    list.replaceChildren(
      ...ranked
        .slice(0, most)
        .map((one) =>
          el(
            "li",
            { title: one.owner },
            el(
              "span",
              { class: "link" },
              one.owner === ""
                ? "(not known)"
                : view
                  ? linkTo(view, one.owner, view === "modules" ? tailOf(one.owner, 22) : one.owner)
                  : one.owner,
            ),
            quiet(figure(one.calls, "count", column("calls")), " ×"),
            el("span", {}, figure(one.value, "s", column(spec.sort))),
            quiet(whole > 0 ? formatPercent(one.value / whole) : ""),
          ),
        ),
    );
    if (ranked.length > most)
      list.append(
        el(
          "li",
          {},
          el(
            "button",
            { type: "button", class: "link", onclick: () => fill(most + 60) },
            "and " + (ranked.length - most) + " more",
          ),
        ),
      );
  };
  fill(MOST_OWNERS);
  return [
    el("h4", {}, words + (ranked.length > 1 ? " (" + formatWhole(ranked.length) + ")" : "")),
    list,
  ];
}
