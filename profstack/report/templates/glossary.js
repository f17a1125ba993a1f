// The view "Glossary": the words of the page, and what makes each finding and verdict.

import { append, byId, el } from "./dom.js";

export const glossaryView = {
  id: "glossary",
  title: "Glossary",
  needs: [],
  has: () => true,
  parts: [["glossary", drawGlossary]],
};

// Terms made from rules: what makes a finding and a verdict, with their thresholds.

function drawGlossary(page) {
  const rules = page.overview.rules;
  const verdicts = page.overview.verdicts || [];
  // A verdict may be called like a bound of the roofline, which is a term of its own.
  const entry = (slug, name, meaning, kind = "term") =>
    el(
      "div",
      { id: kind + "-" + slug, "data-key": "glossary/" + slug },
      el("dt", {}, name, " ", el("code", { class: "quiet" }, slug)),
      el("dd", {}, meaning),
    );
  append(byId("glossary"), [
    verdicts.length
      ? [
          el("h3", { class: "part" }, "Verdicts"),
          el(
            "dl",
            { class: "glossary" },
            verdicts.map((one) => entry(one.slug, one.title, one.rule, "verdict")),
          ),
        ]
      : null,
    rules.length
      ? [
          el("h3", { class: "part" }, "Findings: what makes each of them"),
          el(
            "dl",
            { class: "glossary" },
            rules.map((one) => entry(one.slug, one.title, one.rule)),
          ),
        ]
      : null,
  ]);
}
