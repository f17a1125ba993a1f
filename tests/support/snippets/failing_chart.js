(async () => {
  const box = T.dom.el('div'), error = console.error;
  document.querySelector('main').append(box);
  console.error = () => {};
  const fail = () => { throw new Error('why'); };
  T.charts.plot(box, fail, {label: 'l', says: 's', unseen: true});
  await lab.rest(); await lab.rest();
  console.error = error;
  return box.querySelector('p.broken').textContent;
})()
