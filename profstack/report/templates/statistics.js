// The clean steps as figures: what stands beside the median, and how the first steps differ.
function drawBenchmark(page) {
  const mark = page.facts.benchmark || {};
  const reasons = page.facts.columns_reason || {};
  const cards = el("div", { class: "cards", id: "benchmark-figures" });
  const interval = isNumber(mark.ci95_low_s) && isNumber(mark.ci95_high_s);
  const spread = isNumber(mark.iqr_s) && mark.median_s ? formatPercent(mark.iqr_s / mark.median_s) + " of the median" : null;
  const times = isNumber(mark.first_step_s) && mark.median_s ? formatFactor(mark.first_step_s / mark.median_s) + " × the median" : null;
  const busy = isNumber(mark.cores_busy) ? formatFactor(mark.cores_busy) + " cores busy on average" : null;
  append(cards, [
    card(["median ", term("clean", "clean"), " ", term("step", "step")], shown(mark.median_s, "s", "no clean step was measured"),
      interval ? [spanText(mark.ci95_low_s, mark.ci95_high_s), " ", term("interval", "95 % interval")] : "no interval: too few clean steps", "main"),
    card([term("iqr", "IQR"), ", ", term("clean", "clean"), " steps"], [shown(mark.iqr_s, "s", "fewer than 4 clean steps were measured")], [spread ? spread + ", " : "", "n = " + (mark.n ?? 0)]),
    card("first step" + (mark.first_step_layer ? ", watched by " + mark.first_step_layer : ""), shown(mark.first_step_s, "s", "nothing tells when the first step began or ended"), [times ? times + ", " : "", isNumber(mark.warmup_steps) ? [mark.warmup_steps + " ", term("warmup", "warm-up"), mark.warmup_steps === 1 ? " step" : " steps"] : null]),
    card(["mean ", term("cpu-time", "CPU time"), " per step"], shown(mark.cpu_mean_s, "s", mark.cpu_reason || "no clean step was measured"), busy),
    isNumber(mark.device_median_s) ? card("device time per step", formatSeconds(mark.device_median_s), "by events on the device") : null,
  ]);
  const warnings = (mark.warnings || []).map(asText);
  byId("benchmark").prepend(cards, warnings.length ? el("ul", { class: "warnings", id: "benchmark-warnings" }, warnings.map((text) => el("li", {}, withCommands(text)))) : "");
  const few = (least) => "fewer than " + least + " clean steps were measured";
  byId("benchmark-more").append(pairs([
    ["mode", mark.mode], ["clock", mark.clock],
    ["mean ± std", isNumber(mark.mean_s) ? formatSeconds(mark.mean_s) + " ± " + formatSeconds(mark.std_s) : none(few(1))],
    ["minimum", shown(mark.min_s, "s", few(1))], ["p90", shown(mark.p90_s, "s", few(10))], ["p99", shown(mark.p99_s, "s", few(100))],
    ["autocorrelation", shown(mark.autocorrelation, "count", few(10))],
    ["drift over the run", isNumber(mark.drift) ? (mark.drift > 0 ? "+" : "−") + (100 * Math.abs(mark.drift)).toFixed(1) + " %" : none(few(9))],
    ["device median", shown(mark.device_median_s, "s", reasons["steps.device_s"] || "there is no device with a clock of its own")],
    ...(page.bench.measured ? measuredFacts(mark) : []),
  ]));
}
