// What ran on the device under Nsight Systems, what it waited for, and which calls the host was in.

// The innermost range around a call: a module and a region lead to their rows.
function nsysRangeCell(value, record, column) {
  if (value === null) return el("td", { class: "text" }, none(whyEmpty(column)));
  const view = { module: "modules", region: "ranges" }[record.range_kind];
  const beside = record.range_kind && !view && record.range_kind !== value && !value.startsWith(record.range_kind) ? el("span", { class: "quiet" }, " " + record.range_kind) : null;
  return el("td", { class: "text", title: value }, view ? linkTo(view, value, value) : value, beside);
}

const nsysModuleOf = (record) => (record.range_kind === "module" ? record.range_name : null);

// A column in which all rows say the same is no news.
const nsysSame = (records, keys) => keys.filter((key) => new Set(records.map((record) => record[key])).size < 2);

// spec: as makeTable's, with `frame` (the part of the file it rests on) and `otherwise` (said where there is none)
function nsysTable(page, name, place, spec) {
  const table = page.tables[name];
  if (!table) { nsysLacking(page, spec.frame, place, spec.otherwise); return; }
  const records = asRecords(table);
  makeTable(byId(place), { table, view: "nsys", barColour: "var(--self)", moduleOf: records.some(nsysModuleOf) ? nsysModuleOf : null, ...spec, hidden: [...(spec.hidden || []), ...nsysSame(records, spec.unless || [])],
    keyOf: (record) => spec.key.map((key) => (record[key] === null ? "" : key === "stack" ? hash(record[key]) : record[key])).join(" "), cells: { range_name: nsysRangeCell, ...spec.cells } });
}

function drawNsysDevice(page) {
  nsysTable(page, "nsys_kernels", "nsys-kernel-table", { name: "kernels of nsys", frame: "work", otherwise: "No kernel ran in the capture.", sort: { key: "device_s", direction: -1 }, bars: ["device_s"], barColour: "var(--backward)",
    first: ["name", "device_s", "calls", "longest_s", "delay_s", "range_name", "stream", "device", "launched_by", "in_graph"], hidden: ["range_kind"], unless: ["device", "in_graph"], key: ["name", "device", "stream", "range_kind", "range_name", "launched_by"] });
  nsysTable(page, "nsys_copies", "nsys-copy-table", { name: "copies of nsys", frame: "work", otherwise: "Nothing was copied or filled in the capture.", sort: { key: "device_s", direction: -1 }, bars: ["device_s"], barColour: "var(--backward)",
    first: ["direction", "device_s", "bytes", "bytes_per_s", "calls", "from_memory", "to_memory", "range_name", "longest_s"], hidden: ["range_kind"], unless: ["device"], key: ["direction", "from_memory", "to_memory", "device", "range_kind", "range_name"],
    cells: { bytes_per_s: (value, record, column) => el("td", { class: "number" }, value === null ? none(whyEmpty(column)) : formatBytes(value) + "/s") } });
  nsysTable(page, "nsys_gaps", "nsys-gap-table", { name: "gaps of nsys", frame: "work", otherwise: "No gap between kernels was found.", sort: { key: "total_s", direction: -1 }, bars: ["total_s", "longest_s"], barColour: "var(--backward)",
    first: ["cause", "total_s", "count", "longest_s", "after", "before"], unless: ["device"], key: ["cause", "device"], plain: true,
    cells: { cause: (value) => el("td", { class: "text" }, term("gap", value)) } });
}

function drawNsysHost(page) {
  nsysTable(page, "nsys_api", "nsys-api-table", { name: "calls of nsys", frame: "calls", otherwise: "No call was traced.", sort: { key: "host_s", direction: -1 }, bars: ["host_s"],
    first: ["name", "host_s", "calls", "longest_s", "range_name", "library", "failed"], hidden: ["range_kind"], key: ["library", "name", "range_kind", "range_name"],
    cells: { failed: (value, record, column) => el("td", { class: "number" }, value ? el("span", { class: "bad-word" }, formatCount(value)) : shown(value, "count", whyEmpty(column))) } });
  nsysTable(page, "nsys_backtraces", "nsys-backtrace-table", { name: "stacks of nsys", frame: "callchains", otherwise: "No stack was recorded: nsys takes those of CUDA calls with --cudabacktrace=true, and samples the CPU with --sample=cpu.", sort: { key: "host_s", direction: -1 }, bars: ["host_s"],
    first: ["name", "host_s", "calls", "stack", "source"], key: ["source", "name", "stack"], cells: { stack: nsysStackCell } });
  nsysTable(page, "nsys_samples", "nsys-sample-table", { name: "samples of nsys", frame: "samples", otherwise: "The CPU was not sampled.", sort: { key: "self_samples", direction: -1 }, bars: ["self_share"],
    first: ["symbol", "self_share", "self_samples", "total_samples", "library"], key: ["symbol", "library"] });
  nsysTable(page, "nsys_steps", "nsys-step-table", { name: "steps of nsys", frame: "ranges", otherwise: "No range of the capture tells its steps.", sort: { key: "step", direction: 1 }, bars: ["wall_s"],
    unless: ["device"], key: ["step", "device"] });
}

const STACK_LINES = 4;

// The innermost frames; the others where they are asked for.
function nsysStackCell(value, record, column) {
  if (!value) return el("td", { class: "text" }, none(whyEmpty(column)));
  const frames = value.split("\n"), line = (frame) => el("div", {}, frame);
  return el("td", { class: "text wrapped frames" }, frames.slice(0, STACK_LINES).map(line),
    frames.length > STACK_LINES ? el("details", {}, el("summary", {}, plural(frames.length - STACK_LINES, "more frame")), frames.slice(STACK_LINES).map(line)) : null);
}

function drawNsysMemory(page) {
  const table = page.tables.nsys_memory;
  if (!table) { nsysLacking(page, "memory", "nsys-memory-table", "No memory of a device was taken or given back in the capture."); return; }
  const records = asRecords(table), devices = new Set(records.map((record) => record.device)).size, series = new Map();
  for (const record of records) {
    const name = record.kind + (devices > 1 ? " on " + record.device : "");
    if (!series.has(name)) series.set(name, []);
    series.get(name).push(record);
  }
  const lines = [...series].map(([name, points], at) => ({ name, points, colour: seriesColour(at), most: points.reduce((best, point) => (point.bytes > best.bytes ? point : best)) }));
  byId("nsys-memory-legend").append(el("ul", { class: "legend" }, lines.map(({ name, colour }) => el("li", {}, swatch(colour), name))));
  plot(byId("nsys-memory-chart"), (theme) => nsysMemoryChart(theme, lines), { label: "memory taken since the capture began", height: 270, name: "nsys-memory",
    says: [lines.map(({ name, points, most }, at) => [at ? "; " : "", name, ": at most ", formatBytes(most.bytes), " after ", formatSeconds(most.t_s), ", ", formatBytes(points[points.length - 1].bytes), " at last"]), ". What was taken before the capture began is not in it."],
    tip: (point) => [formatSeconds(point.customdata.t_s), [[point.customdata.kind, formatBytes(point.customdata.bytes)], ["of", point.customdata.device], ["this is", provenance({ layer: "nsys", kind: "counted" })]]] });
  makeTable(byId("nsys-memory-table"), { table, name: "memory events of nsys", sort: { key: "t_s", direction: 1 }, hidden: nsysSame(records, ["device"]) });
}

// What is held stays as it is until the next event: steps, no slopes.
function nsysMemoryChart(theme, lines) {
  const points = lines.flatMap((line) => line.points), times = points.map((point) => point.t_s), sizes = points.map((point) => point.bytes);
  const first = Math.min(...times), last = Math.max(...times, first + 1e-9), low = Math.min(0, ...sizes);
  const data = lines.map(({ name, points: own, colour }) => ({ type: "scatter", mode: own.length < 40 ? "lines+markers" : "lines", name: plotText(name), x: own.map((point) => point.t_s), y: own.map((point) => point.bytes), customdata: own, line: { color: theme.colour(colour), width: 1.7, shape: "hv" }, marker: { size: 4 } }));
  return { data, layout: { hovermode: "closest", margin: { l: 76 }, xaxis: { ...axis("s", first, last, { width: theme.width, title: "time of the capture" }), showgrid: false }, yaxis: tallAxis("bytes", low, Math.max(...sizes, 1) * 1.08, { width: 210 }) } };
}

// In the view of ranges: the way to what Nsight Systems saw, or how to get it.
function drawNsysHint(page) {
  const box = byId("nsys-hint");
  if (page.facts.nsys) {
    // A device's work belongs to a range by the call that began it.
    const { work, calls } = page.facts.nsys.missing, known = !work && !calls;
    box.append("What Nsight Systems saw of them", known ? ", with the device time of each" : "", ": ", linkTo("nsys", null, "Nsight Systems"), known ? "." : ". Of a device's work in them the capture tells nothing.");
    return;
  }
  box.append("Ranges with the device time of what was launched inside them come from Nsight Systems: ", command("profstack run --nsys " + (page.facts.script || "SCRIPT")), " runs the script once more under it; ", command("profstack import FILE --into DIR"), " takes a report in that is there.");
}
