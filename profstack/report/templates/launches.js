// What a step launches, and what the device waits for; on a machine without one, that it has none.
function drawLaunches(page) {
  const launches = page.tables.launches, gaps = page.tables.gaps;
  const device = (page.facts.environment || {}).device;
  const hasDevice = Boolean(device) && device !== "cpu";
  const watched = (page.facts.layers || []).some((layer) => layer.name === "torch" && layer.status === "recorded");
  if (!launches && !gaps && !watched) { drop("launches"); return; }
  const word = byId("launch-lead");
  if (!hasDevice) {
    word.append("No accelerator was in use: no kernel was launched, so there is neither a cost of ", term("launch", "launches"), " nor a ", term("gap", "gap"), " between kernels to explain.",
      ...(launches ? hostCalls(launches) : [ " What a step called on the host stands under Operators."]));
  } else {
    word.append("Operators and kernels that each step of the torch layer's slice ", term("launch", "launched"), ", and the time in which the device had nothing to do: a ", term("gap", "gap"), " and its cause.");
  }
  if (launches) drawLaunchTable(page, launches);
  if (gaps) drawGaps(gaps);
  else if (hasDevice) byId("gap-table").append(el("p", { class: "quiet" }, launches ? "No gap between kernels was found." : "The torch layer recorded no kernel, so nothing is known of gaps."));
}

function hostCalls(table) {
  const called = asRecords(table).map((record) => record.operators).filter(isNumber);
  return called.length ? [" On the host a step called ", el("b", {}, formatCount(medianOf(called)) + " operators"), " (median of " + called.length + (called.length === 1 ? " step)." : " steps).")] : [];
}

function drawLaunchTable(page, table) {
  const records = asRecords(table);
  const column = Object.fromEntries(table.columns.map((one) => [one.key, one]));
  const typical = (key) => medianOf(records.map((record) => record[key]).filter(isNumber));
  const columnFigure = (value, key) => figure(value, column[key].unit, { ...column[key], reason: whyEmpty(column[key]) });
  const busy = typical("device_busy_s"), idle = typical("device_idle_s");
  if (isNumber(typical("kernels"))) {
    append(byId("launch-cards"), [
      card("operators per step", columnFigure(typical("operators"), "operators"), "median of " + records.length + (records.length === 1 ? " step" : " steps")),
      card(["kernels per ", term("step", "step")], columnFigure(typical("kernels"), "kernels")),
      card(["host time per ", term("launch", "launch")], columnFigure(typical("launch_s"), "launch_s"), isNumber(typical("launches_total_s")) ? formatSeconds(typical("launches_total_s")) + " per step" : null),
      card("device idle", columnFigure(idle, "device_idle_s"), isNumber(idle) && isNumber(busy) && idle + busy > 0 ? formatPercent(idle / (idle + busy)) + " of the step" : null)]);
  }
  const place = el("div");
  byId("launch-table").append(el("details", {}, el("summary", {}, "step by step"), place));
  makeTable(place, { table, name: "launches", sort: { key: "step", direction: 1 }, bars: ["launches_total_s", "device_busy_s", "device_idle_s"], barColour: "var(--self)" });
}

function medianOf(values) {
  if (!values.length) return null;
  const sorted = values.slice().sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

function drawGaps(table) {
  const devices = new Set(asRecords(table).map((record) => record.device));
  const place = el("div");
  byId("gap-table").append(el("h3", {}, "Gaps by cause"), place);
  makeTable(place, { table, name: "gaps", sort: { key: "total_s", direction: -1 }, bars: ["total_s", "longest_s"], barColour: "var(--backward)",
    hidden: devices.size > 1 ? [] : ["device"], first: ["cause", "total_s", "count", "longest_s", "after", "before"], view: "ranges", keyOf: (record) => record.cause,
    cells: { cause: (value) => el("td", { class: "text" }, term("gap", value)), after: gapCell, before: gapCell } });
}

// What ran beside a gap: an operator and, where it is known, the module that called it.
function gapCell(value, record, column) {
  if (value === null) return el("td", { class: "text" }, none(whyEmpty(column)));
  const at = value.indexOf(" in ");
  const words = at < 0 ? linkTo("operators", value, value) : [linkTo("operators", value.slice(0, at), value.slice(0, at)), " in ", linkTo("modules", value.slice(at + 4), value.slice(at + 4))];
  return el("td", { class: "text", title: value }, words);
}
