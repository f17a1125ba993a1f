// What was imported of Nsight Systems: the capture, its ranges, and modules beside the torch layer.
const NSYS_RAW = { layer: "nsys", kind: "raw" };
const NSYS_COUNT = { layer: "nsys", kind: "counted" };

function drawNsys(page) {
  const fact = page.facts.nsys;
  const steps = fact.steps ? [formatPlain(fact.steps), fact.steps === 1 ? " step" : " steps", isNumber(fact.first_step) ? " (" + fact.first_step + " to " + fact.last_step + ")" : ""] : null;
  append(byId("nsys-lead"), [
    "What ", term("nsys", "Nsight Systems"), " saw, from ", el("code", {}, fact.file), fact.version ? " of nsys " + fact.version : "", fact.schema ? " (export schema " + fact.schema + ")" : "", ": ",
    steps ? [steps, " of a capture of ", formatSeconds(fact.captured_s), ". Figures are ", term("per-step", "per step"), ", "] : ["the whole capture of ", formatSeconds(fact.captured_s), ", in which no range tells the steps. Figures are of all of it, "],
    "as they were seen with nsys on: nothing here is ", term("calibrated"), "."]);
  drawNsysCards(page, fact);
  append(byId("nsys-said"), [...nsysSentences(fact).map((words) => el("li", {}, words)),
    ...Object.values(fact.missing).map((why) => el("li", {}, "Not in the file: " + why.replace(/^no /, "") + "."))]);
}

function nsysSentences(fact) {
  return [
    fact.other_processes ? [plural(fact.other_processes, "other process is", "other processes are"), " in the file and left out: all figures are of process " + fact.process + "."] : null,
    fact.unlaunched ? [plural(fact.unlaunched, "piece of device work", "pieces of device work"), " without the launching call in the file: in no range."] : null,
    fact.graphs_whole ? [plural(fact.graphs_whole, "CUDA graph was", "CUDA graphs were"), " traced as a whole: their kernels are not told apart."] : null,
    ...fact.notes.map(([, text]) => text),
  ].filter(Boolean);
}

function drawNsysCards(page, fact) {
  const table = page.tables.nsys_steps, benchmark = page.facts.benchmark || {};
  // Ranges are the host's: they stand beside its own clean step.
  const clean = benchmark.clock === "device" ? benchmark.host_median_s : benchmark.median_s;
  if (!table) return;
  const records = asRecords(table), column = Object.fromEntries(table.columns.map((one) => [one.key, one]));
  const devices = new Set(records.map((record) => record.device)).size;
  const typical = (key) => medianOf(records.map((record) => record[key]).filter(isNumber));
  // A step has a row for each device: what is counted adds up over them.
  const whole = (key) => {
    const sums = new Map();
    records.forEach((record) => isNumber(record[key]) && sums.set(record.step, (sums.get(record.step) || 0) + record[key]));
    return sums.size ? medianOf([...sums.values()]) : null;
  };
  const wall = typical("wall_s"), idle = typical("idle_s"), copies = nsysSum(page, "nsys_copies", "bytes");
  append(byId("nsys-cards"), [
    card(["median ", term("step", "step"), " under nsys"], figure(wall, "s", NSYS_RAW), isNumber(clean) && isNumber(wall) ? formatFactor(wall / clean) + " × the clean median" : "of " + plural(new Set(records.map((record) => record.step)).size, "step")),
    !isNumber(whole("kernels")) ? null : card(["kernels per ", term("step", "step")], figure(whole("kernels"), "count", { ...NSYS_COUNT, reason: whyEmpty(column.kernels) }), isNumber(whole("device_s")) ? formatSeconds(whole("device_s")) + " of device time" : null),
    !isNumber(idle) ? null : card(devices > 1 ? "no kernel, on each of " + devices + " devices" : "no kernel on the device", figure(idle, "s", { ...NSYS_RAW, reason: whyEmpty(column.idle_s) }), isNumber(idle) && wall ? formatPercent(idle / wall) + " of the step" : null),
    isNumber(copies) ? card("copied or filled per step", figure(copies, "bytes", NSYS_COUNT), formatSeconds(nsysSum(page, "nsys_copies", "device_s")) + " of device time") : null].filter(Boolean));
}

function nsysSum(page, name, key) {
  const values = page.tables[name] ? asRecords(page.tables[name]).map((record) => record[key]).filter(isNumber) : [];
  return values.length ? values.reduce((sum, value) => sum + value, 0) : null;
}

function drawNsysModules(page) {
  const table = page.tables.nsys_modules, fact = page.facts.nsys, lead = byId("nsys-modules-lead");
  if (!table) {
    lead.append(!fact.steps ? "No range of the capture tells its steps, so that modules cannot be held against the torch layer's." : "The capture holds no range of a module: profstack emits them where its layer nvtx runs under nsys.");
    return;
  }
  const records = asRecords(table), compared = records.some((record) => isNumber(record.torch_calls));
  const apart = records.filter((record) => record.disagreement !== null).length;
  append(lead, compared
    ? ["Calls and forward times of the same modules by two observers, in steps of their own. ", apart ? el("b", {}, plural(apart, "module") + " of " + records.length + (apart === 1 ? " differs" : " differ")) : el("b", {}, "They agree in " + plural(records.length, "module")),
      ": calls by more than 1\u00a0%, host times, as if the steps of both had been equally long, by more than 30\u00a0% and 20\u00a0µs, device times by more than 10\u00a0% and 1\u00a0µs."]
    : ["Forward calls of modules. The torch layer recorded nothing to hold them against."]);
  makeTable(byId("nsys-module-table"), { table, name: "modules of nsys", view: "nsys", keyOf: (record) => record.path, bars: ["host_s", "device_s"], barColour: "var(--self)",
    first: ["path", "disagreement", "host_s", "torch_host_s", "host_ratio", "device_s", "torch_device_s", "device_ratio", "calls", "torch_calls"],
    cells: { path: nsysPathCell, disagreement: (value, record, column) => el("td", { class: "text wrapped apart" }, value === null ? none(whyEmpty(column)) : el("span", { class: "bad-word" }, value)) } });
}

const nsysPathCell = (value) => el("td", { class: "text path", title: value }, linkTo("modules", value, tailOf(value, 48)));

const NSYS_RANGE_FIRST = ["name", "wall_s", "self_s", "device_s", "elsewhere_s", "kernels", "calls", "api_s", "api_calls", "copies_s", "copied_bytes", "copies"];

function drawNsysRanges(page) {
  const table = page.tables.nsys_ranges;
  if (!table) { nsysLacking(page, "ranges", "nsys-range-tree", "The capture holds no NVTX range."); return; }
  const records = asRecords(table), longest = longestOf(records, ["wall_s", "device_s"]);
  const domains = new Set(records.map((record) => record.domain)), threads = new Set(records.map((record) => record.on_steps_thread));
  const tree = makeTree(byId("nsys-range-tree"), {
    table, roots: nsysForest(records), name: "ranges of nsys", view: "nsys", keyOf: (record) => "range-" + record.node, sort: { key: "wall_s", direction: -1 }, first: NSYS_RANGE_FIRST,
    hidden: ["node", "parent", "kind", "style", ...(domains.size > 1 ? [] : ["domain"]), ...(threads.size > 1 ? [] : ["on_steps_thread"])], moduleOf: (record) => (record.kind === "module" ? record.name : null),
    levels: [["fold all", 0], ["2 levels", 1], ["unfold all", 99]],
    cell: (column, node, depth, toggle) => {
      const value = node.record[column.key];
      if (column.key === "name") return twigCell(node, depth, toggle, node.record.name, nsysRangeName(node));
      if (column.key === "wall_s") return barCell(value, "s", value / longest.wall_s, "var(--self)", whyEmpty(column));
      if (column.key === "device_s") return barCell(value, "s", value / longest.device_s, "var(--backward)", whyEmpty(column));
      return plainCell(column, value, whyEmpty(column));
    },
  });
  tree.unfold(records.length > 60 ? 3 : 99);
}

function nsysForest(records) {
  const known = new Map(), roots = [];
  for (const record of records) known.set(record.node, makeNode(record, null, "range-" + record.node, record.name + " " + record.kind + " " + record.domain));
  for (const record of records) {
    const node = known.get(record.node), parent = known.get(record.parent);
    if (parent && parent !== node) { node.parent = parent; parent.children.push(node); } else roots.push(node);
  }
  return roots;
}

// A module's name is its path from the module around it on; of others the kind stands beside the name.
function nsysRangeName(node) {
  const { kind, name } = node.record;
  if (kind === "module") {
    let around = node.parent;
    while (around && around.record.kind !== "module") around = around.parent;
    const own = around && name.startsWith(around.record.name + ".") ? name.slice(around.record.name.length + 1) : name;
    return [linkTo("modules", name, own)];
  }
  return [kind === "region" ? linkTo("ranges", name, name) : name, name === kind || name.startsWith(kind + " ") ? null : el("span", { class: "quiet" }, " " + kind)];
}

// A part of the view without anything in it: it goes where the list of what the file lacks has told
// why, and else says so itself.
function nsysLacking(page, frame, place, otherwise) {
  const section = byId(place).closest("section");
  if (page.facts.nsys.missing[frame]) section.remove();
  else section.replaceChildren(section.querySelector("h3"), el("p", { class: "quiet" }, otherwise));
}
