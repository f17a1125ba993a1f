(() => {
  const all = (some, told) => [...document.querySelectorAll(some)].map(told).join(' ');
  const words = (one) => one.textContent;
  const named = (one) => one.id || one.querySelector('.name, td').textContent.replace(/[▾▸]/, '');
  return [all('.view:not([hidden])', (one) => one.dataset.view), document.title.split(' - ')[0],
    document.querySelector('#note').textContent, all('#filter:not([hidden]) code', words),
    all('#views [aria-current=page]', words),
    all('.view:not([hidden]) .marked', named), document.activeElement.id];
})()
