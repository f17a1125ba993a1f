// The clean steps as figures: what stands beside the median, and how the first steps differ.
function drawBenchmark(page) {
  const mark = page.facts.benchmark || {};
  const reasons = page.facts.columns_reason || {};
  const clean = (value, unit, reason) => figure(value, unit, { ...CLEAN, reason });
  const cards = el("div", { class: "cards", id: "benchmark-figures" });
  const interval = isNumber(mark.ci95_low_s) && isNumber(mark.ci95_high_s);
  const spread = isNumber(mark.iqr_s) && mark.median_s ? formatPercent(mark.iqr_s / mark.median_s) + " of the median" : null;
  const times = isNumber(mark.first_step_s) && mark.median_s ? formatFactor(mark.first_step_s / mark.median_s) + " × the median" : null;
  const busy = isNumber(mark.cores_busy) ? formatFactor(mark.cores_busy) + " cores busy on average" : null;
  append(cards, [
    card(["median ", term("clean", "clean"), " ", term("step", "step")], clean(mark.median_s, "s", "no clean step was measured"),
      interval ? [spanText(mark.ci95_low_s, mark.ci95_high_s), " ", term("interval", "95 % interval")] : "no interval: too few clean steps", "main"),
    card([term("iqr", "IQR"), ", ", term("clean", "clean"), " steps"], clean(mark.iqr_s, "s", "fewer than 4 clean steps were measured"), [spread ? spread + ", " : "", "n = " + (mark.n ?? 0)]),
    card("first step" + (mark.first_step_layer ? ", watched by " + mark.first_step_layer : ""), figure(mark.first_step_s, "s", { ...RAW_CLOCK, reason: "nothing tells when the first step began or ended" }), [times ? times + ", " : "", isNumber(mark.warmup_steps) ? [mark.warmup_steps + " ", term("warmup", "warm-up"), mark.warmup_steps === 1 ? " step" : " steps"] : null]),
    card(["mean ", term("cpu-time", "CPU time"), " per step"], clean(mark.cpu_mean_s, "s", mark.cpu_reason || "no clean step was measured"), busy),
    isNumber(mark.device_median_s) ? card("device time per step", clean(mark.device_median_s, "s"), "by events on the device") : null,
  ]);
  const warnings = (mark.warnings || []).map(asText);
  byId("benchmark").prepend(cards, warnings.length ? el("ul", { class: "warnings", id: "benchmark-warnings" }, warnings.map((text) => el("li", {}, withCommands(text)))) : "");
  const few = (least) => "fewer than " + least + " clean steps were measured";
  byId("benchmark-more").append(pairs([
    ["mode", mark.mode], ["clock", mark.clock],
    ["mean ± std", isNumber(mark.mean_s) ? [clean(mark.mean_s, "s"), " ± ", clean(mark.std_s, "s", "one sample has none")] : none(few(1))],
    ["minimum", clean(mark.min_s, "s", few(1))], ["p90", clean(mark.p90_s, "s", few(10))], ["p99", clean(mark.p99_s, "s", few(100))],
    ["autocorrelation", clean(mark.autocorrelation, "count", few(10))],
    ["drift over the run", isNumber(mark.drift) ? el("span", { class: "figure", title: numberTitle(mark.drift, { unit: "share", ...CLEAN }) }, (mark.drift > 0 ? "+" : "−") + (100 * Math.abs(mark.drift)).toFixed(1) + " %") : none(few(9))],
    ["device median", clean(mark.device_median_s, "s", reasons["steps.device_s"] || "there is no device with a clock of its own")],
    ...(page.bench.measured ? measuredFacts(mark) : []),
  ]));
}
