(points) => {
  const acts = {}, told = [], surface = {on: (name, act) => { acts[name] = act; }};
  T.charts.listenToChart(surface, {onClick: (point) => told.push(point)});
  acts.plotly_click({points});
  return told;
}
