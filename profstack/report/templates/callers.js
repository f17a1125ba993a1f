// Who calls the chosen function and what it calls: exact counts and times, as the profile has them.
const EDGE_ORIGIN = { layer: "cprofile", kind: "raw" };

function drawCallEdges(box, index) {
  box.replaceChildren();
  if (index === null || index === undefined) return;
  const record = calls.functions[index];
  const cycle = calls.cycleOf[index];
  append(box, [
    el("h3", {}, "Callers and callees of ", el("code", {}, functionName(record)), " ", el("span", { class: "quiet place" }, functionWay(record))),
    el("p", { class: "lead" }, formatSeconds(record[5]) + " with callees, " + formatSeconds(record[4]) + " without, in " + formatCount(record[3]) + (record[3] === 1 ? " call" : " calls") + " per step. Shares are of the time with callees." + (cycle >= 0 ? " It is part of a circle of functions that call each other: their times hold one another, and shares may add up to more than the whole." : ""))]);
  const sides = el("div", { class: "columns edges" });
  box.append(sides);
  const from = calls.edges.filter(([, callee]) => callee === index).map(([caller, , count, seconds]) => [caller, count, seconds]);
  const to = calls.edges.filter(([caller]) => caller === index).map(([, callee, count, seconds]) => [callee, count, seconds]);
  edgeTable(sides, "callers", from, leftOf(calls.callers_left, index), record, index);
  edgeTable(sides, "callees", to, leftOf(calls.callees_left, index), record, index);
}

const leftOf = (left, index) => (left || []).find(([one]) => one === index) || null;

function edgeTable(box, name, edges, left, record, index) {
  const place = el("div", { id: "call-" + name });
  place.append(el("h4", {}, name));
  box.append(place);
  if (!edges.length && !left) { place.append(el("p", { class: "quiet" }, name === "callers" ? "No function of the profile calls it: it was on the stack when the profile began, or C code calls it." : "It calls no function that the profile sees.")); return; }
  const columns = [
    ownColumn("name", "function", "text", name === "callers" ? "who calls it" : "what it calls"),
    ownColumn("calls", "calls", "count", "calls per step from the one to the other", null, { layer: "cprofile", kind: "counted" }),
    ownColumn("total_s", "time", "s", "time with callees of these calls, per step", null, EDGE_ORIGIN),
    ownColumn("share", "share", "share", "that time over the time with callees of " + functionName(record), "its time was not measured", EDGE_ORIGIN),
    ownColumn("place", "place", "text", "file and line of its definition", "more than one function"),
  ];
  const share = (seconds) => (record[5] > 0 ? seconds / record[5] : null);
  const places = new Map();
  const rows = edges.map(([other, count, seconds]) => {
    const one = calls.functions[other];
    const name = functionName(one) + (other === index ? " (itself)" : "");
    const row = [name, count, seconds, share(seconds), functionPlace(one)];
    places.set(row.join("\n"), other);
    return row;
  });
  if (left) rows.push([formatWhole(left[1]) + " more, not on this page", left[2], left[3], share(left[3]), null]);
  const otherOf = (one) => places.get(columns.map((column) => one[column.key]).join("\n"));
  makeTable(place, {
    table: { columns, rows, left_out: null }, name, plain: rows.length < 8, sort: { key: "total_s", direction: -1 }, bars: ["share"], barColour: "var(--self)",
    cells: {
      name: (value, one) => { const other = otherOf(one); return el("td", { class: "text path", title: value }, other === undefined ? value : el("button", { type: "button", class: "link", onclick: () => chooseFunction(other) }, value)); },
      place: (value, one) => { const other = otherOf(one); return el("td", { class: "text", title: value }, other === undefined ? none("more than one function") : functionWay(calls.functions[other])); },
    },
  });
}
