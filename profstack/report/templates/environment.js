// What ran, on what machine, with which versions.
function drawFacts(facts) {
  const run = facts.run || {};
  const step = facts.step || {};
  byId("run-facts").append(pairs([
    ["command", el("code", {}, (facts.argv || []).join(" "))],
    ["started", momentWords(run.started_at)], ["took", shown(run.duration_s, "s")],
    ["exit code", shown(run.exit_code, "plain", "the script has not ended")],
    run.signal ? ["signal", run.signal] : null, run.stopped_by ? ["stopped by", run.stopped_by] : null,
    ["steps found by", step.rule ? el("code", {}, step.rule) : none("no step was found")],
    ["steps", Object.entries(step.counts_by_phase || {}).map(([phase, count]) => count + " " + phase).join(", ") || formatPlain(step.count)],
    ["batch size", shown(step.batch_size, "plain", "the inputs of the steps are no tensors")],
    ["input shapes", (step.shapes || []).map(asText).join("; ") || none("no tensor input was seen")],
    run.world_size > 1 ? ["rank", run.rank + " of " + run.world_size] : null,
    ["recording", run.id], ["profstack", facts.profstack_version],
  ]));
  drawEnvironment(facts.environment || {});
}

// Facts by what they are of; those that no group knows stand with the machine.
const GROUPS = [
  ["software", /^(python|torch|cuda|cudnn|triton|numpy|implementation|packages|variables|commit|changed|git)/],
  ["machine", /./],
];

// What is there in rows; what is not in one line, so that it is not mistaken for forgotten.
function drawEnvironment(environment) {
  const isThere = (value) => value !== null && value !== "" && !(Array.isArray(value) && !value.length);
  const words = (key) => key.replace(/_bytes$/, "").replaceAll("_", " ");
  const entries = Object.entries(environment);
  const groups = new Map(GROUPS.map(([name]) => [name, []]));
  for (const [key, value] of entries.filter(([, one]) => isThere(one))) {
    const [name] = GROUPS.find(([, keys]) => keys.test(key));
    groups.get(name).push([key === "changed" ? "uncommitted changes" : words(key), key.endsWith("_bytes") && isNumber(value) ? formatBytes(value) : typeof value === "boolean" ? formatValue(value) : asText(value)]);
  }
  for (const [name, rows] of groups) byId("environment-" + name).append(rows.length ? pairs(rows) : el("p", { class: "quiet" }, "Nothing was recorded."));
  const absent = entries.filter(([, value]) => !isThere(value)).map(([key]) => words(key));
  if (absent.length) byId("environment-machine").append(el("p", { class: "quiet" }, "None, or not found: " + absent.join(", ") + "."));
}

// A moment as people write it: no fractions of a second, and UTC by its name.
const momentWords = (text) => (text ? String(text).replace("T", " ").replace(/\.\d+/, "").replace(/(\+00:00|Z)$/, " UTC") : text);
