// The call tree of the Python functions, as an icicle or a sunburst.
//
// A profile knows pairs of caller and callee, not paths. A function with several callers is drawn
// under each of them, its own callees scaled by the share of its time that this caller accounts
// for. Functions that call each other in a circle are one frame, a cycle: its members lie in it
// side by side, each with its own time and its calls out of the cycle.
const MOST_NODES = 6000;

function indexCalls(tree) {
  const callees = tree.functions.map(() => []);
  const cycleOf = tree.functions.map(() => -1);
  tree.cycles.forEach((members, at) => { for (const member of members) cycleOf[member] = at; });
  const own = tree.functions.map((record) => record[4] || 0);
  for (const [caller, callee, calls, seconds] of tree.edges) {
    if (caller === callee) continue;
    callees[caller].push({ callee, calls, seconds });
    if (cycleOf[caller] < 0 || cycleOf[caller] !== cycleOf[callee]) own[caller] += seconds;
  }
  const sums = tree.cycles.map((members) => members.reduce((sum, member) => sum + own[member], 0));
  return { functions: tree.functions, roots: tree.roots, cycles: tree.cycles, callees, cycleOf, own, sums };
}

const functionName = (record) => record[2];
const functionPlace = (record) => (record[0] === "~" ? "built-in" : shortPath(record[0]) + ":" + record[1]);
const functionLabel = (record) => record[2] + "  " + functionPlace(record);

// What a caller's parts are drawn as: functions, and all entries into one cycle as that cycle.
function entered(calls, parts, parent) {
  const nodes = new Map();
  for (const part of parts) {
    const cycle = calls.cycleOf[part.callee];
    const key = cycle < 0 ? "f" + part.callee : "c" + cycle;
    const node = nodes.get(key) || (cycle < 0 ? { kind: "function", index: part.callee } : { kind: "cycle", cycle });
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
    children = entered(calls, calls.roots.map(([callee, seconds]) => ({ callee, calls: calls.functions[callee][3], seconds })), node);
  } else if (node.kind === "cycle") {
    const share = calls.sums[node.cycle] > 0 ? Math.min(node.value / calls.sums[node.cycle], 1) : 0;
    children = calls.cycles[node.cycle].map((index) => ({ kind: "member", index, parent: node, value: calls.own[index] * share, calls: calls.functions[index][3] * share }));
  } else {
    const cycle = calls.cycleOf[node.index];
    const total = node.kind === "member" ? calls.own[node.index] : calls.functions[node.index][5];
    const share = total > 0 ? Math.min(node.value / total, 1) : 0;
    const outside = calls.callees[node.index].filter((part) => cycle < 0 || calls.cycleOf[part.callee] !== cycle);
    children = entered(calls, outside.map((part) => ({ callee: part.callee, calls: part.calls * share, seconds: part.seconds * share })), node);
  }
  children = children.filter((child) => child.value > 0).sort((a, b) => b.value - a.value);
  const sum = children.reduce((all, child) => all + child.value, 0);
  if (sum > node.value) for (const child of children) child.value *= node.value / sum;
  return children;
}

// All nodes to draw under `root`, breadth first, with start and length as shares of the root.
function layOut(calls, root, depth, cutoff) {
  root.start = 0; root.share = 1; root.level = 0;
  const nodes = [root];
  for (let at = 0; at < nodes.length && nodes.length < MOST_NODES; at += 1) {
    const node = nodes[at];
    node.children = [];
    if (node.level >= depth) continue;
    let start = node.start;
    for (const child of childrenOf(calls, node)) {
      child.share = root.value > 0 ? child.value / root.value : 0;
      child.start = start;
      child.level = node.level + 1;
      start += child.share;
      if (child.share >= cutoff) { nodes.push(child); node.children.push(child); }
    }
  }
  return nodes;
}

function fileColour(record) {
  return record[0] === "~" ? "var(--builtin)" : "var(--file-" + (hash(record[0]) % 8) + ")";
}

const callState = { phase: "step", kind: "icicle", depth: 12, cutoff: 0.005, node: null };
let calls = null;

function wholeNode() {
  return { kind: "all", value: calls.roots.reduce((sum, [, seconds]) => sum + seconds, 0), calls: 1, parent: null };
}

// A function of a cycle cannot be taken out of it: the cycle is shown in its place.
function functionNode(index) {
  const cycle = calls.cycleOf[index];
  if (cycle >= 0) return { kind: "cycle", cycle, value: calls.sums[cycle], calls: calls.functions[index][3], parent: null };
  return { kind: "function", index, value: calls.functions[index][5], calls: calls.functions[index][3], parent: null };
}

const nodeRecord = (node) => (node.index === undefined ? null : calls.functions[node.index]);

function cycleName(cycle) {
  const members = calls.cycles[cycle];
  const first = members.reduce((a, b) => ((calls.functions[b][3] || 0) > (calls.functions[a][3] || 0) ? b : a));
  return "⟲ " + functionName(calls.functions[first]) + " and " + (members.length - 1) + " more";
}

function nodeName(node) {
  if (node.kind === "all") return "all functions";
  return node.kind === "cycle" ? cycleName(node.cycle) : functionName(calls.functions[node.index]);
}

function drawCallTree(page) {
  const phases = Object.keys(page.call_trees);
  const box = byId("call-chart");
  if (!phases.length) { byId("call-tree").remove(); return () => {}; }
  if (!D3) { noCharts(box); return () => {}; }
  const redraw = drawAtWidth(box, (width) => paintCalls(width));
  const choose = (phase) => { callState.phase = phase; calls = indexCalls(page.call_trees[phase]); callState.node = wholeNode(); fillNames(); redraw(); };
  const names = el("datalist", { id: "function-names" });
  const root = el("input", { type: "search", list: "function-names", placeholder: "all functions", "aria-label": "root function", autocomplete: "off", spellcheck: "false" });
  const labels = new Map();

  function fillNames() {
    labels.clear();
    root.value = "";
    calls.functions.forEach((record, index) => { if (!labels.has(functionLabel(record))) labels.set(functionLabel(record), index); });
    names.replaceChildren(...[...labels.keys()].slice(0, 400).map((label) => el("option", { value: label })));
  }
  root.addEventListener("change", () => {
    const index = labels.get(root.value);
    if (root.value === "") callState.node = wholeNode();
    else if (index !== undefined) callState.node = functionNode(index);
    else return;
    redraw();
  });
  const depth = el("input", { type: "range", id: "call-depth", min: 1, max: 40, value: callState.depth, "aria-label": "depth" });
  const depthText = el("output", {}, callState.depth);
  depth.addEventListener("input", () => { callState.depth = Number(depth.value); depthText.textContent = depth.value; redraw(); });
  append(byId("call-tools"), [
    choice("drawing", [["icicle", "icicle"], ["sunburst", "sunburst"]], callState.kind, (kind) => { callState.kind = kind; redraw(); }),
    phases.length > 1 ? choice("phase", phases.map((phase) => [phase, phase === "step" ? "steps" : "start-up"]), phases[0], choose) : null,
    el("label", { class: "field" }, el("span", {}, "root"), root, names),
    el("label", { class: "field" }, el("span", {}, "depth"), depth, depthText),
    select("cutoff", [["0", "none"], ["0.001", "0.1 %"], ["0.005", "0.5 %"], ["0.01", "1 %"], ["0.02", "2 %"], ["0.05", "5 %"]], String(callState.cutoff), (value) => { callState.cutoff = Number(value); redraw(); }),
  ]);
  calls = indexCalls(page.call_trees[phases[0]]);
  choose(phases[0]);
  if (page.call_trees[phases[0]].left_out) byId("call-note").append(" " + page.call_trees[phases[0]].left_out);
  return (record) => {
    if (record.phase !== callState.phase && page.call_trees[record.phase]) choose(record.phase);
    const index = calls.functions.findIndex((one) => one[0] === record.file && one[1] === record.line && one[2] === record.name);
    if (index < 0) return;
    callState.node = functionNode(index);
    redraw();
    byId("call-tree").scrollIntoView({ block: "start" });
  };
}

function zoomTo(node) {
  callState.node = node;
  paintCalls(Math.max(byId("call-chart").clientWidth, 240));
}

function paintCalls(width) {
  const root = callState.node;
  const nodes = layOut(calls, root, callState.depth, callState.cutoff);
  byId("call-chart").replaceChildren(callState.kind === "icicle" ? icicle(width, nodes) : sunburst(width, nodes));
  byId("call-path").replaceChildren(...breadcrumb(root));
  const most = nodes.length >= MOST_NODES ? ", no more are drawn: raise the cutoff" : "";
  byId("call-count").textContent = nodes.length + " frames" + most;
  describe(root, root);
}

function breadcrumb(root) {
  const way = [];
  for (let node = root; node; node = node.parent) way.unshift(node);
  const items = way.map((node) => node === root ? el("b", {}, nodeName(node)) : el("button", { type: "button", onclick: () => zoomTo(node) }, nodeName(node)));
  if (way[0].kind !== "all") items.unshift(el("button", { type: "button", onclick: () => zoomTo(wholeNode()) }, "all functions"));
  return items.flatMap((item, at) => (at ? [el("span", { class: "quiet" }, " › "), item] : [item]));
}

const NODE_WORDS = {
  all: "all that the profile saw, per step",
  cycle: "functions that call each other in a circle; who lies inside whom is not known",
  member: "in a cycle: its own time and its calls out of the cycle",
};

function describe(node, root) {
  const record = nodeRecord(node);
  const rows = [
    ["here", [formatSeconds(node.value), el("span", { class: "quiet" }, " " + formatPercent(node.value / root.value) + " of the root")]],
    record ? ["calls here", formatCount(node.calls)] : null,
    record ? ["in all", formatSeconds(record[5]) + " in " + formatCount(record[3]) + " calls"] : null,
    record ? ["without callees", formatSeconds(record[4])] : null,
    node.kind === "cycle" ? ["members", calls.cycles[node.cycle].slice(0, 12).map((index) => functionName(calls.functions[index])).join(", ") + (calls.cycles[node.cycle].length > 12 ? ", …" : "")] : null,
  ];
  append((byId("call-detail").replaceChildren(), byId("call-detail")), [
    el("h4", {}, nodeName(node)),
    record ? el("p", { class: "quiet place", title: record[0] }, functionPlace(record)) : null,
    NODE_WORDS[node.kind] ? el("p", { class: "quiet" }, NODE_WORDS[node.kind]) : null,
    pairs(rows.filter(Boolean))]);
}

// What both drawings share: details on hover and focus, zoom on click, and moving by the keys.
function makeFrame(element, node, nodes) {
  element.setAttribute("class", "frame");
  element.setAttribute("tabindex", node.level === 0 ? "0" : "-1");
  element.setAttribute("role", "button");
  element.setAttribute("aria-label", nodeName(node) + ", " + formatSeconds(node.value));
  element.style.setProperty("fill", node.kind === "all" ? "var(--lane)" : node.kind === "cycle" ? "var(--cycle)" : fileColour(calls.functions[node.index]));
  node.element = element;
  const root = nodes[0];
  const open = () => { if (node === root) { if (root.parent) zoomTo(root.parent); } else zoomTo(node); };
  element.addEventListener("mouseenter", () => describe(node, root));
  element.addEventListener("focus", () => describe(node, root));
  element.addEventListener("mouseleave", () => describe(root, root));
  element.addEventListener("click", open);
  element.addEventListener("keydown", (event) => {
    const beside = node === root ? [] : node.parent.children || [];
    const at = beside.indexOf(node);
    const ways = { ArrowDown: (node.children || [])[0], ArrowUp: node === root ? null : node.parent, ArrowRight: beside[at + 1], ArrowLeft: beside[at - 1] };
    if (event.key in ways) { event.preventDefault(); if (ways[event.key] && ways[event.key].element) ways[event.key].element.focus(); }
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(); }
    if (event.key === "Backspace" && root.parent) { event.preventDefault(); zoomTo(root.parent); }
  });
  return element;
}

function icicle(width, nodes) {
  const row = 22;
  const levels = Math.max(...nodes.map((node) => node.level)) + 1;
  const svg = canvas(width, levels * row, "icicle of the call tree");
  svg.setAttribute("role", "group");
  const x = D3.scale.linear().range([0, width]);
  for (const node of nodes) {
    const left = x(node.start), length = Math.max(x(node.share) - 1, 0.5);
    svg.append(makeFrame(shape("rect", { x: left, y: node.level * row, width: length, height: row - 1, rx: 2 }), node, nodes));
    const room = Math.floor((length - 10) / 6.6);
    if (room >= 4) {
      const name = nodeName(node);
      const full = name + "  " + formatSeconds(node.value);
      const text = full.length <= room ? full : name.length <= room ? name : name.slice(0, room - 1) + "…";
      svg.append(textShape(text, { x: left + 6, y: node.level * row + 15 }, "frame-name"));
    }
  }
  return svg;
}

function sunburst(width, nodes) {
  const size = Math.min(width, 620);
  const levels = Math.max(...nodes.map((node) => node.level), 1);
  const svg = canvas(size, size, "sunburst of the call tree");
  svg.setAttribute("role", "group");
  svg.classList.add("sunburst");
  const middle = Math.max(size * 0.11, 42);
  const ring = (size / 2 - middle) / levels;
  const angle = D3.scale.linear().range([0, 2 * Math.PI]);
  const arc = D3.svg.arc()
    .startAngle((node) => angle(node.start)).endAngle((node) => angle(Math.min(node.start + node.share, 1)))
    .innerRadius((node) => (node.level ? middle + (node.level - 1) * ring : 0))
    .outerRadius((node) => middle + node.level * ring - 0.5);
  const place = shape("g", { transform: `translate(${size / 2},${size / 2})` });
  for (const node of nodes) place.append(makeFrame(shape("path", { d: arc(node) }), node, nodes));
  const name = nodeName(nodes[0]);
  place.append(textShape(name.length > 14 ? name.slice(0, 13) + "…" : name, { y: -2, "text-anchor": "middle" }, "frame-name"));
  place.append(textShape(formatSeconds(nodes[0].value), { y: 14, "text-anchor": "middle" }, "frame-name"));
  svg.append(place);
  return svg;
}
