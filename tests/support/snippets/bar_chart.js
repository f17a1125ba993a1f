(async () => {
  const box = T.dom.el('div');
  const first = [
    {value: 0.01, low: 0.008, high: 0.013, points: [0.009, 0.012], colour: 'red',
      text: '10.0 ms, x', short: '10 ms', tip: ['first', [['a', 'b']]]},
    {value: 0.02, low: null, high: null, colour: 'blue', name: 'cold', text: '20.0 ms',
      tip: ['cold', []]}];
  const second = [
    {value: 0.004, low: 0.001, high: 0.09, colour: 'green', text: '4.00 ms', tip: ['second', []]}];
  const rows = [{name: 'first of all the long names', bars: first}, {name: 'empty', bars: []},
    {name: 'second', bars: second}];
  lab.prepare({tables: {}, facts: {}, parts: {}});
  document.querySelector('main').append(box);
  window.plotWidth = WIDTH;
  T.charts.barChart(box, rows, {label: 'b', name: 'b', says: 's', unseen: true});
  await lab.rest(20);
  const { data, layout } = box.querySelector('.plot');
  window.plotWidth = 800;
  return [data[0], layout, data[1]];
})()
