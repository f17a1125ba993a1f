[...document.querySelectorAll('main .none')].filter((one) => !one.title || one.title ===
  'not measured') .map((one) => one.closest('section').id + ' ' + (one.closest('td, dd, .card')
  || one).textContent)
