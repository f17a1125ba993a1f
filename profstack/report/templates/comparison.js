// The first view of a comparison: which side is faster and by how much, what was not equal, where
// the difference comes from, findings and gates, and what was compared.

import {
  changeColour,
  changeOf,
  isSlower,
  rowKey,
  signed,
  signedSpan,
  statusChip,
} from "./changes.js";
import { roundValues, spanRows } from "./charts.js";
import {
  append,
  atLine,
  byId,
  chip,
  el,
  formatFactor,
  formatPercent,
  formatSeconds,
  isNumber,
  medianOf,
  NONE,
  numberTitle,
  pairs,
  partColour,
  plural,
  quiet,
  remark,
  sentence,
  shortPath,
  spanFormat,
  swatch,
  tailOf,
  term,
  visible,
  withCommands,
} from "./dom.js";
import { partsBar } from "./overview.js";
import { drop, linkTo } from "./views.js";

export const comparisonView = {
  id: "overview",
  title: "Answer",
  needs: [],
  has: () => true,
  parts: [
    ["inequalities", drawInequalities],
    ["verdict", drawAnswer],
    ["step-parts", (page) => drawParts(page, "step")],
    ["run-parts", (page) => drawParts(page, "run")],
    ["finding-list", drawFindings],
    ["gate-list", drawGates],
    ["tops", drawTops],
    ["sides", drawSides],
  ],
};

const SLUGS = {
  faster: ["faster", "complete"],
  slower: ["slower", "failed"],
  same: ["the same", "complete"],
  unclear: ["cannot tell", "partial"],
};

export function drawComparisonHeader({ before, after, verdict }) {
  const scripts = [...new Set([before.script, after.script].filter(Boolean))];
  const script = byId("script");
  script.textContent = visible(scripts.join(" → ") || NONE);
  script.title = script.textContent;
  const [words, status] = SLUGS[verdict.slug] || [verdict.slug, "partial"];
  append(byId("status"), [
    chip(words, status),
    el(
      "span",
      { class: "two-sides", title: before.label + "\n" + after.label },
      tailWords(before.label),
      " → ",
      tailWords(after.label),
    ),
  ]);
}

const tailWords = (label) => shortPath(label, 2);

// ---------- The answer ----------

const SPREADS = {
  "between processes": ["between-process", "the spread between fresh processes"],
  "this machine": ["machine-spread", "the spread of this machine"],
  assumed: ["assumed-spread", "an assumed spread"],
};

function drawAnswer({ facts: { verdict } }) {
  byId("verdict").className = verdict.slug;
  append(byId("verdict"), [
    el("p", { class: "verdict" }, verdict.sentence),
    verdict.action
      ? el("p", { class: "action" }, "Next: ", withCommands(verdict.action), ".")
      : null,
    answerFigures(verdict),
  ]);
}

// The answer of a bar that is not the one above: the whole run's beside the step's.
function otherAnswer({ verdict, answers }, of) {
  const answer = (answers || []).find((one) => one.figure === of);
  return answer && answer.figure !== verdict.figure
    ? [el("p", { class: "other-answer" }, answer.sentence), answerFigures(answer)]
    : null;
}

function answerFigures(verdict) {
  const [link, from] = SPREADS[verdict.spread] || [null, null];
  const hasInterval = isNumber(verdict.ci95_low) && isNumber(verdict.ci95_high);
  return [
    isNumber(verdict.ratio) ? ratioPicture(verdict, hasInterval) : null,
    el(
      "p",
      { class: "quiet ratio-words" },
      isNumber(verdict.ratio)
        ? [
            verdict.figure === "run" ? "The run" : "A clean step",
            " takes ",
            el("b", {}, formatFactor(verdict.ratio) + " ×"),
            " its time before (" + changeOf(verdict.ratio) + "). ",
          ]
        : null,
      hasInterval
        ? [
            term("interval", "95 % interval"),
            ": " + formatFactor(verdict.ci95_low) + " to " + formatFactor(verdict.ci95_high) + " ×",
            from ? [", from ", term(link, from)] : null,
            ". ",
          ]
        : null,
      isNumber(verdict.floor)
        ? [
            "The ",
            term("smallest-change", "smallest change"),
            " that these recordings can tell is " + formatPercent(verdict.floor) + ". ",
          ]
        : null,
      verdict.reason ? sentence(verdict.reason) : null,
    ),
  ];
}

const WIDE_TICKS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];

// The ratio on an axis that holds 1: left of it the second side is faster. The axis is logarithmic,
// as far up as down: twice as long and half as long are the same change.
function ratioPicture(verdict, hasInterval) {
  const { ratio, ci95_low: low, ci95_high: high, floor } = verdict;
  const unsure = isNumber(floor) ? [1 / (1 + floor), 1 + floor] : [];
  const ends = [1, ratio, ...(hasInterval ? [low, high] : []), ...unsure]
    .filter((end) => end > 0)
    .map(Math.log);
  const reach = Math.max(...ends) - Math.min(...ends) || 0.1;
  const from = Math.min(...ends) - 0.12 * reach;
  const to = Math.max(...ends) + 0.12 * reach;
  const at = (value) => (value > 0 ? (100 * (Math.log(value) - from)) / (to - from) : 0);
  const piece = (name, left, right, ...words) => {
    const one = el("span", { class: name }, ...words);
    one.style.left = at(left) + "%";
    if (right !== null) one.style.width = at(right) - at(left) + "%";
    return one;
  };
  const wide = to - from > Math.log(3);
  const ticks = (wide ? WIDE_TICKS : roundValues(Math.exp(from), Math.exp(to), "count", 6)).filter(
    (tick) => at(tick) > 5 && at(tick) < 95,
  );
  const digits = !wide && ticks.length > 1 && ticks[1] - ticks[0] < 0.0999 ? 2 : 1;
  return el(
    "div",
    {
      class: "ratio " + verdict.slug,
      role: "img",
      "aria-label":
        "ratio " +
        formatFactor(ratio) +
        (hasInterval ? ", interval " + formatFactor(low) + " to " + formatFactor(high) : "") +
        "; 1 is no difference",
    },
    el(
      "div",
      { class: "ratio-ways" },
      piece("way-words left", 1, null, at(1) > 14 ? "← faster" : ""),
      piece("way-words", 1, null, "slower →"),
    ),
    el(
      "div",
      { class: "ratio-lane" },
      unsure.length ? piece("unsure", ...unsure) : null,
      piece("one", 1, null),
      hasInterval ? piece("range", low, high) : null,
      piece("point", ratio, null),
    ),
    el(
      "div",
      { class: "ratio-ticks" },
      ticks.map((tick) =>
        piece("tick", tick, null, (wide ? String(tick) : tick.toFixed(digits)) + " ×"),
      ),
    ),
  );
}

// ---------- What was not equal ----------

function drawInequalities({ facts: { inequalities } }) {
  const box = byId("inequalities");
  if (!inequalities.length) {
    box.append(remark("Nothing that could be checked was unequal on the two sides."));
    return;
  }
  const isHigh = inequalities.some((one) => one.severity === "high");
  box.className = isHigh ? "unequal high" : "unequal";
  append(box, [
    el("h3", {}, "Not equal on both sides"),
    el(
      "ul",
      {},
      inequalities.map((one) =>
        el(
          "li",
          { "data-key": "overview/" + one.slug },
          one.text.toLowerCase().startsWith(one.slug) ? null : [el("b", {}, one.slug), " "],
          one.severity === "high" ? chip("other work or machine", "failed") : null,
          " ",
          sentence(one.text),
          [one.before, one.after].some((value) => value !== null && !one.text.includes(value))
            ? el(
                "span",
                { class: "both" },
                el("code", {}, one.before ?? NONE),
                " → ",
                el("code", {}, one.after ?? NONE),
              )
            : null,
        ),
      ),
    ),
  ]);
}

// ---------- Where the difference comes from ----------

const AFTER_LESS_BEFORE = { unit: "s", words: "after less before" };

const sumOf = (parts, key) => parts.reduce((sum, part) => sum + part[key], 0);

function drawParts({ facts }, of) {
  const parts = facts.parts.filter((part) => part.of === of);
  if (!parts.length) {
    append(byId(of + "-parts"), [
      otherAnswer(facts, of),
      remark("No division: not both sides have the parts of the " + of + "."),
    ]);
    return;
  }
  const before = sumOf(parts, "before_s");
  const after = sumOf(parts, "after_s");
  append(byId(of + "-parts"), [
    otherAnswer(facts, of),
    el(
      "div",
      { class: "two-bars" },
      ["before", "after"].map((side) => alignedBar(parts, side, of, Math.max(before, after))),
    ),
    waterfall(parts, before, after),
  ]);
}

// One side's bar, as long as its time on the scale of both.
function alignedBar(parts, side, of, whole) {
  const total = sumOf(parts, side + "_s");
  const pieces = parts.map((part) => ({
    name: part.name,
    seconds: part[side + "_s"],
    share: total > 0 ? part[side + "_s"] / total : null,
    is: side,
  }));
  return el(
    "div",
    { class: "side-bar" },
    el("span", { class: "side-name" }, side),
    el(
      "div",
      { class: "side-parts" },
      partsBar(pieces, {
        label: "parts of the " + of + " " + side,
        of: "of the " + of,
        whole,
      }),
    ),
    el("b", { class: "side-total" }, formatSeconds(total)),
  );
}

// From before to after: each part from where the one above it ends. Noise comes last.
function waterfall(parts, before, after) {
  const isNoise = (part) => part.beyond_noise === false;
  const sorted = parts
    .slice()
    .sort((a, b) => isNoise(a) - isNoise(b) || Math.abs(b.difference_s) - Math.abs(a.difference_s));
  const marks = [before];
  for (const part of sorted) marks.push(marks[marks.length - 1] + part.difference_s);
  const reach = Math.max(...marks, after) - Math.min(...marks, after) || before * 0.01 || 1;
  const from = Math.min(...marks, after) - 0.04 * reach;
  const to = Math.max(...marks, after) + 0.04 * reach;
  const at = (value) => (100 * (value - from)) / (to - from);
  const lane = (start, end, colour) => {
    const bar = el("span", { class: start === end ? "mark" : "move" });
    bar.style.left = at(Math.min(start, end)) + "%";
    if (start !== end) bar.style.width = Math.abs(at(end) - at(start)) + "%";
    if (colour) bar.style.background = colour;
    return el("span", { class: "fall-lane", "aria-hidden": "true" }, bar);
  };
  const end = (name, value, more) =>
    el(
      "li",
      { class: "end" },
      el("span", { class: "fall-name" }, name),
      el("b", { class: "fall-sides" }, formatSeconds(value)),
      lane(value, value),
      el("b", { class: "fall-difference" }, more),
    );
  return el(
    "ul",
    { class: "waterfall", "aria-label": "difference by part" },
    end("before", before),
    sorted.map((part, place) =>
      el(
        "li",
        { class: isNoise(part) ? "noise" : null },
        el("span", { class: "fall-name" }, swatch(partColour(part)), part.name),
        el(
          "span",
          { class: "fall-sides quiet" },
          formatSeconds(part.before_s) + " → " + formatSeconds(part.after_s),
        ),
        lane(
          marks[place],
          marks[place + 1],
          isNoise(part) ? "var(--builtin)" : changeColour(part.difference_s, "s"),
        ),
        el(
          "span",
          { class: "fall-difference" },
          el(
            "b",
            { class: "figure", title: numberTitle(part.difference_s, AFTER_LESS_BEFORE) },
            signed(part.difference_s, "s"),
          ),
          isNumber(part.low_s) && isNumber(part.high_s)
            ? quiet(" " + signedSpan(part.low_s, part.high_s))
            : null,
        ),
        el("span", { class: "fall-cause" }, causeWords(part)),
      ),
    ),
    end("after", after, [
      signed(after - before, "s"),
      before > 0 ? quiet(" " + changeOf(after / before)) : null,
    ]),
  );
}

function causeWords(part) {
  if (part.beyond_noise === false)
    return [
      quiet("cannot be told from ", term("noise")),
      part.cause ? quiet("; " + part.cause) : null,
    ];
  const unsure = part.beyond_noise === null ? quiet(" (noise not known)") : null;
  if (!part.places.length)
    return [part.difference_s === 0 ? null : quiet("no cause was found"), unsure];
  return [...part.places.flatMap((each, at) => [at ? "; " : "", ...placeAndCause(each)]), unsure];
}

const placeAndCause = (each) => [each.cause, each.cause && each.file ? " " : "", placeWords(each)];

const placeWords = ({ file, line }) =>
  file
    ? el(
        "code",
        { class: "place", title: file },
        isNumber(line) ? atLine(shortPath(file, 2), line) : shortPath(file, 2),
      )
    : null;

// ---------- Findings and gates ----------

function drawFindings({ facts: { findings }, overview: { rules } }) {
  const known = new Set(rules.map((rule) => rule.slug));
  const box = byId("finding-list");
  if (!findings.length) {
    box.append(remark("No finding and no warning is gone or new."));
    return;
  }
  box.append(
    el(
      "ul",
      { class: "missing" },
      ["new", "gone"].flatMap((status) =>
        findings
          .filter((one) => one.status === status)
          .map((one) =>
            el(
              "li",
              {},
              el("span", { class: "chip " + (status === "new" ? "bad" : "good") }, status),
              " ",
              quiet(one.kind),
              " ",
              one.title,
              " ",
              known.has(one.slug)
                ? linkTo("glossary", one.slug, one.slug)
                : el("code", { class: "quiet" }, one.slug),
              placeWords(one) ? [" · ", placeWords(one)] : null,
            ),
          ),
      ),
    ),
  );
}

const GATE_CHIPS = { kept: "good", broken: "bad", unclear: "fair" };

function drawGates({ facts: { gates } }) {
  if (!gates.length) {
    drop("gates");
    return;
  }
  append(
    byId("gate-list"),
    gates.map((gate) =>
      el(
        "li",
        {},
        el("span", { class: "chip " + GATE_CHIPS[gate.result] }, gate.result),
        " ",
        el("code", {}, gate.rule),
        " ",
        gate.text ? sentence(gate.text) : null,
        placeWords(gate) ? [" · ", placeWords(gate)] : null,
      ),
    ),
  );
}

// ---------- What changed most ----------

function drawTops({ overview: { tops } }) {
  const there = tops.filter((top) => top.rows.length);
  append(byId("tops"), there.map(topTable));
  // Tables with nothing to show, by why that is so.
  const reasons = new Map();
  for (const top of tops.filter((one) => !one.rows.length)) {
    const why = top.total
      ? "no row differs by more than noise"
      : top.reason || "there is nothing to compare";
    reasons.set(why, [...(reasons.get(why) || []), top]);
  }
  append(
    byId("no-tables"),
    [...reasons].map(([why, found]) =>
      el(
        "li",
        {},
        found.map((top, at) => [
          at ? ", " : "",
          top.total ? linkTo(top.view, null, top.title) : el("b", {}, top.title),
        ]),
        ": ",
        withCommands(why),
        ".",
      ),
    ),
  );
  if (!tops.length) byId("tops").append(remark("No table has rows of both sides."));
}

function topTable(top) {
  const most = Math.max(...top.rows.map((row) => Math.abs(row.change.difference)));
  return el(
    "section",
    { class: "top" },
    el("h4", {}, linkTo(top.view, null, top.title), quiet(plural(top.total, "row"))),
    el(
      "ol",
      {},
      top.rows.map((row) => {
        const { difference, ratio } = row.change;
        const fill = el("span", { class: "fill", "aria-hidden": "true" });
        fill.style.width = (100 * Math.abs(difference)) / most + "%";
        fill.style.background = changeColour(difference, top.unit);
        return el(
          "li",
          { class: isSlower(difference, top.unit) ? "slower" : "faster" },
          fill,
          el(
            "span",
            { class: "top-name", title: row.key },
            linkTo(top.view, rowKey(row), top.view === "modules" ? tailOf(row.key, 34) : row.key),
            row.file ? quiet(placeText(row)) : null,
          ),
          el(
            "span",
            { class: "top-share" },
            isNumber(ratio) && ratio > 0 ? changeOf(ratio) : statusChip(row.status),
          ),
          el("span", { class: "top-time" }, signed(difference, top.unit)),
        );
      }),
    ),
  );
}

const placeText = ({ file, line }) =>
  isNumber(line) ? atLine(shortPath(file, 1), line) : shortPath(file, 1);

// ---------- What was compared ----------

const SIDE_COLOURS = { before: "var(--kind-warmup)", after: "var(--kind-clean)" };

function drawSides({ facts }) {
  const sides = ["before", "after"].map((name) => ({ name, ...facts[name] }));
  const rows = sides
    .filter((side) => side.medians_s.length)
    .map((side) => {
      const value = medianOf(side.medians_s);
      const low = Math.min(...side.medians_s);
      const high = Math.max(...side.medians_s);
      return {
        name: side.name,
        value,
        points: side.medians_s,
        colour: SIDE_COLOURS[side.name],
        words: [
          el("b", {}, spanFormat(low, high)(value)),
          quiet(" " + plural(side.medians_s.length, "recording")),
        ],
      };
    });
  append(byId("side-medians"), [
    facts.measured ? remark(facts.measured) : null,
    rows.length
      ? [
          remark(
            "A dot is the median ",
            term("clean"),
            " step of a recording, the line their median.",
          ),
          spanRows(rows),
        ]
      : remark("Neither side has a clean step: there is no median to show."),
  ]);
  append(
    byId("side-facts"),
    sides.map((side) =>
      el(
        "div",
        {},
        el("h3", {}, side.name),
        pairs([
          ["called", side.label],
          ["script", side.script],
          ["commit", side.commit],
          [term("recording", "recordings"), String(side.recordings)],
          [[term("clean"), " steps"], String(side.steps)],
          [
            "folders",
            side.folders.length
              ? side.folders.map((one) => el("div", {}, el("code", {}, one)))
              : null,
          ],
        ]),
      ),
    ),
  );
}
