// Floating-point operations: the counters side by side, and what each of them leaves out.
const FLOPS_ORIGIN = { layer: "flops", kind: "counted" };
// The third counter reads the shapes that the torch layer's slices recorded.
const counterOrigin = (name) => (String(name).startsWith("recorded_shapes") ? { words: "counted by recorded_shapes, from the shapes that the torch layer saw" } : FLOPS_ORIGIN);

function drawFlops(page) {
  const all = page.counters || [];
  const counters = all.filter((one) => !one.note);
  if (!all.length) { drop("flops"); return; }
  if (!counters.length) { byId("flop-lead").append("No counter has figures. ", ...all.flatMap((one) => [el("b", {}, one.counter), ": ", one.note, ". "])); return; }
  const source = (page.facts.columns_source || {})["modules.forward_flop"] || "";
  const record = counters.find((one) => source.startsWith(one.counter)) || counters[0];
  byId("flop-lead").append("Operations of one ", term("step", "step"), "; a multiply-add is two ", term("flop", "FLOP"), ". ",
    el("b", {}, record.counter), " is the record: its figures stand at the modules", counters.length > 1 ? "; the others are there to check it." : ".", " By module they are drawn under ", linkTo("modules", null, "Modules"), " (area: FLOP).");
  drawRates(byId("flop-cards"), record, page.facts.benchmark.median_s);
  drawCausal(byId("flop-lead"), record);
  drawCounters(byId("flop-counters"), all, record, page);
  drawUncounted(byId("flop-uncounted"), counters, page);
}

const bothWays = (one) => (isNumber(one.forward_flop) ? one.forward_flop + (one.backward_flop || 0) : null);

function drawRates(box, record, median) {
  const all = bothWays(record);
  const rate = isNumber(all) && median ? all / median : null;
  const counted = counterOrigin(record.counter);
  box.append(card("forward", [figure(record.forward_flop, "flop", { ...counted, reason: "nothing was counted" }), " FLOP"], isNumber(record.forward_mac) ? [figure(record.forward_mac, "mac", counted), " MAC"] : null),
    card("backward", [figure(record.backward_flop, "flop", { ...counted, reason: "no backward pass was counted" }), isNumber(record.backward_flop) ? " FLOP" : ""], isNumber(record.backward_flop) && record.forward_flop ? formatFactor(record.backward_flop / record.forward_flop) + " × forward" : null),
    card(["rate in a ", term("clean", "clean"), " step"], [figure(rate, "rate", { kind: "rate", source: record.counter, over: "clean", reason: "there is no clean step time" }), isNumber(rate) ? " FLOP/s" : ""], "counted operations over the whole step", "main"));
}

// Both totals where attention was called as causal: dense, and what the mask leaves.
function drawCausal(box, record) {
  if (!isNumber(record.causal_forward_flop)) return;
  const backward = isNumber(record.causal_backward_flop) ? [" and ", el("b", {}, formatCount(record.causal_backward_flop)), " backward"] : [];
  box.append(" Attention that is called as causal counts dense, as by formula; counted as its mask leaves it, the step has ",
    el("b", {}, formatCount(record.causal_forward_flop)), " FLOP forward", ...backward, ". Kernels differ in how much of the rest they skip.");
}

function drawCounters(box, counters, record, page) {
  const lacking = (one) => (one.uncounted || []).map((row) => row.time_share).filter(isNumber).reduce((sum, share) => sum + share, 0);
  const why = (key, otherwise) => (page.facts.columns_reason || {})["flops." + key] || otherwise;
  const counted = (key, label, unit, meaning, reason) => byRow(ownColumn(key, label, unit, meaning, reason), (row) => counterOrigin(row.counter));
  const columns = [ownColumn("counter", "counter", "text", "what counts"),
    counted("forward_flop", "forward FLOP", "flop", "operations in forward, per step", why("forward_flop", "it counted nothing in forward")),
    counted("backward_flop", "backward FLOP", "flop", "operations in backward, per step", why("backward_flop", "it counted nothing in backward")),
    counted("causal_forward_flop", "forward, masked", "flop", "the same with attention called as causal counted as its mask leaves it", why("causal_forward_flop", "it does not tell which attention is causal")),
    counted("causal_backward_flop", "backward, masked", "flop", "the same of backward", why("causal_backward_flop", "it does not tell which attention is causal")),
    counted("forward_mac", "forward MAC", "mac", "multiply-adds in forward, per step", why("forward_mac", "it has formulas for more than multiply-adds")),
    counted("left_out", "without a formula", "count", "operators that ran and that it has no formula for", "it does not tell what it leaves out"),
    ownColumn("left_share", "their share of time", "share", "time of those operators, with what they call, over the step's, as the torch layer saw it", "it does not tell what it leaves out", RAW_TORCH),
    ownColumn("difference", "against the record", "text", "by how much it differs from the record, in which operators, and why", "it is the record, or has no figures"),
    ownColumn("note", "why not", "text", "why a counter has no figures", "it has figures")];
  const rows = counters.map((one) => [one.counter + (one === record ? " (the record)" : ""), one.forward_flop, one.backward_flop, one.causal_forward_flop, one.causal_backward_flop, one.forward_mac, one.uncounted ? one.uncounted.length : null, one.uncounted ? lacking(one) : null, one.difference, one.note]);
  const seldom = ["causal_forward_flop", "causal_backward_flop", "note"];
  // In what counters differ is told in sentences below: a cell would be a column of single words.
  const hidden = ["difference", ...seldom.filter((key) => counters.every((one) => one[key] === null || one[key] === undefined))];
  const wrapped = (reason) => (value) => el("td", { class: "text wrapped" }, value || none(reason));
  makeTable(box, { table: { columns, rows, left_out: null }, name: "counters", plain: true, hidden,
    cells: { note: wrapped("it has figures") } });
  const different = counters.filter((one) => one.difference);
  if (different.length) box.append(el("ul", { class: "said", id: "flop-differences" }, different.map((one) => el("li", {}, el("b", {}, one.counter), " against the record: ", one.difference))));
}

// One row per operator without a formula, one column per counter.
function drawUncounted(box, counters, page) {
  const operators = new Map();
  for (const one of counters) {
    for (const row of one.uncounted || []) {
      const known = operators.get(row.operator) || { operator: row.operator, time_share: null };
      if (isNumber(row.time_share)) known.time_share = row.time_share;
      known[one.counter] = row.calls;
      known.why = known.why || row.why || null;
      operators.set(row.operator, known);
    }
  }
  if (!operators.size) { box.append(el("p", { class: "quiet" }, "No operator that ran is without a formula.")); return; }
  const keys = ["operator", "time_share", ...counters.map((one) => one.counter), "why"];
  const columns = [ownColumn("operator", "operator or function", "text", "what ran without being counted"),
    ownColumn("time_share", "share of the step", "share", "its time, with what it calls, over the step's", "the torch layer saw no operator of this name", RAW_TORCH),
    ...counters.map((one) => ownColumn(one.counter, "calls, " + one.counter, "count", "calls per step that this counter left out", "it counts this one, or did not meet it", counterOrigin(one.counter))),
    ownColumn("why", "known for", "text", "what is known of the tool", "there is nothing known of it")];
  const rows = [...operators.values()].map((record) => keys.map((key) => (record[key] === undefined ? null : record[key])));
  // Counters name functions of Python too, which no layer has rows for.
  const known = new Set(page.tables.operators_by_name ? asRecords(page.tables.operators_by_name).map((record) => record.name) : []);
  box.append(el("h3", {}, "Left out: no formula"));
  const table = el("div");
  box.append(table);
  makeTable(table, { table: { columns, rows, left_out: null }, name: "uncounted operators", view: "flops", keyOf: (record) => record.operator, sort: { key: "time_share", direction: -1 }, bars: ["time_share"], barColour: "var(--self)",
    cells: { operator: (value) => el("td", { class: "text", title: value }, known.has(value) ? linkTo("operators", value, value) : value) } });
}
