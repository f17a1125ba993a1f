// The verdict, the findings with what they rest on, and what stands against trusting the figures.
const SEVERITIES = { high: "bad", medium: "fair", low: "good" };
const EVIDENCE_UNITS = [["_share", "share"], ["share", "share"], ["_per_s", "rate"], ["_s", "s"], ["_bytes", "bytes"], ["bytes", "bytes"], ["_flop", "flop"], ["_mac", "mac"]];
// Rows of evidence that stand in a card before the others are folded.
const EVIDENCE_ROWS = 3;

function drawVerdict(facts) {
  const verdict = facts.verdict, box = byId("verdict");
  if (!verdict || !verdict.sentence) {
    box.append(el("p", { class: "quiet" }, "No verdict: " + ((verdict && verdict.reason) || "this report has none") + "."));
    return;
  }
  const tests = (verdict.evidence || []).filter((row) => row && row.test), others = (verdict.evidence || []).filter((row) => !row || !row.test);
  const told = tests.some((row) => isNumber(row.share)), ways = told ? [] : missingCommands(facts);
  append(box, [
    el("p", { class: "verdict" }, verdict.sentence),
    ways.length ? el("p", { class: "to-fill" }, "What would tell more: ", ways.map((text) => [command(text), " "])) : null,
    told ? el("ul", { class: "tests", "aria-label": "what the verdict rests on" }, tests.map((row) => testRow(row, verdict.slug))) : null,
    others.length ? el("ul", { class: "evidence" }, others.map((row) => el("li", {}, evidenceRow(row)))) : null,
  ]);
}

// How to get what no layer saw: each layer's own command, as far as it has one.
const missingCommands = (facts) => [...new Set((facts.layers || []).filter((layer) => layer.status !== "recorded" && layer.status !== "emitted").map((layer) => layer.command).filter(Boolean))].slice(0, 2);

// One cause that was asked for: its share of the step beside the share from which it is the verdict.
function testRow(row, verdict) {
  const { test, share, threshold_share: threshold, link, reason, ...rest } = row;
  const fill = el("span", { class: "test-fill", "aria-hidden": "true" }), mark = el("span", { class: "test-mark", "aria-hidden": "true" });
  fill.style.width = 100 * Math.min(Math.max(share || 0, 0), 1) + "%";
  mark.style.left = 100 * Math.min(threshold || 0, 1) + "%";
  const from = isNumber(threshold) ? "from " + formatPercent(threshold) + " of the step on it is " + test : null;
  const words = { role: "img", "aria-label": from || "of the step", title: from };
  // All figures stand with the cause that was found; of the others the time, and the rest on hover.
  const said = el("span", { class: "test-words" }, test === verdict ? evidenceRow(rest) : isNumber(share) ? formatSeconds(rest.time_s) : reason, link ? [" ", evidenceWay(link)] : null);
  const figures = el("span", {}, evidenceRow(rest)).textContent;
  said.title = isNumber(share) ? figures : reason || figures;
  return el("li", { class: test === verdict ? "chosen" : null }, el("span", { class: "test-name" }, linkTo("glossary", test, test)), el("span", { class: "test-bar", ...words }, fill, isNumber(threshold) ? mark : null),
    el("b", {}, isNumber(share) ? formatPercent(share) : none("it could not be told")), said);
}

// A row of evidence: its figures with their units, linked to the row they are taken from.
function evidenceRow(row) {
  if (!row || typeof row !== "object" || Array.isArray(row)) return asText(row);
  const { link, text, ...rest } = row;
  const place = placeWords(rest);
  const words = Object.entries(rest).filter(([key, value]) => value !== null && value !== undefined && !(place && (key === "file" || key === "line"))).map(([key, value]) => evidenceWord(key, value));
  const parts = [text || null, place ? el("code", {}, place) : null, ...words].filter(Boolean);
  const body = parts.flatMap((part, at) => (at ? [", ", part] : [part]));
  if (!link) return body;
  return [body, " ", evidenceWay(link, true)];
}

// A module is named by the way to it: nothing else in a row of evidence says which one it is.
function evidenceWay(link, named = false) {
  const [view, key] = linkParts(link);
  return hasView(view) ? el("a", { class: "way", href: wayTo(view, key), title: key, "aria-label": "to its row in " + view }, "→ " + (named && view === "modules" && key ? tailOf(key, 40) : view)) : null;
}

function evidenceWord(key, value) {
  const [ending, unit] = isNumber(value) ? EVIDENCE_UNITS.find(([end]) => key.endsWith(end)) || ["", null] : ["", null];
  const name = key.slice(0, key.length - (ending.startsWith("_") ? ending.length : 0)).replaceAll("_", " ");
  const figure = unit ? formatValue(value, unit) : isNumber(value) && !Number.isInteger(value) ? formatCount(value) : typeof value === "boolean" ? formatValue(value) : asText(value);
  return el("span", {}, el("span", { class: "quiet" }, name + " "), isNumber(value) ? el("b", {}, figure) : figure);
}

const placeWords = (row) => (row.file ? shortPath(row.file, 2) + (isNumber(row.line) ? ":" + row.line : "") : null);

function drawFindings(page) {
  const findings = page.facts.findings || [], rules = page.overview.rules;
  const median = (page.facts.benchmark || {}).median_s;
  const seen = new Set();
  append(byId("finding-list"), findings.map((finding) => {
    const first = !seen.has(finding.slug);
    seen.add(finding.slug);
    return findingCard(finding, median, first);
  }));
  byId("finding-list").append(rulesNote(findings, rules));
}

function findingCard(finding, median, first) {
  const evidence = finding.evidence || [];
  const rest = evidence.slice(EVIDENCE_ROWS);
  return el("article", { class: "finding " + (SEVERITIES[finding.severity] || "fair"), id: first ? "finding-" + finding.slug : null, "data-key": "overview/" + finding.slug },
    el("div", { class: "gain" }, gainWords(finding, median)),
    el("div", { class: "finding-body" },
      el("h4", {}, finding.title, finding.severity ? el("span", { class: "chip " + (SEVERITIES[finding.severity] || "fair") }, finding.severity) : null),
      el("p", { class: "place" }, findingPlace(finding)),
      finding.advice ? el("p", { class: "advice" }, withCommands(finding.advice)) : null,
      evidence.length ? el("ul", { class: "evidence", "aria-label": "evidence" }, evidence.slice(0, EVIDENCE_ROWS).map((row) => el("li", {}, evidenceRow(row)))) : null,
      rest.length ? el("details", {}, el("summary", {}, rest.length + " more"), el("ul", { class: "evidence" }, rest.map((row) => el("li", {}, evidenceRow(row))))) : null));
}

// What mending it is worth, per clean step; what was not measured is said so.
function gainWords(finding, median) {
  if (!isNumber(finding.gain_s)) return el("div", { class: "quiet" }, finding.gain_reason || "what it costs in time was not measured");
  const least = (finding.evidence || []).slice(0, 1).some((row) => row.limits_agree === false);
  const layers = (finding.layers || []).map((layer) => layerWords(asText(layer)));
  const origin = { words: (finding.gain_is || "estimated") + (layers.length ? ", from what " + layers.join(" and ") + " saw" : "") + ", in time of a clean step" };
  return [el("div", { class: "gain-value" }, figure(-finding.gain_s, "s", origin)),
    el("div", {}, median ? el("b", {}, figure(finding.gain_s / median, "share", origin)) : null, median ? " of a clean step" : "per step"),
    el("div", { class: "quiet" }, (least ? "at least, " : "") + (finding.gain_is || "estimated"))];
}

function findingPlace(finding) {
  const words = [];
  if (finding.file) words.push(linkTo("source", finding.file + ":" + finding.line, placeWords(finding)));
  if (finding.module) words.push(el("span", {}, "in ", linkTo("modules", finding.module, finding.module)));
  if ((finding.layers || []).length) words.push(el("span", { class: "quiet" }, "seen by ", finding.layers.map((layer, at) => [at ? ", " : "", linkTo("method", asText(layer), asText(layer))])));
  words.push(el("span", { class: "quiet" }, linkTo("glossary", finding.slug, "the rule")));
  return words.flatMap((word, at) => (at ? [" · ", word] : [word]));
}

// What was looked for: an empty list of findings says something only beside it.
function rulesNote(findings, rules) {
  const found = new Set(findings.map((finding) => finding.slug));
  const silent = rules.filter((rule) => !found.has(rule.slug));
  if (!silent.length) return "";
  const count = rules.length + (rules.length === 1 ? " rule" : " rules") + " looked";
  return el("details", { class: "rules" }, el("summary", {}, findings.length ? count + "; what " + silent.length + " of them did not find" : count + "; none found anything to mend. What they looked for"),
    el("dl", { class: "pairs" }, silent.map((rule) => [el("dt", {}, linkTo("glossary", rule.slug, rule.title)), el("dd", {}, rule.rule)])));
}

// What to keep in mind when reading the figures: warnings, and what no layer saw.
function drawTrust(facts) {
  const mark = (facts.benchmark || {}).warnings || [];
  const warnings = [...mark.map((text) => ({ slug: null, text: asText(text) })), ...(facts.warnings || []).map((one) => ({ slug: one.slug, text: asText(one.text ?? one) }))];
  const missing = (facts.layers || []).filter((layer) => layer.status !== "recorded" && layer.status !== "emitted");
  const ended = endWords(facts.run || {});
  if (ended) byId("warning-list").append(el("li", {}, ended));
  append(byId("warning-list"), warnings.map((one) => el("li", {}, one.slug ? [el("code", {}, one.slug), " "] : "", withCommands(one.text))));
  append(byId("missing-layers"), missing.map((layer) => el("li", {}, el("b", {}, linkTo("method", layer.name, layer.name)), " ", chip(layer.status, layer.status), " ", layer.reason || "no reason was told",
    layer.command ? [". To fill it: ", command(layer.command)] : null)));
  if (!ended && !warnings.length && !missing.length) byId("trust-note").append((facts.layers || []).length ? "Every layer recorded its slice, and nothing speaks against the figures." : "Nothing speaks against the figures.");
}

// A script that failed was measured up to there.
function endWords(run) {
  if (run.signal) return "The script was ended by " + run.signal + ": the figures are of the steps before that.";
  return run.exit_code ? "The script ended with exit code " + run.exit_code + ": the figures are of the steps before that." : null;
}
