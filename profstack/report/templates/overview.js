// The view "Overview" and the header: why a step takes its time and what to do about it. It needs
// no packed data, so that it is on screen first.

import {
  append,
  asText,
  atLine,
  byId,
  CLEAN,
  card,
  chip,
  command,
  el,
  figure,
  fileLink,
  formatCount,
  formatPercent,
  formatSeconds,
  formatValue,
  hideTip,
  isNumber,
  isProfiled,
  layerWords,
  NONE,
  none,
  partColour,
  plural,
  quiet,
  RAW_TORCH,
  remark,
  shortPath,
  showTip,
  spanText,
  stepClock,
  stepName,
  swatch,
  tailOf,
  term,
  visible,
  withCommands,
} from "./dom.js";
import { drawTried } from "./tried.js";
import { drop, hasView, isImportAlone, linkOf, linkParts, linkTo, wayTo } from "./views.js";

export const overviewView = {
  id: "overview",
  title: "Overview",
  needs: [],
  has: () => true,
  parts: [
    ["overview", drawOverview],
    ["findings", drawFindings],
    ["tried", drawTried],
    ["trust", drawTrust],
  ],
};

export function drawHeader(facts, base) {
  const run = facts.run || {};
  const script = byId("script");
  script.textContent = visible(
    facts.script || facts.imports?.[0]?.file || facts.nsys?.file || NONE,
  );
  script.title = script.textContent;
  const status = byId("status");
  const ended = isProfiled(facts.benchmark)
    ? "imported"
    : run.signal
      ? "signal " + run.signal
      : run.exit_code !== null && run.exit_code !== undefined
        ? "exit code " + run.exit_code
        : run.finished_at
          ? "in a session"
          : "still running";
  if (isImportAlone(facts)) {
    status.append(chip(facts.status, facts.status), el("span", {}, "imported"));
    return;
  }
  status.append(
    chip(facts.status, facts.status),
    el("span", {}, ended),
    isNumber(run.duration_s) ? el("span", {}, formatSeconds(run.duration_s)) : "",
    el("span", {}, facts.step?.count || 0, " ", term("step", "steps")),
    run.stopped_by ? el("span", {}, "stopped by " + run.stopped_by) : "",
    ...whichRank(facts, base),
  );
}

// Of which rank the figures are, where there are several, and the way to all of them.
function whichRank({ ranks, run }, base) {
  if (ranks)
    return [
      el(
        "span",
        { class: "which" },
        "figures of " + (ranks.kind ?? "rank") + " " + ranks.shown + " of ",
        String((ranks.kind === "process" ? null : ranks.world_size) ?? ranks.count),
        ranks.kind === "process" ? "; all of them: " : "; all ranks: ",
        el("a", { class: "way", href: "#ranks" }, "Ranks"),
      ),
    ];
  if (!isNumber(run?.rank) || !(run.world_size > 1)) return [];
  return [
    el(
      "span",
      { class: "which" },
      "rank " + run.rank + " of " + run.world_size,
      // The page of all is there where several recorded.
      ...(run.recorded_ranks > 1 ? [", ", fileLink(base, "../report.html", "all ranks")] : []),
    ),
  ];
}

function drawOverview(page) {
  if (isImportAlone(page.facts)) {
    drawImported(page);
    for (const id of ["run-bar-title", "run-bar", "step-bar-title", "step-bar"]) drop(id);
    return;
  }
  drawVerdict(page);
  drawHeadline(byId("benchmark-cards"), page);
  if (isProfiled(page.facts.benchmark)) for (const id of ["run-bar-title", "run-bar"]) drop(id);
  else drawRunBar(page);
  drawStepBar(page);
  drawTops(page.overview.tops);
}

// What files of other tools hold, where no step was timed.
function drawImported(page) {
  const { imports, layers, nsys } = page.facts;
  if (layers?.length) drawVerdict(page);
  else
    byId("verdict").append(
      el(
        "p",
        { class: "lead" },
        "This recording holds an import of ",
        linkTo("nsys", null, "Nsight Systems"),
        " alone: no step was timed without it, so there is no clean time, and no verdict on it.",
      ),
    );
  const others = (imports || []).filter((each) => each.file !== nsys?.file);
  append(byId("benchmark-cards"), [
    others.map((each) => card(each.format, el("span", { class: "figure" }, visible(each.file)))),
    nsysCard(nsys),
    memoryCards(page.overview.peaks, true),
  ]);
  drawTops(page.overview.tops.filter((top) => top.rows.length));
}

// The figures that everything else on the page is held against.
function drawHeadline(box, page) {
  const mark = page.facts.benchmark || {};
  const step = page.facts.step || {};
  const requests = page.facts.requests;
  const interval = isNumber(mark.ci95_low_s) && isNumber(mark.ci95_high_s);
  // Rates rest on the mean: it is named where it is another figure.
  const uneven =
    isNumber(mark.mean_s) && formatSeconds(mark.mean_s) !== formatSeconds(mark.median_s);
  const found = step.rule ? ["; steps found by ", el("code", {}, step.rule)] : null;
  append(box, [
    card(
      ["median ", stepName(mark)],
      figure(mark.median_s, "s", { ...stepClock(mark), reason: "no clean step was measured" }),
      [
        interval
          ? [
              "between ",
              spanText(mark.ci95_low_s, mark.ci95_high_s).replace(" – ", " and "),
              " with ",
              term("interval", "95 % confidence"),
              ", ",
            ]
          : mark.median_s
            ? "no interval: too few steps, "
            : null,
        page.bench.measured || mark.mode === "profiled" || !step.count
          ? "n = " + (mark.n ?? 0)
          : (mark.n ?? 0) + " of " + step.count + " steps, those not slowed by measuring",
        page.bench.measured ? null : found,
      ],
      "main",
    ),
    card(
      term("rate", "steps per second"),
      figure(mark.steps_per_s, "rate", {
        ...stepClock(mark),
        reason: "no clean step was measured",
      }),
      [
        isNumber(mark.items_per_s)
          ? [
              figure(mark.items_per_s, "rate", stepClock(mark)),
              " items/s",
              isNumber(step.batch_size) ? ", batches of " + step.batch_size : null,
              requests ? "; " : null,
            ]
          : requests
            ? null
            : "items/s unknown: no batch size seen",
        requests
          ? [
              plural(requests.count, "request") + ": p50 ",
              figure(requests.p50_s, "s", CLEAN),
              ", p90 ",
              figure(requests.p90_s, "s", CLEAN),
              ", p99 ",
              figure(requests.p99_s, "s", CLEAN),
            ]
          : null,
        uneven ? ["; the mean step takes ", figure(mark.mean_s, "s", stepClock(mark))] : null,
      ],
    ),
    tokensCard(page.facts.tokens),
    workCard(page.overview.work),
    ...memoryCards(page.overview.peaks),
    nsysCard(page.facts.nsys),
  ]);
}

// Text that was generated, in steps that no layer watched.
function tokensCard(told) {
  if (!told) return null;
  return card("new tokens per second", figure(told.new_tokens_per_s, "rate", CLEAN), [
    isNumber(told.first_token_p50_s)
      ? ["the first after ", figure(told.first_token_p50_s, "s", CLEAN)]
      : "the first one's time was not seen",
    isNumber(told.later_token_s)
      ? [", then ", figure(told.later_token_s, "s", CLEAN), " each"]
      : null,
    "; " + told.new_tokens + " new tokens for " + (told.prompt_tokens ?? "no") + " of a prompt",
    told.cached === false ? [" ", el("span", { class: "bad-word" }, "without a cache")] : null,
  ]);
}

// What was imported, and the way to it.
function nsysCard(fact) {
  if (!fact) return null;
  return card(
    linkTo("nsys", null, "Nsight Systems"),
    fact.steps ? plural(fact.steps, "step") : "a whole capture",
    ["of ", fact.file, fact.version ? " by nsys " + fact.version : ""],
  );
}

function workCard(work) {
  const name = hasView("flops") ? linkTo("flops", null, "FLOP per second") : "FLOP per second";
  if (!isNumber(work.flop_per_s)) return card(name, none(work.reason), work.reason);
  const rate = { kind: "rate", source: work.counter, over: "clean" };
  const share = isNumber(work.mfu)
    ? [
        el("b", {}, figure(work.mfu, "share", rate)),
        " of the ",
        work.peak_is,
        " peak (",
        term("mfu", "MFU"),
        work.warning ? "; " + work.warning + ")" : ")",
      ]
    : "share of peak unknown: " + work.reason;
  return card(
    name,
    [figure(work.flop_per_s, "rate", rate), " FLOP/s"],
    [
      share,
      el(
        "div",
        {},
        figure(work.flop, "flop", { kind: "counted", source: work.counter }),
        " ",
        term("flop", "FLOP"),
        " a step",
      ),
    ],
  );
}

// Read at the edges of slices and by the watch, whatever else was on.
const RAW_MEMORY = { layer: "profstack", kind: "raw" };

// Most memory of the run, and what the bytes were of in the one step that was watched.
function memoryCards(peaks, imported = false) {
  const held = (device) =>
    peaks.held.find((one) => (one.device === null || one.device === "cpu") !== device);
  const kinds = (one) =>
    one?.total_bytes
      ? [
          "a step's tensors: ",
          figure(one.total_bytes, "bytes", RAW_TORCH),
          ", ",
          one.kinds
            .slice(0, 2)
            .map(([kind, size], at) => [
              at ? ", " : "",
              figure(size / one.total_bytes, "share", RAW_TORCH),
              " " + kind,
            ]),
        ]
      : peaks.held_reason;
  const cards = [];
  if (isNumber(peaks.rss_bytes) || !imported)
    cards.push(
      card(
        [linkTo("memory", null, "host memory"), ", most of the run"],
        figure(peaks.rss_bytes, "bytes", { ...RAW_MEMORY, reason: peaks.rss_reason }),
        imported ? null : kinds(held(false)),
      ),
    );
  if (isNumber(peaks.allocated_bytes))
    cards.push(
      card(
        [linkTo("memory", null, "device memory"), ", most of the run"],
        figure(peaks.allocated_bytes, "bytes", RAW_MEMORY),
        [
          isNumber(peaks.reserved_bytes)
            ? [figure(peaks.reserved_bytes, "bytes", RAW_MEMORY), " reserved", imported ? "" : "; "]
            : null,
          imported ? null : kinds(held(true)),
        ],
      ),
    );
  return cards;
}

// The whole run as one bar; a part leads to the function that holds most of it.
function drawRunBar(page) {
  const { run_bar: rows, run_bar_reason: reason } = page.overview;
  if (!rows.length && reason && !page.bench.measured) {
    byId("run-bar").append(remark("No division of the run: " + reason + "."));
    return;
  }
  if (!rows.length) {
    drop("run-bar-title");
    drop("run-bar");
    return;
  }
  // The bar is the program's own time: what profstack added is in words below it.
  const own = rows.filter((row) => row.part !== "profstack");
  const sum = (each) => each.reduce((total, row) => total + row.wall_s, 0);
  const parts = own.map((row) => ({
    name: row.part,
    seconds: row.wall_s,
    share: row.share,
    link: row.file ? "source/" + row.file + ":" + row.line : null,
    detail:
      row.name && row.part !== "steps"
        ? [row.name === "<module>" ? null : row.name, placeWords(row)].filter(Boolean).join(", ")
        : row.part === "other" && row.by === "clock"
          ? "no layer saw it"
          : null,
    is: row.by === "samples" ? "sampled" : "measured",
  }));
  composition(byId("run-bar"), parts, {
    label: "parts of the run",
    of: "of the run",
    origin: (part) => ({ words: part.is + ": time of the whole run" }),
  });
  byId("run-bar").append(
    remark(
      "Shares are of the program's own " +
        formatSeconds(sum(own)) +
        (own.length < rows.length
          ? "; profstack added " +
            formatSeconds(sum(rows) - sum(own)) +
            " to make " +
            formatSeconds(page.facts.run.duration_s)
          : "") +
        "." +
        (isNumber(page.facts.run.items_per_s)
          ? " Over the whole run: " + formatCount(page.facts.run.items_per_s) + " items per second."
          : ""),
    ),
  );
}

// One bar: the clean median, cut into its parts. A negative rest has no width and is only listed.
function drawStepBar(page) {
  const box = byId("step-bar");
  const told = page.overview.step_bar;
  if (!told || !(told.parts || []).length) {
    box.append(
      remark("No division of the step: " + (told?.reason || "nothing of it was recorded") + "."),
    );
    return;
  }
  const shared = told.parts.map((part) => ({
    ...part,
    share: part.share ?? part.seconds / told.median_s,
  }));
  composition(box, shared, {
    label: "parts of the step",
    of: isProfiled(page.facts.benchmark) ? "of the step" : "of the clean step",
    origin: (part) =>
      part.is === "clean"
        ? CLEAN
        : isProfiled(page.facts.benchmark)
          ? RAW_TORCH
          : {
              words:
                (part.is || "calibrated") +
                ": seen by layers, told at the speed of the clean steps",
            },
  });
  for (const words of [told.reason, told.note].filter(Boolean))
    box.append(remark(asSentence(words)));
}

// Parts as a bar with its legend; `origin` says where a part's time comes from.
function composition(box, parts, { label, of, origin }) {
  box.append(
    partsBar(parts, { label, of }),
    el(
      "ul",
      { class: "legend parts" },
      parts
        .filter((part) => part.seconds !== 0)
        .map((part) =>
          el(
            "li",
            {},
            swatch(partColour(part)),
            part.link ? linkOf(part.link, part.name) : part.name,
            el("b", {}, figure(part.seconds, "s", origin(part))),
            quiet(shareOf(part)),
            part.detail ? quiet(part.detail) : null,
          ),
        ),
    ),
  );
}

const shareOf = (part) => (isNumber(part.share) ? formatPercent(part.share) : "");

// Parts as one bar, as long as `whole` seconds where it is on one scale with others: {name, seconds,
// share, link, detail, is}.
export function partsBar(parts, { label, of, whole }) {
  const sum = parts.reduce((all, part) => all + Math.max(part.seconds, 0), 0) || 1;
  const scale = whole || sum;
  const bar = el("div", { class: "composition", role: "group", "aria-label": label });
  for (const part of parts) {
    const share = shareOf(part);
    const way =
      part.link && hasView(part.link.split("/")[0]) ? wayTo(...linkParts(part.link)) : null;
    if (!(part.seconds > 0)) continue;
    const width = part.seconds / scale;
    const piece = el(
      way ? "a" : "span",
      {
        class: "piece",
        href: way,
        role: way ? null : "img",
        "aria-label": part.name + " " + share + ", " + formatSeconds(part.seconds),
      },
      width > 0.075 ? [el("b", {}, part.name), " ", share] : width > 0.035 ? share : "",
    );
    piece.style.flexGrow = String(part.seconds / sum);
    piece.style.background = partColour(part);
    piece.addEventListener("mousemove", (event) =>
      showTip(event, part.name, [
        [part.is || "calibrated", formatSeconds(part.seconds)],
        ...(share ? [[of, share]] : []),
        ...(part.detail ? [["most in", part.detail]] : []),
      ]),
    );
    piece.addEventListener("mouseleave", hideTip);
    bar.append(piece);
  }
  bar.style.width = (100 * sum) / scale + "%";
  return bar;
}

// What takes most time of each kind; the rest is one click away.
function drawTops(tops) {
  if (!tops.some((top) => top.rows.length)) {
    drop("top-rows");
    return;
  }
  append(
    byId("tops"),
    tops.map((top) =>
      el(
        "section",
        { class: "top" },
        el("h4", {}, linkTo(top.view, null, top.title), quiet(top.kind + ", by " + top.layer)),
        top.rows.length
          ? el(
              "ol",
              {},
              top.rows.map((row) => topRow(row, top)),
            )
          : remark("Nothing to rank: " + top.reason + "."),
      ),
    ),
  );
}

function topRow(row, top) {
  const most = Math.max(...top.rows.map((one) => one.seconds));
  const fill = el("span", { class: "fill", "aria-hidden": "true" });
  fill.style.width = (100 * row.seconds) / most + "%";
  const origin = { layer: top.layer, kind: top.kind.endsWith("calibrated") ? "calibrated" : "raw" };
  return el(
    "li",
    {},
    fill,
    el(
      "span",
      { class: "top-name", title: row.name + (row.detail ? "\n" + row.detail : "") },
      linkOf(row.link, top.view === "modules" ? tailOf(row.name, 34) : row.name),
      row.detail ? quiet(row.detail) : null,
    ),
    el(
      "span",
      { class: "top-share", title: isNumber(row.share) ? top.share_of : null },
      isNumber(row.share) ? formatPercent(row.share) : none(top.share_reason),
    ),
    el("span", { class: "top-time" }, figure(row.seconds, "s", origin)),
  );
}

// ---------- Verdict and findings ----------

const SEVERITIES = { high: "bad", medium: "fair", low: "good" };
const EVIDENCE_UNITS = [
  ["_share", "share"],
  ["share", "share"],
  ["_per_s", "rate"],
  ["_s", "s"],
  ["_bytes", "bytes"],
  ["bytes", "bytes"],
  ["_flop", "flop"],
  ["_mac", "mac"],
];
// Rows of evidence that are in a card before the others are folded.
const EVIDENCE_ROWS = 3;
// Names of evidence in words; "" for one that is not shown.
let labels = {};

function drawVerdict({ facts, overview }) {
  labels = overview.labels || {};
  const verdict = facts.verdict;
  const box = byId("verdict");
  if (!verdict?.sentence) {
    box.append(remark("No verdict: " + (verdict?.reason || "this report has none") + "."));
    return;
  }
  const tests = (verdict.evidence || []).filter((row) => row?.test);
  const others = (verdict.evidence || []).filter((row) => !row?.test);
  const told = tests.some((row) => isNumber(row.share));
  const ways = told ? [] : missingCommands(facts);
  append(box, [
    el("p", { class: "verdict" }, verdict.sentence),
    verdict.action ? el("p", { class: "action" }, "Next: ", verdict.action) : null,
    overview.sureness ? el("p", { class: "quiet sureness" }, overview.sureness) : null,
    ways.length
      ? el(
          "p",
          { class: "to-fill" },
          "What would tell more: ",
          ways.map((text) => [command(text), " "]),
        )
      : null,
    told
      ? remark(
          "Causes that are tested, by their share of a step. The mark shows from which share on each is named as the cause:",
        )
      : null,
    told
      ? el(
          "ul",
          { class: "tests", "aria-label": "what the verdict rests on" },
          tests.map((row) => testRow(row, verdict.slug)),
        )
      : null,
    others.length
      ? el(
          "ul",
          { class: "evidence" },
          others.map((row) => el("li", {}, evidenceRow(row))),
        )
      : null,
  ]);
}

// How to get what no layer saw: each layer's own command, as far as it has one.
const missingCommands = (facts) =>
  [
    ...new Set(
      (facts.layers || [])
        .filter((layer) => layer.status !== "recorded" && layer.status !== "emitted")
        .map((layer) => layer.command)
        .filter(Boolean),
    ),
  ].slice(0, 2);

// One tested cause: its share of the step, beside the threshold from which it is the verdict.
function testRow(row, verdict) {
  const { test, share, threshold_share: threshold, link, reason, ...rest } = row;
  const fill = el("span", { class: "test-fill", "aria-hidden": "true" });
  const mark = el("span", { class: "test-mark", "aria-hidden": "true" });
  fill.style.width = 100 * Math.min(Math.max(share || 0, 0), 1) + "%";
  mark.style.left = 100 * Math.min(threshold || 0, 1) + "%";
  const from = isNumber(threshold)
    ? "from " + formatPercent(threshold) + " of the step on it is " + test
    : null;
  const words = { role: "img", "aria-label": from || "of the step", title: from };
  // All figures are with the cause that was found; of the others the time, and the rest on hover.
  const said = el(
    "span",
    { class: "test-words" },
    test === verdict ? evidenceRow(rest) : isNumber(share) ? formatSeconds(rest.time_s) : reason,
    link ? [" ", evidenceWay(link)] : null,
  );
  const figures = el("span", {}, evidenceRow(rest)).textContent;
  said.title = isNumber(share) ? figures : reason || figures;
  return el(
    "li",
    { class: test === verdict ? "chosen" : null },
    el("span", { class: "test-name" }, linkTo("glossary", test, test)),
    el("span", { class: "test-bar", ...words }, fill, isNumber(threshold) ? mark : null),
    el("b", {}, isNumber(share) ? formatPercent(share) : none("it could not be told")),
    said,
  );
}

// A row of evidence: its figures with their units, linked to the row they are taken from.
function evidenceRow(row) {
  if (!row || typeof row !== "object" || Array.isArray(row)) return asText(row);
  const { link, text, ...rest } = row;
  const place = placeWords(rest);
  const words = Object.entries(rest)
    .filter(
      ([key, value]) =>
        value !== null &&
        value !== undefined &&
        labels[key] !== "" &&
        !(place && (key === "file" || key === "line")),
    )
    .map(([key, value]) => evidenceWord(key, value));
  const parts = [text || null, place ? el("code", {}, place) : null, ...words].filter(Boolean);
  const body = parts.flatMap((part, at) => (at ? [", ", part] : [part]));
  if (!link) return body;
  return [body, " ", evidenceWay(link, true)];
}

// A module is named by the way to it: nothing else in a row of evidence says which one it is.
function evidenceWay(link, named = false) {
  const [view, key] = linkParts(link);
  return hasView(view)
    ? el(
        "a",
        { class: "way", href: wayTo(view, key), title: key, "aria-label": "to its row in " + view },
        "→ " + (named && view === "modules" && key ? tailOf(key, 40) : view),
      )
    : null;
}

function evidenceWord(key, value) {
  const [ending, unit] = isNumber(value)
    ? EVIDENCE_UNITS.find(([end]) => key.endsWith(end)) || ["", null]
    : ["", null];
  const stem = key.slice(0, key.length - (ending.startsWith("_") ? ending.length : 0));
  const name = labels[key] || stem.replaceAll("_", " ");
  const figure = unit
    ? formatValue(value, unit)
    : isNumber(value) && !Number.isInteger(value)
      ? formatCount(value)
      : typeof value === "boolean"
        ? formatValue(value)
        : asText(value);
  return el("span", {}, quiet(name + " "), isNumber(value) ? el("b", {}, figure) : figure);
}

const placeWords = (row) =>
  !row.file
    ? null
    : isNumber(row.line)
      ? atLine(shortPath(row.file, 2), row.line)
      : shortPath(row.file, 2);

function drawFindings(page) {
  if (isImportAlone(page.facts)) {
    drop("findings");
    return;
  }
  labels = page.overview.labels || {};
  const findings = page.facts.findings || [];
  const rules = page.overview.rules;
  const median = page.facts.benchmark?.median_s;
  const seen = new Set();
  append(
    byId("finding-list"),
    findings.map((finding) => {
      const first = !seen.has(finding.slug);
      seen.add(finding.slug);
      return findingCard(finding, median, first);
    }),
  );
  byId("finding-list").append(rulesNote(findings, rules));
}

function findingCard(finding, median, first) {
  const evidence = finding.evidence || [];
  const rest = evidence.slice(EVIDENCE_ROWS);
  return el(
    "article",
    {
      class: "finding " + (SEVERITIES[finding.severity] || "fair"),
      id: first ? "finding-" + finding.slug : null,
      "data-key": "overview/" + finding.slug,
    },
    el("div", { class: "gain" }, gainWords(finding, median)),
    el(
      "div",
      { class: "finding-body" },
      el(
        "h4",
        {},
        finding.title,
        finding.severity
          ? el(
              "span",
              { class: "chip " + (SEVERITIES[finding.severity] || "fair") },
              finding.severity + " impact",
            )
          : null,
      ),
      el("p", { class: "place" }, findingPlace(finding)),
      finding.advice ? el("p", { class: "advice" }, withCommands(finding.advice)) : null,
      // What keeps the rest of its time follows what to do.
      isNumber(finding.gain_s) && finding.gain_reason
        ? el("p", { class: "quiet" }, asSentence(finding.gain_reason))
        : null,
      evidence.length
        ? el(
            "ul",
            { class: "evidence", "aria-label": "evidence" },
            evidence.slice(0, EVIDENCE_ROWS).map((row) => el("li", {}, evidenceRow(row))),
          )
        : null,
      rest.length
        ? el(
            "details",
            {},
            el("summary", {}, rest.length + " more"),
            el(
              "ul",
              { class: "evidence" },
              rest.map((row) => el("li", {}, evidenceRow(row))),
            ),
          )
        : null,
    ),
  );
}

const asSentence = (words) => words[0].toUpperCase() + words.slice(1) + ".";

// What mending it is worth, per clean step; what was not measured is said so.
function gainWords(finding, median) {
  if (isNumber(finding.run_s)) return runWords(finding);
  if (!isNumber(finding.gain_s))
    return el(
      "div",
      { class: "quiet" },
      finding.gain_reason || "what it costs in time was not measured",
    );
  const least = (finding.evidence || []).slice(0, 1).some((row) => row.limits_agree === false);
  const layers = (finding.layers || []).map((layer) => layerWords(asText(layer)));
  const origin = {
    words:
      (finding.gain_is || "estimated") +
      (layers.length ? ", from what " + layers.join(" and ") + " saw" : "") +
      ", in time of a step",
  };
  return [
    el("div", { class: "gain-value" }, figure(-finding.gain_s, "s", origin)),
    el(
      "div",
      {},
      median ? el("b", {}, figure(finding.gain_s / median, "share", origin)) : null,
      median ? " of a step" : "per step",
    ),
    el("div", { class: "quiet" }, (least ? "at least, " : "") + (finding.gain_is || "estimated")),
  ];
}

// Of a finding on the whole run: what it takes, and what of that the advice saves.
function runWords(finding) {
  const origin = { words: "time of the whole run" };
  const saved = finding.run_gain_s;
  const kind = finding.run_gain_is || "estimated";
  const share = (finding.evidence || [])[0]?.run_share;
  return [
    el(
      "div",
      { class: "gain-value" },
      figure(isNumber(saved) ? -saved : finding.run_s, "s", origin),
    ),
    el("div", {}, isNumber(saved) ? `of the run, ${kind}` : "of the run"),
    el(
      "div",
      { class: "quiet" },
      "it takes ",
      figure(finding.run_s, "s", origin),
      isNumber(share) ? [", ", figure(share, "share", origin)] : null,
    ),
  ];
}

function findingPlace(finding) {
  const words = [];
  if (finding.file)
    words.push(
      linkTo("source", [finding.file, finding.line].filter(Boolean).join(":"), placeWords(finding)),
    );
  if (finding.module)
    words.push(el("span", {}, "in ", linkTo("modules", finding.module, finding.module)));
  if ((finding.layers || []).length)
    words.push(
      quiet(
        "seen by ",
        finding.layers.map((layer, at) => [
          at ? ", " : "",
          linkTo("method", asText(layer), asText(layer)),
        ]),
      ),
    );
  words.push(quiet(linkTo("glossary", finding.slug, "the rule")));
  return words.flatMap((word, at) => (at ? [" · ", word] : [word]));
}

// What was looked for: an empty list of findings says something only beside it.
function rulesNote(findings, rules) {
  const found = new Set(findings.map((finding) => finding.slug));
  const silent = rules.filter((rule) => !found.has(rule.slug));
  if (!silent.length) return "";
  const count = plural(rules.length, "rule");
  return el(
    "details",
    { class: "rules" },
    el(
      "summary",
      {},
      findings.length
        ? silent.length + " of " + count + " found nothing: what they look for"
        : "None of " + count + " found a problem: what they look for",
    ),
    el(
      "dl",
      { class: "pairs" },
      silent.map((rule) => [
        el("dt", {}, linkTo("glossary", rule.slug, rule.title)),
        el("dd", {}, rule.rule),
      ]),
    ),
  );
}

// What to keep in mind when reading the figures: warnings, and what no layer saw.
function drawTrust({ facts }) {
  if (isImportAlone(facts) && !facts.warnings.length) {
    drop("trust");
    return;
  }
  const mark = facts.benchmark?.warnings || [];
  const warnings = [
    ...mark.map((text) => ({ slug: null, text: asText(text) })),
    ...(facts.warnings || []).map((one) => ({ slug: one.slug, text: asText(one.text ?? one) })),
  ];
  const missing = (facts.layers || []).filter(
    (layer) => layer.status !== "recorded" && layer.status !== "emitted",
  );
  const ended = endWords(facts.run || {});
  if (ended) byId("warning-list").append(el("li", {}, ended));
  append(
    byId("warning-list"),
    warnings.map((one) =>
      el("li", {}, one.slug ? [el("code", {}, one.slug), " "] : "", withCommands(one.text)),
    ),
  );
  append(
    byId("missing-layers"),
    missing.map((layer) =>
      el(
        "li",
        {},
        el("b", {}, linkTo("method", layer.name, layer.name)),
        " ",
        chip(layer.status, layer.status),
        " ",
        layer.reason || "no reason was told",
        layer.command ? [". To fill it: ", command(layer.command)] : null,
      ),
    ),
  );
  if (!ended && !warnings.length && !missing.length)
    byId("trust-note").append(
      (facts.layers || []).length
        ? "Every layer recorded its slice, and nothing speaks against the figures."
        : "Nothing speaks against the figures.",
    );
}

// A script that failed was measured up to there.
function endWords(run) {
  if (run.signal)
    return "The script was ended by " + run.signal + ": the figures are of the steps before that.";
  return run.exit_code
    ? "The script ended with exit code " +
        run.exit_code +
        ": the figures are of the steps before that."
    : null;
}
