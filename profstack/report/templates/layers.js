// One row per layer: what became of it, what it cost, and how to get what is missing.
function drawLayers(page) {
  const effects = new Map((page.facts.probe_effect || []).map((effect) => [effect.layer, effect]));
  // One scale for all layers; an interval beyond five times is cut there and told by its numbers.
  const most = Math.min(5, Math.max(1.5, ...[...effects.values()].map((effect) => effect.ci95_high || effect.factor || 1)));
  append(byId("layer-list"), (page.facts.layers || []).map((layer) => layerRow(layer, effects.get(layer.name), most, page)));
}

// Its own words on what it measures stand open: a figure is only as good as what it is of.
function layerRow(layer, effect, most, page) {
  const recorded = layer.status === "recorded" || layer.status === "emitted";
  return el("article", { class: "layer", "data-key": "method/" + layer.name },
    el("div", { class: "layer-name" }, el("h4", {}, swatch(kindColour(layer.name)), layer.name, chip(layer.status, layer.status)),
      el("div", { class: "quiet" }, layer.tool, layer.version ? " " + layer.version : ""),
      pairs([
        [term("technique"), shown(layer.technique, "text", layer.reason || "its package is no longer there")],
        [term("step", "steps"), shown(layer.steps, "plain", layerSteps(layer))],
        isNumber(layer.stop_s) ? ["pauses", formatSeconds(layer.stop_s)] : null,
        [term("footprint", "memory"), shown(layer.memory_bytes, "bytes", layer.reason || "it was not told what the tool holds")]])),
    el("div", { class: "layer-effect" }, el("div", { class: "small-name" }, term("probe-effect", "probe effect")), probeEffect(effect, layer, most)),
    el("div", { class: "layer-words" }, pairs([
      layer.reason ? [recorded ? "note" : "why not", layer.reason] : null,
      !recorded && layer.command ? ["to fill it", command(layer.command)] : null,
      ["measures", layer.measures], ["not measured", layer.does_not_measure], ["usual slowdown", layer.usual_slowdown], ["conflicts with", layer.conflicts],
      layer.truncated ? ["left out", asText(layer.truncated)] : null,
      (layer.artifacts || []).length ? ["files", layer.artifacts.map((artifact) => el("div", {}, artifactLink(artifact, page)))] : null]),
      (layer.audit || []).length ? el("details", {}, el("summary", {}, "its slices in this run"), el("ul", { class: "said" }, layer.audit.map((one) => el("li", {}, asText(one))))) : null));
}

// How the clean time was found, in sentences, and what became of every step.
function drawClean(page) {
  const mark = page.facts.benchmark || {}, step = page.facts.step || {}, accounts = page.overview.accounts;
  const sentences = [];
  if (step.rule) sentences.push(["A step was taken to be what lies between two calls told by ", el("code", {}, step.rule), ", with no change to the script; ", formatPlain(step.count), " of them were of the phase ", el("code", {}, step.phase || NONE), "."]);
  if (isNumber(mark.warmup_steps)) sentences.push([term("warmup", "Warm-up"), " ended ", mark.warmup_steps ? "after " + mark.warmup_steps + (mark.warmup_steps === 1 ? " step" : " steps") : "before the first step that was seen", ": where the step times stop falling, not after a fixed number.", mark.warmup_reason ? " " + mark.warmup_reason + "." : null]);
  if (isNumber(mark.median_s)) sentences.push(["The ", term("clean", "clean"), " median of ", el("b", {}, formatSeconds(mark.median_s)), " is of " + mark.n + (mark.n === 1 ? " step" : " steps") + " that no layer watched", mark.mode ? [", timed ", term(mark.mode, mark.mode)] : null, "; its ", term("interval", "interval"), " is by resampling blocks of consecutive steps."]);
  else sentences.push(["There is no clean time: no step was left unwatched, warm and settled."]);
  sentences.push([term("calibrated", "Calibrated"), " times are a row's share of its slice's step time, at the speed of the clean steps; they are not given where a layer slows its steps more than 3 times, or watched fewer than 3."]);
  if (page.facts.nsys) sentences.push(["What ", linkTo("nsys", null, "Nsight Systems"), " saw is of ", page.facts.nsys.steps ? plural(page.facts.nsys.steps, "step") : "a capture", " that it watched, with what that cost: its times are neither clean nor ", term("calibrated"), ", and no clean time rests on them."]);
  append(byId("clean-words"), sentences.map((words) => el("li", {}, words)));
  if (!accounts.length) return;
  const whole = accounts.reduce((sum, one) => sum + one.steps, 0);
  const bar = el("div", { class: "composition accounts", role: "img", "aria-label": "what became of the steps: " + accounts.map((one) => one.steps + " " + one.why).join("; ") });
  for (const one of accounts) {
    const piece = el("span", { class: "piece" }, one.steps / whole > 0.06 ? el("b", {}, one.steps) : "");
    piece.style.flexGrow = String(one.steps / whole);
    piece.style.background = accountColour(one);
    piece.addEventListener("mousemove", (event) => showTip(event, one.why, [["steps", one.steps], ["of all", formatPercent(one.steps / whole)]]));
    piece.addEventListener("mouseleave", hideTip);
    bar.append(piece);
  }
  append(byId("clean-steps"), [bar, el("ul", { class: "legend parts" }, accounts.map((one) => el("li", {}, swatch(accountColour(one)), el("b", {}, one.steps), " ", one.why)))]);
}

const accountColour = (one) => (one.counted || one.kind !== "clean" ? kindColour(one.kind) : "color-mix(in srgb, var(--kind-clean) 40%, var(--ground))");

const layerSteps = (layer) => layer.reason || "it has no slices: it observes what is between them";

// An artifact stands as a row of its own or as its path alone.
function artifactLink(artifact, page) {
  const path = typeof artifact === "string" ? artifact : artifact.path;
  const known = typeof artifact === "string" ? artifactRecords(page).find((record) => record.path === path) || {} : artifact;
  return [fileLink(page.base, path), el("span", { class: "quiet" }, [isNumber(known.bytes) ? " " + formatBytes(known.bytes) : "", known.opens_in ? " opens in " + known.opens_in : ""])];
}

const artifactRecords = (page) => (page.tables.artifacts ? asRecords(page.tables.artifacts) : []);

function command(text) {
  const button = el("button", { type: "button", class: "copy", title: "copy" }, "copy");
  button.addEventListener("click", () => {
    const done = () => { button.textContent = "copied"; announce("copied"); setTimeout(() => { button.textContent = "copy"; }, 1500); };
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, () => {});
  });
  return el("span", { class: "command" }, el("code", {}, text), navigator.clipboard ? button : null);
}

// The factor with its interval, and in words when the interval holds 1.
function probeEffect(effect, layer, most) {
  if (!effect || !isNumber(effect.factor)) {
    const why = (effect && effect.note) || "it has no step to compare with clean ones";
    return layer.reason ? none(layer.reason) : [none(why), el("div", { class: "quiet" }, why)];
  }
  const interval = isNumber(effect.ci95_low) && isNumber(effect.ci95_high);
  const same = interval && effect.ci95_low <= 1 && effect.ci95_high >= 1;
  return [
    el("b", { class: "factor" }, (effect.note ? "≤ " : "") + formatFactor(effect.factor) + " ×"),
    interval ? el("span", { class: "quiet" }, " " + formatFactor(effect.ci95_low) + " – " + formatFactor(effect.ci95_high)) : el("span", { class: "quiet" }, " no interval: too few steps"),
    interval ? intervalBar(effect, most, kindColour(layer.name)) : null,
    same ? el("div", { class: "quiet" }, "not distinguishable from 1.00") : null,
    effect.note ? el("div", { class: "quiet" }, effect.note) : null,
    el("div", { class: "quiet" }, "medians: " + formatSeconds(effect.step_median_s) + " against " + formatSeconds(effect.clean_median_s) + " clean, ", el("span", { class: "together" }, "n = " + effect.n_layer + " and " + effect.n_clean)),
  ];
}

function intervalBar(effect, most, colour) {
  const low = Math.max(0, Math.min(0.8, effect.ci95_low));
  const at = (value) => Math.min(100, Math.max(0, (100 * (value - low)) / (most - low)));
  const bar = el("div", { class: "interval", "aria-hidden": "true" });
  const one = el("span", { class: "one" });
  one.style.left = at(1) + "%";
  const range = el("span", { class: "range" });
  range.style.left = at(effect.ci95_low) + "%";
  range.style.width = Math.max(at(effect.ci95_high) - at(effect.ci95_low), 0.5) + "%";
  range.style.background = colour;
  const point = el("span", { class: "point" });
  point.style.left = at(effect.factor) + "%";
  point.style.background = colour;
  bar.append(one, range, point);
  return bar;
}

const PAUSE = { words: "raw: profstack's own time between steps, no part of any" };

function drawSliceTable(page) {
  const unseen = "the slice has no steps, or they are too short for the CPU clock";
  const timed = (key, label, meaning, reason) => byRow(ownColumn(key, label, "s", meaning, reason), (slice) => (slice.kind === "clean" ? CLEAN : RAW_CLOCK));
  const columns = [
    ownColumn("index", "slice", "plain", "number of the slice", null, FACT), ownColumn("kind", "kind", "text", "what the slice is for"),
    ownColumn("mode", "mode", "text", "the layer's own way of observing", "no layer observed it"), ownColumn("phase", "phase", "text", "train, eval or other"),
    ownColumn("round", "round", "plain", "round of slices", null, FACT), ownColumn("first_step", "first step", "plain", "its first step", null, FACT),
    ownColumn("steps", "steps", "plain", "number of steps", null, FACT), timed("step_median_s", "median step", "median step time", "the slice has no steps"),
    ownColumn("started_s", "started", "s", "since the recording began", null, FACT), timed("wall_s", "wall", "host time over its steps", null),
    timed("cpu_s", "CPU", "process CPU time over its steps; threads on other cores are added at scheduler ticks", unseen), ownColumn("stop_s", "pause", "s", "time to stop the tool and take in its data", "no layer observed it", PAUSE),
    ownColumn("settle_steps", "settle steps", "plain", "steps let go by after the switch", null, FACT)];
  const rows = page.slices.map((slice) => columns.map(({ key }) => slice[key] ?? null));
  makeTable(byId("slice-table"), { table: { columns, rows, left_out: null }, name: "slices", sort: { key: "index", direction: 1 },
    cells: { kind: (value) => el("td", { class: "text" }, swatch(kindColour(value)), value) } });
}

// A page that profstack itself serves has a page beside it that hands the trace over.
const TRACE_FILE = "torch/trace.json.gz";
const isServed = window.location.protocol === "http:" && ["127.0.0.1", "localhost"].includes(window.location.hostname);

function drawArtifacts(page) {
  if (!page.tables.artifacts) { byId("artifact-table").append(el("p", { class: "quiet" }, "No layer left a file of its own.")); return; }
  makeTable(byId("artifact-table"), { table: page.tables.artifacts, name: "files",
    cells: { path: (value) => el("td", { class: "text wide" }, fileLink(page.base, value), isServed && value === TRACE_FILE ? [" · ", el("a", { href: "perfetto", class: "file" }, "hand to Perfetto")] : null) } });
}
