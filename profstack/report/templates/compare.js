// Ways of running the same model side by side: time, speedup, equality, and what became of its operators.
const COMPILED_ONCE = { words: "raw: timed once, by the step clock; no layer was on" };
const PROFILER_COUNT = { words: "counted by torch.profiler, in calls of their own" };
const DYNAMO_COUNT = { words: "counted by torch.compile's own counters" };

function drawCompare(page) {
  const variants = page.facts.benchmark.compare || [];
  if (!variants.length) { drop("compare"); return; }
  const measured = variants.filter((one) => isNumber(one.median_s));
  const bar = (one) => ({ value: one.median_s, low: one.ci95_low_s, high: one.ci95_high_s, colour: seriesColour(variants.indexOf(one)), points: (one.between_process || []).filter(isNumber), short: formatSeconds(one.median_s), text: formatSeconds(one.median_s) + fasterWords(one),
    tip: [one.variant, [["median", formatSeconds(one.median_s)], spanText(one.ci95_low_s, one.ci95_high_s) ? ["95 %", spanText(one.ci95_low_s, one.ci95_high_s)] : null, ["n", formatPlain(one.n)], isNumber(one.compile_s) ? ["compile", formatSeconds(one.compile_s)] : null, ["measured", "clean, no layer armed"]]] });
  const chart = el("div", { class: "chart" });
  byId("compare-bars").append(chart);
  barChart(chart, measured.map((one) => ({ name: one.variant, bars: [bar(one)] })), { label: "time of each variant", name: "compare", unseen: true, says: measured.map((one, at) => (at ? "; " : "") + one.variant + " " + formatSeconds(one.median_s) + fasterWords(one)).join("") + "." });
  // What has no bar, and what is to be known of a bar, in words.
  const words = variants.map((one) => [one.variant, [isNumber(one.median_s) ? null : one.status + (one.reason ? ": " + one.reason : ""), isNumber(one.median_s) && one.reason ? one.reason : null, one.note ? withCommands(one.note) : null].filter(Boolean)]).filter(([, said]) => said.length);
  if (words.length) byId("compare-bars").append(el("ul", { class: "names" }, words.map(([variant, said]) => el("li", {}, el("b", {}, variant), ": ", said.map((part, at) => [at ? "; " : "", part])))));
  const dots = variants.some((one) => (one.between_process || []).length);
  byId("compare-bars").append(el("p", { class: "quiet" }, "Whiskers are the 95 % interval of the median within this process", dots ? ["; dots are the medians of ", term("between-process", "fresh processes"), "."] : ["; between ", term("between-process", "fresh processes"), " the spread is wider."]));
  const tolerances = [...new Set(variants.map((one) => one.tolerance).filter((one) => one !== null && one !== undefined))];
  if (tolerances.length) byId("compare-bars").append(el("p", { class: "quiet" }, "Results are equal when they are eager's within " + tolerances.join("; or ") + "."));
  drawCompareTable(byId("compare-table"), variants);
  drawFused(byId("compare-fused"), variants);
}

const fasterWords = (one) => (isNumber(one.speedup) && one.variant !== "eager" ? ", " + formatFactor(one.speedup) + " × as fast" : "");

// Operators and kernels stand beside eager's: fewer of them is what fusion looks like.
function countCell(key, eager) {
  return (value, record) => {
    const change = isNumber(value) && record.variant !== "eager" && eager && isNumber(eager[key]) ? value - eager[key] : null;
    return el("td", { class: "number" }, shown(value, "plain", record.reason || "they were not counted"), change ? el("span", { class: "quiet" }, " (" + (change > 0 ? "+" : "−") + Math.abs(change) + ")") : null);
  };
}

const unlessEager = (record, text) => (record.variant === "eager" ? "the others stand beside it" : record.reason || text);

const smallNumber = (value) => (value === 0 ? "0" : value < 1e-3 ? value.toExponential(1).replace("e-", "e−") : value.toPrecision(2));

function drawCompareTable(box, variants) {
  const eager = variants.find((one) => one.variant === "eager");
  const number = (unit, text) => (value, record) => el("td", { class: "number" }, shown(value, unit, unlessEager(record, text)));
  const span = (low, high, format) => (isNumber(low) && isNumber(high) ? el("span", { class: "quiet" }, " " + format(low) + " – " + format(high)) : null);
  const columns = [
    ownColumn("variant", "variant", "text", "way of running the model"), ownColumn("status", "status", "text", "what became of it"), ownColumn("median_s", "median", "s", "median time of a call with its 95 % interval", null, CLEAN),
    ownColumn("speedup", "speedup", "count", "eager's time over its time, with the 95 % interval", null, CLEAN), ownColumn("compile_s", "compile", "s", "time to make it ready, its first call included; no part of the median", null, COMPILED_ONCE),
    ownColumn("equal", "results", "text", "whether they are eager's within the tolerance"), ownColumn("max_difference", "difference", "plain", "largest absolute difference of a result", null, FACT),
    ownColumn("operators", "operators", "plain", "operators called by one call; beside it the change from eager", null, PROFILER_COUNT), ownColumn("kernels", "kernels", "plain", "kernels run by one call; beside it the change from eager", "no kernel of a device was seen", PROFILER_COUNT),
    ownColumn("graphs", "graphs", "plain", "graphs compiled, and the breaks between them", null, DYNAMO_COUNT), ownColumn("n", "n", "plain", "samples", null, OWN_COUNT)];
  // The reason is wanted by the cells though it has no column of its own.
  const reasons = new Map(variants.map((one) => [one.variant, one.reason]));
  const withReason = (cell) => (value, record, column) => cell(value, { ...record, reason: reasons.get(record.variant) }, column);
  const cells = {
    status: (value) => el("td", {}, chip(value, value === "measured" ? "complete" : value)),
    median_s: (value, record) => { const one = variants.find((other) => other.variant === record.variant) || {}; return el("td", { class: "number" }, shown(value, "s", one.reason), span(one.ci95_low_s, one.ci95_high_s, formatSeconds)); },
    speedup: (value, record) => { const one = variants.find((other) => other.variant === record.variant) || {}; return el("td", { class: "number" }, isNumber(value) ? formatFactor(value) + " ×" : none(one.reason), span(one.speedup_low, one.speedup_high, formatFactor)); },
    compile_s: withReason(number("s", "there is nothing to compile")),
    equal: withReason((value, record) => el("td", {}, value === null ? none(unlessEager(record, "they were not compared")) : chip(value ? "equal" : "differ", value ? "complete" : "failed"))),
    max_difference: withReason((value, record) => el("td", { class: "number" }, isNumber(value) ? smallNumber(value) : none(unlessEager(record, "they were not compared")))),
    operators: withReason(countCell("operators", eager)), kernels: withReason(countCell("kernels", eager)),
    graphs: withReason((value, record) => { const one = variants.find((other) => other.variant === record.variant) || {}; return el("td", { class: "number" }, shown(value, "plain", unlessEager(record, "nothing was compiled")), isNumber(one.breaks) ? el("span", { class: "quiet" }, ", " + one.breaks + (one.breaks === 1 ? " break" : " breaks")) : null); }),
    n: withReason(number("plain", "it was not measured")),
  };
  recordTable(box, variants, columns, { name: "variants", cells });
}

function drawFused(box, variants) {
  const fused = variants.filter((one) => (one.fused_names || []).length);
  if (!fused.length) { box.remove(); return; }
  append(box, fused.map((one) => el("details", {}, el("summary", {}, one.fused_names.length + (one.fused_names.length === 1 ? " fused kernel of " : " fused kernels of ") + one.variant), el("ul", { class: "names" }, one.fused_names.map((name) => el("li", {}, el("code", {}, name)))))));
}
