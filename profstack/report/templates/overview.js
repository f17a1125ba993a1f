// What was run and on what, the clean benchmark, and what a clean step consists of.
function drawHeader(facts) {
  const run = facts.run || {};
  byId("script").textContent = facts.script || NONE;
  const status = byId("status");
  const ended = run.signal ? "signal " + run.signal : run.exit_code !== null && run.exit_code !== undefined ? "exit code " + run.exit_code : run.finished_at ? "in a session" : "still running";
  status.append(chip(facts.status, facts.status), el("span", {}, ended),
    isNumber(run.duration_s) ? el("span", {}, formatSeconds(run.duration_s)) : "",
    el("span", {}, (facts.step && facts.step.count) || 0, " ", term("step", "steps")),
    run.stopped_by ? el("span", {}, "stopped by " + run.stopped_by) : "");
}

const CHIP_KINDS = { complete: "good", recorded: "good", emitted: "good", partial: "fair", empty: "fair", skipped: "fair", failed: "bad", unavailable: "fair" };
const chip = (text, status) => el("span", { class: "chip " + (CHIP_KINDS[status] || "fair") }, text || NONE);

function card(name, value, detail, className) {
  return el("div", { class: "card " + (className || "") }, el("div", { class: "card-name" }, name), el("div", { class: "card-value" }, value), detail ? el("div", { class: "card-detail" }, detail) : null);
}

function drawBenchmark(page) {
  const mark = page.facts.benchmark || {};
  const reasons = page.facts.columns_reason || {};
  const box = byId("benchmark-cards");
  const interval = isNumber(mark.ci95_low_s) && isNumber(mark.ci95_high_s);
  box.append(card(["median ", term("clean", "clean"), " ", term("step", "step")], shown(mark.median_s, "s", "no clean step was measured"),
    interval ? [spanText(mark.ci95_low_s, mark.ci95_high_s), " ", term("interval", "95 % interval")] : "no interval: too few clean steps", "main"));
  const spread = isNumber(mark.iqr_s) && mark.median_s ? formatPercent(mark.iqr_s / mark.median_s) + " of the median" : null;
  box.append(card([term("iqr", "IQR"), ", ", term("clean", "clean"), " steps"], [shown(mark.iqr_s, "s", "fewer than 4 clean steps were measured")], [spread ? spread + ", " : "", "n = " + (mark.n ?? 0)]));
  box.append(card("steps per second", shown(mark.steps_per_s, "rate", "no clean step was measured"), isNumber(mark.items_per_s) ? formatCount(mark.items_per_s) + " items/s" : "items/s unknown: no batch size seen"));
  const times = isNumber(mark.first_step_s) && mark.median_s ? formatFactor(mark.first_step_s / mark.median_s) + " × the median" : null;
  box.append(card("first step" + (mark.first_step_layer ? ", watched by " + mark.first_step_layer : ""), shown(mark.first_step_s, "s", "nothing tells when the first step began or ended"), [times ? times + ", " : "", formatPlain(mark.warmup_steps) + " ", term("warmup", "warm-up"), mark.warmup_steps === 1 ? " step" : " steps"]));
  const busy = isNumber(mark.cpu_median_s) && mark.cpu_wall_s ? formatFactor(mark.cpu_median_s / mark.cpu_wall_s) + " cores busy" : null;
  box.append(card("CPU time per step", shown(mark.cpu_median_s, "s", "no CPU time of a clean step was read"), busy));
  if (isNumber(mark.device_median_s)) box.append(card("device time per step", formatSeconds(mark.device_median_s), "by events on the device"));
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
  const warnings = (mark.warnings || []).map(asText);
  if (warnings.length) byId("benchmark-warnings").append(el("ul", { class: "warnings" }, warnings.map((text) => el("li", {}, withCommands(text)))));
}

const asText = (item) => {
  if (item === null || item === undefined) return NONE;
  if (Array.isArray(item)) return item.map(asText).join(", ");
  if (typeof item === "object") return item.text || item.sentence || Object.entries(item).filter(([, value]) => value !== null).map(([key, value]) => key.replaceAll("_", " ") + " " + asText(value)).join(", ");
  return String(item);
};

const pairs = (entries) =>
  el("dl", { class: "pairs" }, entries.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value === null || value === undefined || value === "" ? none("nothing was recorded of it") : value)]));

function drawFacts(facts) {
  const run = facts.run || {};
  const step = facts.step || {};
  byId("run-facts").append(pairs([
    ["command", el("code", {}, (facts.argv || []).join(" "))],
    ["started", run.started_at], ["took", shown(run.duration_s, "s")],
    ["exit code", shown(run.exit_code, "plain", "the script has not ended")],
    run.signal ? ["signal", run.signal] : null, run.stopped_by ? ["stopped by", run.stopped_by] : null,
    ["steps found by", step.rule ? el("code", {}, step.rule) : none("no step was found")],
    ["steps", Object.entries(step.counts_by_phase || {}).map(([phase, count]) => count + " " + phase).join(", ") || formatPlain(step.count)],
    ["batch size", shown(step.batch_size, "plain", "the inputs of the steps are no tensors")],
    ["input shapes", (step.shapes || []).map(asText).join("; ") || none("no tensor input was seen")],
    run.world_size > 1 ? ["rank", run.rank + " of " + run.world_size] : null,
    ["recording", run.id],
  ].filter(Boolean)));
  drawEnvironment(facts.environment || {});
}

// What is there in rows; what is not in one line, so that it is not mistaken for forgotten.
function drawEnvironment(environment) {
  const isThere = (value) => value !== null && !(Array.isArray(value) && !value.length);
  const words = (key) => key.replace(/_bytes$/, "").replaceAll("_", " ");
  const entries = Object.entries(environment);
  const rows = entries.filter(([, value]) => isThere(value)).map(([key, value]) => [words(key), key.endsWith("_bytes") && isNumber(value) ? formatBytes(value) : asText(value)]);
  const absent = entries.filter(([, value]) => !isThere(value)).map(([key]) => words(key));
  byId("environment").append(pairs(rows));
  if (absent.length) byId("environment").append(el("p", { class: "quiet" }, "None, or not found: " + absent.join(", ") + "."));
}

const SIDES = { forward: "var(--forward)", backward: "var(--backward)" };
const PART_COLOURS = { "(optimizer)": "var(--optimizer)", "(wait)": "var(--wait)", "(zero_grad)": "var(--zero-grad)", "(loss)": "var(--loss)", "(gradient accumulation)": "var(--accumulate)", "(outside modules)": "var(--outside)", "(not attributed)": "var(--residual)" };
const partColour = (part) => SIDES[part.side] || PART_COLOURS[part.name] || "var(--outside)";

// One bar: the clean median, cut into its parts. A negative rest has no width and is only listed.
function drawComposition(composition) {
  const box = byId("composition");
  if (!composition.parts.length) { box.append(el("p", { class: "quiet" }, "No division of the step: " + composition.reason + ".")); return; }
  const whole = composition.parts.reduce((sum, part) => sum + Math.max(part.seconds, 0), 0) || 1;
  const bar = el("div", { class: "composition", role: "img", "aria-label": "parts of the clean step" });
  const legend = el("ul", { class: "legend" });
  for (const part of composition.parts) {
    const name = part.side === "part" ? part.name.replace(/[()]/g, "") : part.name + " " + part.side;
    const share = formatPercent(part.seconds / composition.median_s);
    if (part.seconds > 0) {
      const piece = el("span", {}, part.seconds / whole > 0.09 ? name : "");
      piece.style.flexGrow = String(part.seconds / whole);
      piece.style.background = partColour(part);
      piece.addEventListener("mousemove", (event) => showTip(event, name, [["calibrated", formatSeconds(part.seconds)], ["of the clean step", share]]));
      piece.addEventListener("mouseleave", hideTip);
      bar.append(piece);
    }
    if (part.seconds !== 0) legend.append(el("li", {}, swatch(partColour(part)), name + " ", el("b", {}, formatSeconds(part.seconds)), el("span", { class: "quiet" }, " " + share)));
  }
  box.append(bar, legend);
}

function drawFindings(facts) {
  const verdict = facts.verdict || {};
  if (verdict.sentence) {
    byId("verdict").append(el("p", { class: "verdict" }, verdict.sentence), (verdict.evidence || []).length ? el("ul", {}, verdict.evidence.map((row) => el("li", {}, asText(row)))) : "");
  } else byId("verdict").remove();
  const findings = facts.findings || [];
  if (!findings.length) { drop("findings"); return; }
  append(byId("finding-list"), findings.map((finding) => el("article", { class: "finding" },
    el("h3", {}, finding.title, finding.severity ? chip(finding.severity, finding.severity === "high" ? "failed" : "partial") : ""),
    el("p", {}, findingPlace(finding).flatMap((word, at) => (at ? [", ", word] : [word]))),
    finding.advice ? el("p", {}, withCommands(finding.advice)) : "",
    (finding.evidence || []).length ? el("details", {}, el("summary", {}, "evidence" + ((finding.layers || []).length ? " of " + finding.layers.map(asText).join(", ") : "")), el("ul", {}, finding.evidence.map((row) => el("li", {}, evidenceText(row))))) : "")));
}

// Where a finding is and what it costs; what was not measured is said so.
function findingPlace(finding) {
  const gain = isNumber(finding.gain_s) ? el("span", {}, el("b", {}, formatSeconds(finding.gain_s)), " per step, " + (finding.gain_is || "estimated")) : el("span", { class: "quiet" }, "what it costs in time was not measured");
  return [finding.file ? el("code", {}, finding.file + (isNumber(finding.line) ? ":" + finding.line : "")) : null,
    finding.module ? el("span", {}, "in ", el("code", {}, finding.module)) : null, gain].filter(Boolean);
}

// A row of evidence in words: figures with the unit that their name ends in.
function evidenceText(row) {
  if (!row || typeof row !== "object" || Array.isArray(row)) return asText(row);
  const units = [["_share", "share"], ["share", "share"], ["_s", "s"], ["_bytes", "bytes"], ["bytes", "bytes"], ["_flop", "flop"]];
  return Object.entries(row).filter(([, value]) => value !== null).map(([key, value]) => {
    const [ending, unit] = isNumber(value) ? units.find(([end]) => key.endsWith(end)) || ["", null] : ["", null];
    const name = key.slice(0, key.length - (ending.startsWith("_") ? ending.length : 0)).replaceAll("_", " ");
    return name + " " + (unit ? formatValue(value, unit) : isNumber(value) && !Number.isInteger(value) ? formatCount(value) : asText(value));
  }).join(", ");
}

function drawWarnings(facts) {
  const warnings = facts.warnings || [];
  if (!warnings.length) { drop("warnings"); return; }
  append(byId("warning-list"), warnings.map((warning) => el("li", {}, warning.slug ? el("code", {}, warning.slug) : "", " ", withCommands(asText(warning.text ?? warning)))));
}
