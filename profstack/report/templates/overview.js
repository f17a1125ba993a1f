// The first view: why a step takes what it takes, and what to do about it, before any table is
// inflated. Beside it stand the small pieces that other views are made of too.
function drawHeader(facts) {
  const run = facts.run || {};
  const script = byId("script");
  script.textContent = visible(facts.script || (facts.nsys && facts.nsys.file) || NONE);
  script.title = script.textContent;
  const status = byId("status");
  const ended = run.signal ? "signal " + run.signal : run.exit_code !== null && run.exit_code !== undefined ? "exit code " + run.exit_code : run.finished_at ? "in a session" : "still running";
  if (isImportAlone(facts)) { status.append(chip(facts.status, facts.status), el("span", {}, "imported")); return; }
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

const asText = (item) => {
  if (item === null || item === undefined) return NONE;
  if (Array.isArray(item)) return item.map(asText).join(", ");
  if (typeof item === "object") return item.text || item.sentence || Object.entries(item).filter(([, value]) => value !== null).map(([key, value]) => key.replaceAll("_", " ") + " " + asText(value)).join(", ");
  return String(item);
};

const pairs = (entries) =>
  el("dl", { class: "pairs" }, entries.filter(Boolean).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value === null || value === undefined || value === "" ? none("nothing was recorded of it") : value)]));

// A recording of an import of Nsight Systems and no run of its own: there is nothing to judge.
const isImportAlone = (facts) => Boolean(facts.nsys) && !(facts.layers || []).length && !(facts.step && facts.step.count) && !isNumber((facts.benchmark || {}).median_s);

function drawOverview(page) {
  if (isImportAlone(page.facts)) {
    append(byId("verdict"), [el("p", { class: "lead" }, "This recording holds an import of ", linkTo("nsys", null, "Nsight Systems"), " alone: no step was timed without it, so there is no clean time, and no verdict on it.")]);
    byId("benchmark-cards").append(nsysCard(page.facts.nsys));
    drop("top-rows");
    for (const id of ["step-bar-title", "step-bar"]) drop(id);
    return;
  }
  drawVerdict(page.facts);
  drawHeadline(byId("benchmark-cards"), page);
  drawStepBar(page);
  drawTops(page.overview.tops);
}

// The figures that everything else on the page is held against.
function drawHeadline(box, page) {
  const mark = page.facts.benchmark || {}, step = page.facts.step || {};
  const interval = isNumber(mark.ci95_low_s) && isNumber(mark.ci95_high_s);
  const uneven = isNumber(mark.mean_s) && mark.median_s && Math.abs(mark.mean_s / mark.median_s - 1) > 0.05;
  const found = step.rule ? [", steps found by ", el("code", {}, step.rule)] : null;
  append(box, [
    card(["median ", term("clean", "clean"), " ", term("step", "step")], figure(mark.median_s, "s", { ...CLEAN, reason: "no clean step was measured" }), [
      interval ? [spanText(mark.ci95_low_s, mark.ci95_high_s), " ", term("interval", "95 % interval"), ", "] : mark.median_s ? "no interval: too few clean steps, " : null,
      "n = " + (mark.n ?? 0), page.bench.measured ? null : found], "main"),
    card(term("rate", "steps per second"), figure(mark.steps_per_s, "rate", { ...CLEAN, reason: "no clean step was measured" }), [
      isNumber(mark.items_per_s) ? [figure(mark.items_per_s, "rate", CLEAN), " items/s", isNumber(step.batch_size) ? ", batches of " + step.batch_size : null] : "items/s unknown: no batch size seen",
      uneven ? ["; a step takes ", figure(mark.mean_s, "s", CLEAN), " on average"] : null]),
    workCard(page.overview.work),
    ...memoryCards(page.overview.peaks),
    nsysCard(page.facts.nsys),
  ]);
}

// What was imported, and the way to it.
function nsysCard(fact) {
  if (!fact) return null;
  return card(linkTo("nsys", null, "Nsight Systems"), fact.steps ? plural(fact.steps, "step") : "a whole capture", ["of ", fact.file, fact.version ? " by nsys " + fact.version : ""]);
}

function workCard(work) {
  const name = [hasView("flops") ? linkTo("flops", null, "operations") : "operations", " per second"];
  if (!isNumber(work.flop_per_s)) return card(name, none(work.reason), work.reason);
  const rate = { kind: "rate", source: work.counter, over: "clean" };
  const share = isNumber(work.mfu) ? [el("b", {}, figure(work.mfu, "share", rate)), " of the ", work.peak_is, " peak (", term("mfu", "MFU"), ")"] : "share of peak unknown: " + work.reason;
  return card(name, [figure(work.flop_per_s, "rate", rate), " FLOP/s"], [share, el("div", {}, figure(work.flop, "flop", { kind: "counted", source: work.counter }), " ", term("flop", "FLOP"), " a step"), work.warning ? [" ", el("span", { class: "bad-word" }, work.warning)] : null]);
}

// Read at the edges of slices and by the watch, whatever else was on.
const RAW_MEMORY = { layer: "profstack", kind: "raw" };

// Most memory of the run, and what the bytes were of in the one step that was watched.
function memoryCards(peaks) {
  const held = (device) => peaks.held.find((one) => (one.device === null || one.device === "cpu") !== device);
  const kinds = (one) => (one && one.total_bytes ? ["a step's tensors: ", figure(one.total_bytes, "bytes", RAW_TORCH), ", ", one.kinds.slice(0, 2).map(([kind, size], at) => [at ? ", " : "", figure(size / one.total_bytes, "share", RAW_TORCH), " " + kind])] : peaks.held_reason);
  const cards = [card([linkTo("memory", null, "host memory"), ", most of the run"], figure(peaks.rss_bytes, "bytes", { ...RAW_MEMORY, reason: peaks.rss_reason }), kinds(held(false)))];
  if (isNumber(peaks.allocated_bytes)) cards.push(card([linkTo("memory", null, "device memory"), ", most of the run"], figure(peaks.allocated_bytes, "bytes", RAW_MEMORY), [isNumber(peaks.reserved_bytes) ? [figure(peaks.reserved_bytes, "bytes", RAW_MEMORY), " reserved; "] : null, kinds(held(true))]));
  return cards;
}

const PART_COLOURS = { "data wait": "var(--wait)", "before first work": "var(--wait)", Python: "var(--file-5)", forward: "var(--forward)", loss: "var(--loss)", backward: "var(--backward)", optimizer: "var(--optimizer)", idle: "var(--idle)", other: "var(--outside)", "not attributed": "var(--residual)",
  "(optimizer)": "var(--optimizer)", "(wait)": "var(--wait)", "(zero_grad)": "var(--zero-grad)", "(loss)": "var(--loss)", "(gradient accumulation)": "var(--accumulate)", "(outside modules)": "var(--outside)", "(not attributed)": "var(--residual)" };
const partColour = (part) => PART_COLOURS[part.name] || "var(--outside)";

// One bar: the clean median, cut into its parts. A negative rest has no width and is only listed.
function drawStepBar(page) {
  const box = byId("step-bar"), told = page.overview.step_bar;
  if (!told || !(told.parts || []).length) { box.append(el("p", { class: "quiet" }, "No division of the step: " + ((told && told.reason) || "nothing of it was recorded") + ".")); return; }
  stepBar(box, told.parts, told.median_s);
  for (const words of [told.reason, told.note].filter(Boolean)) box.append(el("p", { class: "quiet" }, words[0].toUpperCase() + words.slice(1) + "."));
}

function stepBar(box, parts, median) {
  const whole = parts.reduce((sum, part) => sum + Math.max(part.seconds, 0), 0) || 1;
  const bar = el("div", { class: "composition", role: "group", "aria-label": "parts of the clean step" });
  const legend = el("ul", { class: "legend parts" });
  for (const part of parts) {
    const colour = partColour(part);
    const share = formatPercent(part.share ?? part.seconds / median);
    const way = part.link && hasView(part.link.split("/")[0]) ? wayTo(...linkParts(part.link)) : null;
    if (part.seconds > 0) {
      const width = part.seconds / whole;
      const piece = el(way ? "a" : "span", { class: "piece", href: way, role: way ? null : "img", "aria-label": part.name + " " + share + ", " + formatSeconds(part.seconds) },
        width > 0.075 ? [el("b", {}, part.name), " ", share] : width > 0.035 ? share : "");
      piece.style.flexGrow = String(width);
      piece.style.background = colour;
      piece.addEventListener("mousemove", (event) => showTip(event, part.name, [[part.is || "calibrated", formatSeconds(part.seconds)], ["of the clean step", share]]));
      piece.addEventListener("mouseleave", hideTip);
      bar.append(piece);
    }
    if (part.seconds !== 0) legend.append(el("li", {}, swatch(colour), part.link ? linkOf(part.link, part.name) : part.name, el("b", {}, figure(part.seconds, "s", part.is === "clean" ? CLEAN : { words: (part.is || "calibrated") + ": seen by layers, told at the speed of the clean steps" })), el("span", { class: "quiet" }, share)));
  }
  box.append(bar, legend);
}

// A link of report.json as its view and its key.
function linkParts(link) {
  const at = String(link).indexOf("/");
  return at < 0 ? [String(link), null] : [link.slice(0, at), link.slice(at + 1)];
}

// What takes most time of each kind; the rest is one click away.
function drawTops(tops) {
  if (!tops.some((top) => top.rows.length)) { drop("top-rows"); return; }
  append(byId("tops"), tops.map((top) => el("section", { class: "top" },
    el("h4", {}, linkTo(top.view, null, top.title), el("span", { class: "quiet" }, top.kind + ", by " + top.layer)),
    top.rows.length ? el("ol", {}, top.rows.map((row) => topRow(row, top))) : el("p", { class: "quiet" }, "Nothing to rank: " + top.reason + "."))));
}

function topRow(row, top) {
  const most = Math.max(...top.rows.map((one) => one.seconds));
  const fill = el("span", { class: "fill", "aria-hidden": "true" });
  fill.style.width = (100 * row.seconds) / most + "%";
  const origin = { layer: top.layer, kind: top.kind.endsWith("calibrated") ? "calibrated" : "raw" };
  return el("li", {}, fill, el("span", { class: "top-name", title: row.name + (row.detail ? "\n" + row.detail : "") }, linkOf(row.link, top.view === "modules" ? tailOf(row.name, 34) : row.name), row.detail ? el("span", { class: "quiet" }, row.detail) : null),
    el("span", { class: "top-share", title: isNumber(row.share) ? top.share_of : null }, isNumber(row.share) ? formatPercent(row.share) : none(top.share_reason)), el("span", { class: "top-time" }, figure(row.seconds, "s", origin)));
}
