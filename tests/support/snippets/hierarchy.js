(() => {
  const theme = THEME, areas = T.charts.largestAreas(tree);
  const spec = {kind: () => 'KIND', marked: () => null};
  const { data } = T.charts.picture(spec, {areas, cursor: 2}, theme);
  return [data[0], T.charts.pictureTexts('KIND', areas, 100, {...theme, width: 260})];
})()
