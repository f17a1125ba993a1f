(() => {
  document.querySelector('.view:not([hidden]) details').insertAdjacentHTML('beforeend',
    '<details id=inner></details>');
  const all = [...document.querySelectorAll('.view:not([hidden]) details')], told = () =>
    all.map((one) => one.open), before = told();
  dispatchEvent(new Event('beforeprint'));
  const printed = [told(), all.map((one) => !one.closest('details details')), document
    .querySelector('#inner').open];
  dispatchEvent(new Event('afterprint'));
  return [before, ...printed, told()];
})()
