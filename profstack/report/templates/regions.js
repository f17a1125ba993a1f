// Named ranges of the script's own, inside one another as they were entered; and its threads.
// What profstack's own clock timed is clean where the region was entered in a clean slice; what a
// profile alone saw is of the torch layer's slices.
const REGION_ORIGINS = {
  wall_s: { clean: CLEAN, raw: RAW_CLOCK, torch: RAW_TORCH },
  calls: { clean: OWN_COUNT, raw: OWN_COUNT, torch: TORCH_COUNT },
};
const REGION_FIRST = ["path", "wall_s", "operator_s", "device_s", "calls", "host_net_bytes", "flop", "source", "threads", "measured_in"];

function drawRegions(page) {
  const table = page.tables.regions;
  if (!table) { drop("regions"); return; }
  const records = asRecords(table).sort((a, b) => String(a.path).length - String(b.path).length);
  const known = new Map(), roots = [];
  for (const record of records) {
    const path = String(record.path);
    const parent = nearestParent(path, "/", known);
    const node = makeNode(record, parent, path + " " + record.source, path + " " + (record.source || ""));
    node.open = true;
    node.name = parent ? path.slice(parent.record.path.length + 1) : path;
    if (!known.has(path)) known.set(path, node);
    if (!parent) roots.push(node);
  }
  const most = longestOf(records, ["wall_s"]).wall_s;
  const columns = table.columns.map((column) => (REGION_ORIGINS[column.key] ? byRow(column, (record) => REGION_ORIGINS[column.key][record.timed_in]) : column));
  makeTree(byId("region-table"), {
    table: { ...table, columns }, hidden: ["timed_in"], roots, name: "regions", view: "ranges", keyOf: (record) => record.path, sort: { key: "wall_s", direction: -1 }, first: REGION_FIRST, levels: [["fold all", 0], ["unfold all", 99]],
    cell: (column, node, depth, toggle) => {
      const value = node.record[column.key];
      if (column.key === "path") return twigCell(node, depth, toggle, value, node.name);
      if (column.key === "wall_s" || column.key === "operator_s") return barCell(value, "s", value / most, "var(--self)", whyEmpty(column));
      if (column.key === "measured_in") return el("td", { class: "text wrapped narrow" }, shown(value, "text", whyEmpty(column)));
      return plainCell(column, value, whyEmpty(column));
    },
  });
}

function drawThreads(page) {
  const table = page.tables.threads;
  const told = page.facts.processes || {};
  if (!table && !told.reason) { drop("threads"); return; }
  if (!table) { byId("thread-table").append(el("p", { class: "quiet" }, "No CPU time of threads is known: " + told.reason + ".")); return; }
  const records = asRecords(table);
  const sentences = told.sentences || [];
  append(byId("thread-said"), sentences.map((sentence) => el("li", {}, sentence.charAt(0).toUpperCase() + sentence.slice(1) + ".")));
  makeTable(byId("thread-table"), { table, name: "threads", sort: { key: "share", direction: -1 }, bars: ["cpu_s", "share"], barColour: "var(--self)", plain: records.length <= 12,
    // Told of one thread alone, and in words above.
    hidden: sentences.length ? ["off_cpu_s", "no_core_s"] : [],
    first: ["kind", "cpu_s", "share", "name", "threads", "process", "off_cpu_s", "no_core_s", "layers", "note"],
    cells: {
      layers: (value) => el("td", { class: "text wrapped narrow" }, value ? value.split(", ").map((layer, at) => [at ? ", " : "", linkTo("method", layer, layer)]) : el("span", { class: "quiet" }, "none")),
      note: (value, record, one) => el("td", { class: "text wrapped" }, shown(value, "text", whyEmpty(one) || "there is nothing to add")),
    } });
}
