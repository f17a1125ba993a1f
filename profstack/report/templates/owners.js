// Whose the bytes are: by kind at the start, the peak and the end of a step, and who holds the peak.
const OWNER_KINDS = ["parameters", "gradients", "optimizer state", "activations", "temporaries", "inputs", "buffers", "held by the script", "not attributed"];
const MOMENTS = [["start_bytes", "start of the step"], ["peak_bytes", "peak"], ["end_bytes", "end of the step"]];

function ownerColour(kind) {
  const at = OWNER_KINDS.indexOf(kind);
  if (kind === "not attributed") return "var(--residual)";
  return "var(--file-" + (at < 0 ? hash(String(kind)) % 8 : at) + ")";
}

const ownerRank = (kind) => (OWNER_KINDS.includes(kind) ? OWNER_KINDS.indexOf(kind) : OWNER_KINDS.length - 1.5);

function drawOwners(page) {
  if (!byId("memory")) return;
  drawMemoryOwners(byId("memory-owners"), page);
  drawPeakHolders(byId("peak-holders"), page);
}

function drawMemoryOwners(box, page) {
  const table = page.tables.memory_owners;
  if (!table) { lackingTable(box, page, "Whose the bytes are", "detail", "watched the memory of a step"); return; }
  const records = asRecords(table);
  const devices = [...new Set(records.map((record) => record.device))];
  box.append(el("h3", {}, "Whose the bytes are"), el("p", { class: "lead" }, "Bytes in live tensors of one observed ", term("step", "step"), " by ", term("memory-owner", "owner"), ", at its start, at the moment of its ", term("peak", "peak"), " and at its end.", ownedShare(page.facts.attribution)));
  for (const device of devices) {
    const rows = records.filter((record) => record.device === device).sort((a, b) => ownerRank(a.kind) - ownerRank(b.kind));
    if (devices.length > 1) box.append(el("h4", {}, shown(device, "text", "the device is not known")));
    box.append(memoryStack(rows, table));
  }
  const place = el("div");
  box.append(place);
  makeTable(place, { table, name: "owners of memory", sort: { key: "peak_bytes", direction: -1 }, bars: ["peak_bytes", "largest_bytes"], barColour: "var(--accumulate)", plain: true,
    hidden: devices.length > 1 ? [] : ["device"], first: ["kind", "peak_bytes", "start_bytes", "end_bytes", "largest_bytes"],
    cells: { kind: (value) => el("td", { class: "text" }, swatch(ownerColour(value)), value) } });
}

function ownedShare(sums) {
  if (!sums || !isNumber(sums.memory_attributed_share)) return null;
  const peak = isNumber(sums.memory_peak_bytes) ? [" of " + formatBytes(sums.memory_peak_bytes)] : [];
  return [" At the peak", peak, " ", el("b", {}, exactPercent(sums.memory_attributed_share)), " has an owner."];
}

// One bar per moment, all to one scale. What was not measured has no piece, and says so.
function memoryStack(rows, table) {
  const sums = MOMENTS.map(([key]) => rows.reduce((sum, row) => sum + Math.max(row[key] || 0, 0), 0));
  const most = Math.max(...sums) || 1;
  const reason = Object.fromEntries(table.columns.map((column) => [column.key, whyEmpty(column)]));
  return el("div", { class: "stacks" }, MOMENTS.map(([key, name], at) => {
    const bar = el("div", { class: "stack", role: "img", "aria-label": name + ": " + rows.filter((row) => row[key] > 0).map((row) => row.kind + " " + formatBytes(row[key])).join(", ") });
    for (const row of rows) {
      if (!(row[key] > 0)) continue;
      const piece = el("span", {}, row[key] / most > 0.1 ? row.kind : "");
      piece.style.width = (100 * row[key]) / most + "%";
      piece.style.background = ownerColour(row.kind);
      piece.addEventListener("mousemove", (event) => showTip(event, row.kind, [[name, formatBytes(row[key])], ["of all then", formatPercent(row[key] / sums[at])]]));
      piece.addEventListener("mouseleave", hideTip);
      bar.append(piece);
    }
    const known = rows.some((row) => row[key] !== null);
    return [el("div", { class: "stack-name" }, name), bar, el("div", { class: "stack-sum" }, known ? formatBytes(sums[at]) : none(reason[key]))];
  }));
}

function drawPeakHolders(box, page) {
  const table = page.tables.peak_holders;
  if (!table) { box.remove(); return; }
  const devices = new Set(asRecords(table).map((record) => record.device));
  const place = el("div");
  box.append(el("h3", {}, "Who holds the peak"), el("p", { class: "lead" }, "What was alive at the moment when the observed step held most, the largest first: to lower the ", term("peak", "peak"), ", begin at the top."), place);
  makeTable(place, { table, name: "holders of the peak", sort: { key: "bytes", direction: -1 }, bars: ["bytes"], barColour: "var(--accumulate)",
    hidden: devices.size > 1 ? [] : ["device"], first: ["kind", "module", "bytes", "share", "operator", "tensors", "backward"],
    cells: { kind: (value) => el("td", { class: "text" }, swatch(ownerColour(value)), value), module: wayCell("modules"), operator: wayCell("operators") } });
}

// A name that has a row in a view of its own, as the way to it.
const wayCell = (view) => (value, record, column) => el("td", { class: "text", title: value }, value === null ? none(whyEmpty(column)) : linkTo(view, value, value));
