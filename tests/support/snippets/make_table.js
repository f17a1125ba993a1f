(async () => {
  lab.prepare({tables: {}, facts: {}, parts: {operators: 1, modules: 1, source: 1}});
  T.views.onKey('operators', () => false);
  document.getElementById('main').insertAdjacentHTML('beforeend', '<div id="box"></div>');
  window.box = document.getElementById('box');
  box.replaceChildren();
  window.cell = (row, at) => box.querySelectorAll('tbody tr')[row].children[at];
  window.names = () => [...box.querySelectorAll('tbody tr td:first-child')].map((one) =>
    one.textContent.replace(/[▾▸]/, ''));
  window.press = (label) => [...box.querySelectorAll('button')].find((one) => one.textContent
    .replace(/[▲▼]/, '') === label).click();
  window.seek = (text) => {
    const field = box.querySelector('input[type=search]');
    field.value = text;
    field.dispatchEvent(new Event('input'));
  };
  window.spec = {table: TABLE, name: 'things', view: 'operators', ...MORE};
  window.again = T.table.makeTable(box, spec);
  return 0;
})()
