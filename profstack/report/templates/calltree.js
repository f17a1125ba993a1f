// The call tree of the Python functions, as an icicle, a flame or a sunburst.
//
// A profile knows pairs of caller and callee, not paths. A function with several callers is drawn
// under each of them, its own callees scaled by the share of its time that this caller accounts
// for. Functions that call each other in a circle are one frame, a cycle: its members lie in it
// side by side, each with its own time and its calls out of the cycle.

import {
  append,
  byId,
  choice,
  el,
  figure,
  hash,
  none,
  pairs,
  quiet,
  RAW_CPROFILE,
  remark,
  select,
} from "./dom.js";
import { formatCount, formatPercent, formatSeconds, formatWhole, shortPath } from "./format.js";
import { drawHierarchy, insideList, LEAST_AREA, PICTURES, wayThrough } from "./hierarchy.js";
import { makeTable, ownColumn, searchBox } from "./table.js";
import { linkTo } from "./views.js";

const MOST_NODES = 1500; // frames: more than that nobody looks at, and drawing them takes seconds

function indexCalls(tree) {
  const callees = tree.functions.map(() => []);
  const cycleOf = tree.functions.map(() => -1);
  tree.cycles.forEach((members, at) => {
    for (const member of members) cycleOf[member] = at;
  });
  const own = tree.functions.map((record) => record[4] || 0);
  for (const [caller, callee, calls, seconds] of tree.edges) {
    if (caller === callee) continue;
    callees[caller].push({ callee, calls, seconds });
    if (cycleOf[caller] < 0 || cycleOf[caller] !== cycleOf[callee]) own[caller] += seconds;
  }
  const sums = tree.cycles.map((members) => members.reduce((sum, member) => sum + own[member], 0));
  return { ...tree, callees, cycleOf, own, sums };
}

const functionName = (record) => record[2];
const functionPlace = (record) =>
  record[0] === "~" ? "built-in" : shortPath(record[0]) + ":" + record[1];
const functionLabel = (record) => record[2] + "  " + functionPlace(record);
const isOwnFunction = (record) => record[6] === OWN_FILES;

// The frames under a caller: functions, and all entries into one cycle as that cycle.
function entered(calls, parts, parent) {
  const nodes = new Map();
  for (const part of parts) {
    const cycle = calls.cycleOf[part.callee];
    const key = cycle < 0 ? "f" + part.callee : "c" + cycle;
    const node =
      nodes.get(key) ||
      (cycle < 0 ? { kind: "function", index: part.callee } : { kind: "cycle", cycle });
    node.parent = parent;
    node.value = (node.value || 0) + part.seconds;
    node.calls = (node.calls || 0) + part.calls;
    nodes.set(key, node);
  }
  return [...nodes.values()];
}

// The children of one node; together never longer than the node itself.
function childrenOf(calls, node) {
  let children;
  if (node.kind === "all") {
    children = entered(
      calls,
      calls.roots.map(([callee, seconds]) => ({
        callee,
        calls: calls.functions[callee][3],
        seconds,
      })),
      node,
    );
  } else if (node.kind === "cycle") {
    const share = calls.sums[node.cycle] > 0 ? Math.min(node.value / calls.sums[node.cycle], 1) : 0;
    children = calls.cycles[node.cycle].map((index) => ({
      kind: "member",
      index,
      parent: node,
      value: calls.own[index] * share,
      calls: calls.functions[index][3] * share,
    }));
  } else {
    const cycle = calls.cycleOf[node.index];
    const total = node.kind === "member" ? calls.own[node.index] : calls.functions[node.index][5];
    const share = total > 0 ? Math.min(node.value / total, 1) : 0;
    const outside = calls.callees[node.index].filter(
      (part) => cycle < 0 || calls.cycleOf[part.callee] !== cycle,
    );
    children = entered(
      calls,
      outside.map((part) => ({
        callee: part.callee,
        calls: part.calls * share,
        seconds: part.seconds * share,
      })),
      node,
    );
  }
  children = children.filter((child) => child.value > 0).sort((a, b) => b.value - a.value);
  const sum = children.reduce((all, child) => all + child.value, 0);
  if (sum > node.value) for (const child of children) child.value *= node.value / sum;
  return children;
}

// Merges adjacent frames of one library into one, which holds what they call elsewhere. Paths too
// small to be seen are not followed: their number can grow without bound.
function foldLibraries(calls, node, cutoff) {
  const parts = new Map();
  const put = (key, child, make) => {
    const part = parts.get(key) || { ...make(), parent: node, value: 0, calls: 0 };
    part.value += child.value;
    part.calls += child.calls;
    if (part.members) part.members.push(child);
    parts.set(key, part);
  };
  const work =
    node.kind === "package"
      ? node.members.flatMap((member) => childrenOf(calls, member))
      : childrenOf(calls, node);
  for (let at = 0; at < work.length; at += 1) {
    const child = work[at];
    const record = child.index === undefined ? null : calls.functions[child.index];
    const library = record && !isOwnFunction(record) ? record[6] : null;
    if (library && node.kind === "package" && library === node.package) {
      if (work.length < MOST_NODES)
        for (const inner of childrenOf(calls, child)) if (inner.value > cutoff) work.push(inner);
    } else if (library)
      put("p" + library, child, () => ({ kind: "package", package: library, members: [] }));
    else put(child.kind + (child.index ?? child.cycle), child, () => ({ ...child }));
  }
  return [...parts.values()].sort((a, b) => b.value - a.value);
}

// All nodes to draw under `root`, breadth first, with length as a share of the root.
function layOut(calls, root, depth, cutoff, folded) {
  root.share = 1;
  root.level = 0;
  const nodes = [root];
  for (let at = 0; at < nodes.length && nodes.length < MOST_NODES; at += 1) {
    const node = nodes[at];
    node.children = [];
    if (node.level >= depth) continue;
    const least = Math.max(cutoff, LEAST_AREA) * root.value;
    for (const child of folded ? foldLibraries(calls, node, least) : childrenOf(calls, node)) {
      child.share = root.value > 0 ? child.value / root.value : 0;
      child.level = node.level + 1;
      child.children = [];
      if (child.share >= cutoff) {
        nodes.push(child);
        node.children.push(child);
      }
    }
  }
  return nodes;
}

function fileColour(record) {
  return isOwnFunction(record)
    ? "var(--file-" + (hash(record[0]) % 8) + ")"
    : libraryColour(record[6]);
}

// Libraries are pale: what the reader can change stands out.
const libraryColour = (name) => (name === "torch" ? "var(--outside)" : "var(--builtin)");

const callState = {
  phase: "step",
  kind: "icicle",
  depth: 12,
  cutoff: 0.005,
  node: null,
  chosen: null,
  folded: true,
  wanted: "",
  only: false,
  areas: [],
};
let calls = null;
let redrawCalls = () => {};

function wholeNode() {
  return {
    kind: "all",
    value: calls.roots.reduce((sum, [, seconds]) => sum + seconds, 0),
    calls: 1,
    parent: null,
  };
}

// A function of a cycle cannot be taken out of it: the cycle is shown in its place.
function functionNode(index) {
  const cycle = calls.cycleOf[index];
  if (cycle >= 0)
    return {
      kind: "cycle",
      cycle,
      value: calls.sums[cycle],
      calls: calls.functions[index][3],
      parent: null,
    };
  return {
    kind: "function",
    index,
    value: calls.functions[index][5],
    calls: calls.functions[index][3],
    parent: null,
  };
}

const nodeRecord = (node) => (node.index === undefined ? null : calls.functions[node.index]);

function cycleName(cycle) {
  const members = calls.cycles[cycle];
  const first = members.reduce((a, b) =>
    (calls.functions[b][3] || 0) > (calls.functions[a][3] || 0) ? b : a,
  );
  return "⟲ " + functionName(calls.functions[first]) + " and " + (members.length - 1) + " more";
}

function nodeName(node) {
  if (node.kind === "all") return "all functions";
  if (node.kind === "package") return node.package;
  return node.kind === "cycle" ? cycleName(node.cycle) : functionName(calls.functions[node.index]);
}

function nodeColour(node) {
  if (node.kind === "all") return "var(--lane)";
  if (node.kind === "package") return libraryColour(node.package);
  return node.kind === "cycle" ? "var(--cycle)" : fileColour(calls.functions[node.index]);
}

// Whether what is searched for is in this frame's name or file, or in those it stands for.
function nodeMatches(node, wanted) {
  const has = (record) =>
    (record[2] + "\n" + record[0] + ":" + record[1]).toLowerCase().includes(wanted);
  if (node.kind === "all") return false;
  if (node.kind === "package")
    return (
      node.package.toLowerCase().includes(wanted) ||
      node.members.some(
        (member) => member.index !== undefined && has(calls.functions[member.index]),
      )
    );
  return node.kind === "cycle"
    ? calls.cycles[node.cycle].some((index) => has(calls.functions[index]))
    : has(calls.functions[node.index]);
}

export function drawCallTree(page) {
  const phases = Object.keys(page.call_trees);
  if (!phases.length) {
    byId("call-tree").remove();
    return () => {};
  }
  const paint = drawHierarchy({
    box: byId("call-chart"),
    kind: () => callState.kind,
    areas: callAreas,
    label: () => "call tree from " + nodeName(callState.node) + ", " + callState.kind,
    marked: (area) => (!callState.wanted ? null : area.matches ? "match" : "other"),
    tip: (area) => [nodeName(area.node), describedRows(area.node, callState.node)],
    seen: (area) => describe(area ? area.node : callState.node, callState.node),
    open: (area) =>
      zoomTo(area.node === callState.node && area.node.parent ? area.node.parent : area.node),
  });
  redrawCalls = () => {
    paint();
    tellCalls(page);
  };
  const tools = callTools(page, phases);
  tools.choose(phases[0]);
  return (record) => {
    if (record.phase !== callState.phase && page.call_trees[record.phase])
      tools.choose(record.phase);
    return chooseFunction(
      calls.functions.findIndex(
        (one) => one[0] === record.file && one[1] === record.line && one[2] === record.name,
      ),
    );
  };
}

function callTools(page, phases) {
  const names = el("datalist", { id: "function-names" });
  const root = el("input", {
    type: "search",
    list: "function-names",
    placeholder: "all functions",
    "aria-label": "root function",
    autocomplete: "off",
    spellcheck: "false",
  });
  const labels = new Map();
  function choose(phase) {
    calls = indexCalls(page.call_trees[phase]);
    Object.assign(callState, { phase, node: wholeNode(), chosen: heaviestOwn() });
    labels.clear();
    root.value = "";
    calls.functions.forEach((record, index) => {
      if (!labels.has(functionLabel(record))) labels.set(functionLabel(record), index);
    });
    names.replaceChildren(
      ...[...labels.keys()].slice(0, 400).map((label) => el("option", { value: label })),
    );
    redrawCalls();
  }
  root.addEventListener("change", () => {
    if (root.value === "") zoomTo(wholeNode());
    else if (labels.has(root.value)) chooseFunction(labels.get(root.value));
  });
  const depth = el("input", {
    type: "range",
    id: "call-depth",
    min: 1,
    max: 40,
    value: callState.depth,
    "aria-label": "depth",
  });
  const depthText = el("output", {}, callState.depth);
  depth.addEventListener("input", () => {
    callState.depth = Number(depth.value);
    depthText.textContent = depth.value;
    redrawCalls();
  });
  const only = el("input", { type: "checkbox" });
  only.addEventListener("change", () => {
    callState.only = only.checked;
    redrawCalls();
  });
  append(byId("call-tools"), [
    choice(
      "drawing",
      PICTURES.filter(([kind]) => kind !== "treemap"),
      callState.kind,
      (kind) => {
        callState.kind = kind;
        redrawCalls();
      },
    ),
    phases.length > 1
      ? choice(
          "phase",
          phases.map((phase) => [phase, phase === "step" ? "steps" : "start-up"]),
          phases[0],
          choose,
        )
      : null,
    choice(
      "libraries",
      [
        ["folded", "libraries folded"],
        ["all", "all frames"],
      ],
      callState.folded ? "folded" : "all",
      (kind) => {
        Object.assign(callState, { folded: kind === "folded", node: wholeNode() });
        redrawCalls();
      },
    ),
    searchBox("the call tree", (wanted) => {
      callState.wanted = wanted;
      redrawCalls();
    }),
    el("label", { class: "field" }, only, el("span", {}, "only ways to what is found")),
    el("label", { class: "field" }, el("span", {}, "root"), root, names),
    el("label", { class: "field" }, el("span", {}, "depth"), depth, depthText),
    select(
      "cutoff",
      [
        ["0", "none"],
        ["0.001", "0.1 %"],
        ["0.005", "0.5 %"],
        ["0.01", "1 %"],
        ["0.02", "2 %"],
        ["0.05", "5 %"],
      ],
      String(callState.cutoff),
      (value) => {
        callState.cutoff = Number(value);
        redrawCalls();
      },
    ),
  ]);
  return { choose };
}

// The user's own function that takes most by itself; any function where none is the user's.
function heaviestOwn() {
  const all = calls.functions.map((_record, index) => index);
  const own = all.filter((index) => isOwnFunction(calls.functions[index]));
  return (own.length ? own : all).reduce(
    (a, b) => ((calls.functions[b][4] || 0) > (calls.functions[a][4] || 0) ? b : a),
    (own.length ? own : all)[0],
  );
}

function chooseFunction(index) {
  if (index === undefined || index < 0) return false;
  callState.chosen = index;
  callState.node = functionNode(index);
  redrawCalls();
  return true;
}

function zoomTo(node) {
  callState.node = node;
  if (node.index !== undefined) callState.chosen = node.index;
  redrawCalls();
}

// What is drawn: the laid out frames, each parent before what lies in it.
function callAreas() {
  const { node: root, wanted } = callState;
  let nodes = layOut(calls, root, callState.depth, callState.cutoff, callState.folded);
  if (wanted) nodes = searched(nodes, wanted, callState.only);
  const places = new Map();
  // Sums of shares may be longer than what they are shares of, in the last digit.
  for (const node of nodes.slice().reverse())
    node.drawn = Math.max(
      node.value,
      node.children.reduce((sum, child) => sum + (child.drawn || 0), 0),
    );
  callState.areas = nodes.map((node, at) => {
    places.set(node, at);
    return {
      name: nodeName(node),
      value: node.drawn,
      told: formatSeconds(node.value),
      colour: nodeColour(node),
      parent: node === root ? -1 : places.get(node.parent),
      matches: node.matches,
      node,
    };
  });
  return callState.areas;
}

// Notes which frames match; with `only`, keeps the ways to them and what lies in them.
function searched(nodes, wanted, only) {
  for (const node of nodes) {
    node.matches = nodeMatches(node, wanted);
    node.isIn = node !== nodes[0] && (node.parent.matches || node.parent.isIn);
  }
  for (const node of nodes.slice().reverse())
    node.leads = node.matches || node.children.some((child) => child.leads);
  if (!only) return nodes;
  const kept = nodes.filter((node) => node === nodes[0] || node.leads || node.isIn);
  for (const node of kept)
    node.children = node.children.filter((child) => child.leads || child.isIn);
  return kept;
}

// What stands round the picture: the way to its root, how much was found, callers and callees.
function tellCalls(page) {
  const root = callState.node;
  const nodes = callState.areas;
  byId("call-path").replaceChildren(...breadcrumb(root));
  const most = nodes.length >= MOST_NODES ? ", no more are drawn: raise the cutoff" : "";
  byId("call-count").textContent =
    nodes.length + (nodes.length === 1 ? " frame" : " frames") + most;
  byId("call-left").textContent = page.call_trees[callState.phase].left_out || "";
  byId("call-found").textContent = callState.wanted ? foundWords(nodes, root) : "";
  describe(root, root);
  drawCallEdges(byId("call-edges"), callState.chosen);
}

function foundWords(areas, root) {
  const found = areas.filter((area) => area.matches);
  const outer = found.filter((area) => !area.node.isIn);
  return (
    found.length +
    (found.length === 1 ? " frame" : " frames") +
    " found" +
    (found.length
      ? ", " +
        formatPercent(outer.reduce((sum, area) => sum + area.value, 0) / (root.value || 1)) +
        " of the root (frames in one another counted once)."
      : ".")
  );
}

function breadcrumb(root) {
  const items = wayThrough({ ...wayNode(root) }, (node) => zoomTo(node.node));
  let first = root;
  while (first.parent) first = first.parent;
  if (first.kind !== "all")
    items.unshift(
      el("button", { type: "button", onclick: () => zoomTo(wholeNode()) }, "all functions"),
      quiet(" › "),
    );
  return items;
}

const wayNode = (node) => ({
  name: nodeName(node),
  node,
  parent: node.parent ? wayNode(node.parent) : null,
});

const NODE_WORDS = {
  all: "all that the profile saw, per step",
  cycle: "functions that call each other in a circle; who lies inside whom is not known",
  member: "in a cycle: its own time and its calls out of the cycle",
  package: "functions of one library, with what they call in it",
};

function describedRows(node, root) {
  const record = nodeRecord(node);
  const members =
    node.kind === "cycle"
      ? calls.cycles[node.cycle].map((index) => functionName(calls.functions[index]))
      : node.kind === "package"
        ? [...new Set(node.members.map(nodeName))]
        : [];
  return [
    [
      "here",
      formatSeconds(node.value) + ", " + formatPercent(node.value / root.value) + " of the root",
    ],
    record ? ["calls here", formatCount(node.calls)] : null,
    record
      ? ["in all", formatSeconds(record[5]) + " in " + formatCount(record[3]) + " calls"]
      : null,
    record ? ["without callees", formatSeconds(record[4])] : null,
    members.length
      ? ["members", members.slice(0, 12).join(", ") + (members.length > 12 ? ", …" : "")]
      : null,
    ["this is", "raw: as the cprofile layer saw it"],
  ].filter(Boolean);
}

function describe(node, root) {
  const record = nodeRecord(node);
  const inside = (
    callState.folded ? foldLibraries(calls, node, 0.001 * node.value) : childrenOf(calls, node)
  ).map((child) => ({
    name: nodeName(child),
    value: child.value,
    colour: nodeColour(child),
    children: [],
    node: child,
  }));
  byId("call-detail").replaceChildren();
  append(byId("call-detail"), [
    el("h3", {}, nodeName(node)),
    record ? el("p", { class: "quiet place", title: record[0] }, functionWay(record)) : null,
    NODE_WORDS[node.kind] ? remark(NODE_WORDS[node.kind]) : null,
    pairs(describedRows(node, root)),
    insideList(
      { children: inside },
      node.value || 1,
      (child) => figure(child.value, "s", RAW_CPROFILE),
      (child) => zoomTo(child.node),
    ),
  ]);
}

// The place of a function; of the user's own it leads to the source line.
function functionWay(record) {
  return isOwnFunction(record)
    ? linkTo("source", record[0] + ":" + record[1], functionPlace(record))
    : functionPlace(record);
}

// ---------- Callers and callees ----------

const EDGE_ORIGIN = { layer: "cprofile", kind: "raw" };

function drawCallEdges(box, index) {
  box.replaceChildren();
  if (index === null || index === undefined) return;
  const record = calls.functions[index];
  const cycle = calls.cycleOf[index];
  append(box, [
    el(
      "h3",
      {},
      "Callers and callees of ",
      el("code", {}, functionName(record)),
      " ",
      el("span", { class: "quiet place" }, functionWay(record)),
    ),
    el(
      "p",
      { class: "lead" },
      formatSeconds(record[5]) +
        " with callees, " +
        formatSeconds(record[4]) +
        " without, in " +
        formatCount(record[3]) +
        (record[3] === 1 ? " call" : " calls") +
        " per step. Shares are of the time with callees." +
        (cycle >= 0
          ? " It is part of a circle of functions that call each other: their times hold one " +
            "another, and shares may add up to more than the whole."
          : ""),
    ),
  ]);
  const sides = el("div", { class: "columns edges" });
  box.append(sides);
  const from = calls.edges
    .filter(([, callee]) => callee === index)
    .map(([caller, , count, seconds]) => [caller, count, seconds]);
  const to = calls.edges
    .filter(([caller]) => caller === index)
    .map(([, callee, count, seconds]) => [callee, count, seconds]);
  edgeTable(sides, "callers", from, leftOf(calls.callers_left, index), record, index);
  edgeTable(sides, "callees", to, leftOf(calls.callees_left, index), record, index);
}

const leftOf = (left, index) => (left || []).find(([one]) => one === index) || null;

function edgeTable(box, name, edges, left, record, index) {
  const place = el("div", { id: "call-" + name });
  place.append(el("h4", {}, name));
  box.append(place);
  if (!edges.length && !left) {
    place.append(
      remark(
        name === "callers"
          ? "No function of the profile calls it: it was on the stack when the profile began, " +
              "or C code calls it."
          : "It calls no function that the profile sees.",
      ),
    );
    return;
  }
  const columns = [
    ownColumn("name", "function", "text", name === "callers" ? "who calls it" : "what it calls"),
    ownColumn("calls", "calls", "count", "calls per step from the one to the other", null, {
      layer: "cprofile",
      kind: "counted",
    }),
    ownColumn(
      "total_s",
      "time",
      "s",
      "time with callees of these calls, per step",
      null,
      EDGE_ORIGIN,
    ),
    ownColumn(
      "share",
      "share",
      "share",
      "that time over the time with callees of " + functionName(record),
      "its time was not measured",
      EDGE_ORIGIN,
    ),
    ownColumn(
      "place",
      "place",
      "text",
      "file and line of its definition",
      "more than one function",
    ),
  ];
  const share = (seconds) => (record[5] > 0 ? seconds / record[5] : null);
  const places = new Map();
  const rows = edges.map(([other, count, seconds]) => {
    const one = calls.functions[other];
    const name = functionName(one) + (other === index ? " (itself)" : "");
    const row = [name, count, seconds, share(seconds), functionPlace(one)];
    places.set(row.join("\n"), other);
    return row;
  });
  if (left)
    rows.push([
      formatWhole(left[1]) + " more, not on this page",
      left[2],
      left[3],
      share(left[3]),
      null,
    ]);
  const otherOf = (one) => places.get(columns.map((column) => one[column.key]).join("\n"));
  makeTable(place, {
    table: { columns, rows, left_out: null },
    name,
    plain: rows.length < 8,
    sort: { key: "total_s", direction: -1 },
    bars: ["share"],
    barColour: "var(--self)",
    cells: {
      name: (value, one) => {
        const other = otherOf(one);
        return el(
          "td",
          { class: "text path", title: value },
          other === undefined
            ? value
            : el(
                "button",
                { type: "button", class: "link", onclick: () => chooseFunction(other) },
                value,
              ),
        );
      },
      place: (value, one) => {
        const other = otherOf(one);
        return el(
          "td",
          { class: "text", title: value },
          other === undefined
            ? none("more than one function")
            : functionWay(calls.functions[other]),
        );
      },
    },
  });
}

export const OWN_FILES = "(own files)";
