[...[...document.querySelectorAll('img, iframe, object, [onerror], .view b')]
    .filter((one) => one.tagName !== 'B' || one.textContent === 'x'),
  ...[...document.querySelectorAll('a[href]')].filter((one) => one.protocol !== 'file:')]
  .map((one) => one.outerHTML.slice(0, 200))
