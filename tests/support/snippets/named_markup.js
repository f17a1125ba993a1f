[window.broken,
  document.querySelectorAll('main :is(img, iframe, b b, [onerror])').length,
  [...document.querySelectorAll('a[href]')].filter((one) => one.protocol !==
  'file:').length]
