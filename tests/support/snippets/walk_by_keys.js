(async () => {
  lab.prepare({tables: {}, facts: {}, parts: {}});
  const box = T.dom.el('div'), told = [];
  document.querySelector('main').append(box);
  let at = tree;
  const open = (area) => { told.push('opened'); at = area.node; redraw(); };
  const redraw = T.charts.drawHierarchy({box, kind: () => 'icicle',
    label: () => 'tree of ' + at.name,
    areas: () => T.charts.largestAreas(at), marked: () => null,
    tip: (area) => [area.name, []], open, seen: () => 0});
  redraw();
  await lab.rest(); await lab.rest();
  for (const key of KEYS) {
    const event = new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true});
    box.dispatchEvent(event);
    const said = T.dom.byId('announced').textContent;
    told.push(key + ' ' + (event.defaultPrevented ? said : 'is not taken'));
  }
  told.push(box.getAttribute('aria-label'));
  return told;
})()
