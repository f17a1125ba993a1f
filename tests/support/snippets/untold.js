[...document.querySelectorAll('main td.number:not(.heat, .quiet), main .card-value:not(:has(a))')]
  .filter((one) => /\d/.test(one.textContent) && !one.title && !one.querySelector('[title]'))
  .map((one) => one.closest('section').id + ' ' + one.textContent)
