// The section "What was tried" of the overview: changes that `profstack try` made in fresh processes
// of the script, what each gained, and the edits that keep the gains.

import {
  byId,
  el,
  formatCount,
  formatPercent,
  formatSeconds,
  isNumber,
  remark,
  visible,
} from "./dom.js";
import { ownColumn, recordTable } from "./table.js";
import { drop } from "./views.js";

const MEASURED = { layer: "profstack try", kind: "measured" };
const COLUMNS = [
  ownColumn("change", "change", "text", "name of the change, with its value"),
  ownColumn(
    "verdict",
    "verdict",
    "text",
    "gains and loses: beyond its interval and beyond what the plain script differs from itself",
  ),
  ownColumn("before_s", "plain", "s", "median time of a step of the plain script", null, MEASURED),
  ownColumn("after_s", "with it", "s", "median time of a step with the change", null, MEASURED),
  ownColumn(
    "ratio",
    "of the plain",
    "share",
    "time of a step over the plain one; of an item, or of all from step to step, where the change is about that",
    null,
    MEASURED,
  ),
  ownColumn(
    "ci95_low",
    "at least",
    "share",
    "low end of its interval, shared among all changes",
    null,
    MEASURED,
  ),
  ownColumn("ci95_high", "at most", "share", "high end of that interval", null, MEASURED),
  ownColumn(
    "results",
    "results",
    "text",
    "losses, gradients and outputs of the first steps beside those of the plain script",
  ),
  ownColumn("reason", "why", "text", "why it breaks, is the same, or may not be recommended"),
];

export function drawTried(page) {
  const tried = page.facts.tried;
  if (!tried) {
    drop("tried");
    return;
  }
  const rows = [...tried.best, ...tried.trials];
  byId("tried-note").textContent =
    formatCount(rows.length) +
    (rows.length === 1 ? " change" : " changes") +
    ", each in fresh processes of " +
    formatCount(tried.steps) +
    " steps, in turn with the plain script, in " +
    formatSeconds(tried.seconds) +
    "." +
    (isNumber(tried.floor)
      ? " The plain script differed from itself by " +
        formatPercent(tried.floor) +
        ": no less is told as a gain or a loss."
      : "") +
    (tried.plain_results === "equal" || tried.plain_results === null
      ? ""
      : " Two plain runs with the same seed differ already: results can be compared to that extent alone.");
  recordTable(byId("tried-table"), rows, COLUMNS, { name: "tried changes" });
  for (const row of tried.trials)
    if (row.recommended && (row.diff || row.edit))
      byId("tried-edits").append(
        remark("To keep " + row.change + ":"),
        el("pre", { class: "diff" }, visible(row.diff || row.edit)),
      );
}
