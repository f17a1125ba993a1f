(async () => {
  const children = [...Array(60).keys()].map((value) => ({name: 'n' + value, value}));
  const opened = [];
  const told = T.charts.insideList({children}, 100, (one) => one.value + ' B',
    (one) => opened.push(one.name));
  const box = T.dom.el('div', {}, told), texts = () => [...box.querySelectorAll('li')]
    .map((one) => one.textContent), before = texts();
  box.querySelector('button').click();
  [...box.querySelectorAll('button')].at(-1).click();
  return [before.length, before[0], before.at(-1), texts().length, texts().at(-1), opened];
})()
